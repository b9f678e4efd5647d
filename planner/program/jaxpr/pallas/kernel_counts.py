"""What the body of a Pallas kernel works over its whole grid: operations by unit, and exponentials among them."""

from __future__ import annotations

from dataclasses import dataclass

import cost_models
from cost_models.hardware import Engine
from planner.program.jaxpr.pallas.grid_reading import GridReading

EXPONENTIALS = frozenset(("exp", "exp2", "logistic"))
"""Primitives of which attention makes the weights of its scores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCounts:
    """Operations on each of a chip's units, and the `exponentials` among them.

    `dtype` is that of the products that take most, None where there are none. `guessed`: some are not known.
    """

    vector_flops: float
    matrix_flops: float
    exponentials: float
    dtype: str | None
    guessed: bool

    @property
    def flops(self) -> float:
        """All of them."""
        return self.vector_flops + self.matrix_flops

    @property
    def engine(self) -> Engine:
        """The unit that does most."""
        return "matrix" if self.matrix_flops > self.vector_flops else "vector"


def counted_steps(reading: GridReading) -> KernelCounts:
    """What the equations of a kernel work, each as often as it runs."""
    flops: dict[Engine, float] = {"vector": 0.0, "matrix": 0.0}
    largest, dtype, exponentials, guessed = 0.0, None, 0.0, reading.unknown_trips
    for step in reading.counted:
        engine = cost_models.engine(step.kind)
        counted = step.times * cost_models.flops(step.kind, step.operands, step.results, step.params)
        flops[engine] += counted
        guessed |= not cost_models.is_known(step.kind)
        exponentials += counted * (step.kind in EXPONENTIALS)
        if engine == "matrix" and counted > largest:
            largest, dtype = counted, step.dtype
    return KernelCounts(
        vector_flops=flops["vector"],
        matrix_flops=flops["matrix"],
        exponentials=exponentials,
        dtype=dtype,
        guessed=guessed,
    )
