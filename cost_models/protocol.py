"""The interface of a cost model: seconds of an op's local work, and of a collective."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from cost_models.hardware import Engine
from cost_models.network.links import Link

Floats = npt.NDArray[np.float64]


@runtime_checkable
class CostModel(Protocol):
    """What the planner asks of a source of costs."""

    @property
    def name(self) -> str:
        """The name of the model, for reports."""
        ...

    def compute_seconds(
        self, *, kind: str, engine: Engine, dtype: str, flops: Floats, bytes: Floats, pieces: Floats | float = 1.0
    ) -> Floats:
        """The seconds of one op on one device, for each of several strategies.

        `kind`: the primitive's name; `engine`: the unit that runs it; `flops` and `bytes`: the floating-point
        operations and the bytes moved from and to memory of the local shard, arrays of one shape, which the result
        has too. `pieces`: as how many of the largest products that were measured one of matrices counts, latency and all.
        """
        ...

    def collective_affine(self, kind: str, links: tuple[Link, ...]) -> tuple[float, float]:
        """The latency in seconds and the seconds per byte of a collective over the product group of these axes.

        `bytes` is the larger of the local operand and result. Raises: CostModelError for an unknown kind.
        """
        ...
