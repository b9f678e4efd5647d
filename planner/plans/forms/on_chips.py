"""What parts of the batch may gain by what stays on the chips: read off a plan of the whole batch, without planning any.

An array between two kernels is written to memory and read from it where it is larger than what the chip has room for. One
of k parts of the batch has arrays of a k-th: what a plan moves is told again as if its chips had k times the room. What
the parts cost in turn, as every part reads the weights, only a plan of them tells.
"""

from __future__ import annotations

import numpy as np

from planner.one_mesh.instance import Instance
from planner.search.best_on_mesh import Candidate
from planner.session import Session

WORTH_A_LOOK = 0.1
"""The part of a plan's value to be gained on the chips for which microbatches are searched: much of it is lost again."""


def gains_on_chips(session: Session, best: Candidate, count: int) -> bool:
    """Whether enough more of a plan of the whole batch would stay on the chips in so many parts of it."""
    mesh = best.instance.mesh
    if not mesh.on_chip_bytes:
        return False
    roomier = session.with_room_on_chips(mesh.shape, count)
    return _of_kernels(best.instance, best) - _of_kernels(roomier, best) >= WORTH_A_LOOK * best.value


def _of_kernels(instance: Instance, plan: Candidate) -> float:
    """The value of the kernels of a plan."""
    return float(np.sum([values[pick] for values, pick in zip(instance.node_values, plan.choice, strict=True)]))
