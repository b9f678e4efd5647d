"""What the body of an op that stays one op holds on a device, over its own schedule.

Compilers inline such a body before they allocate memory: an operand that nothing reads behind the op is free from its last
reader inside the body on (libtpu 0.0.42 on v5p: the backward pass of a mixture of experts holds the residuals of the
forward pass, 11 of 59 GB, no longer than the products inside that read them).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pbqp.vectors import Floats
from planner.compiler.schedule.live_ranges import Inside
from planner.pricing.mesh import Mesh
from planner.pricing.op_cost import stays_on_chip


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyMemory:
    """Bytes that a body holds: `beside` its operands at every point of its schedule, `returned` of these in the end.

    `operands` are by position the bytes of an operand and the point of the schedule until which it is needed.
    """

    beside: Floats
    returned: float
    operands: Mapping[int, tuple[float, int]]

    def bytes(self, inside: Inside, mesh: Mesh) -> float:
        """Bytes at the fullest point beside the operands that are held around the op, and its results.

        An operand that stays on the chip takes no memory, inside as around.
        """
        held = self.beside.copy()
        for position, at_once in inside.freed:
            size, until = self.operands[position]
            held[:until] += 0.0 if stays_on_chip(np.asarray(size), at_once, mesh.on_chip_bytes) else size
        return max(float(held.max()) - self.returned, 0.0)
