"""The factor rule and the work of a Pallas kernel, from its own grid, block specs, body and cost estimate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from planner.program.graph import Aval
from planner.program.jaxpr.pallas.kernel_counts import counted_steps
from planner.program.jaxpr.pallas.pallas_calls import READ_FORMS, PallasCall, pallas_call_of
from planner.rules.factors import Factors
from planner.rules.kernels.kernel_work import KernelWork
from planner.rules.rule import Dim, Rule


def pallas_call(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> Rule:
    """The rule of a `pallas_call`. Raises: ValueError where nothing is known by which it could be split."""
    call = pallas_call_of(params)
    if not call.splits:
        raise ValueError("no axis of its grid is known to leave its parts alone")
    return call_rule(call)


@lru_cache(maxsize=READ_FORMS)
def call_rule(call: PallasCall) -> Rule:
    """The rule of a kernel: a factor for each axis of its grid by which it may be split, all else stays whole.

    The operands that say how large the grid is come first; they are scalars.
    """
    factors = Factors()
    leading = {split.axis: factors.dim(split.parts) for split in call.splits}

    def dims(array: int) -> list[Dim]:
        found: list[Dim] = []
        for dim, extent in enumerate(call.shapes[array]):
            split = next((split for split in call.splits if split.dims.get(array) == dim), None)
            lead, parts = ((), 1) if split is None else (leading[split.axis], split.parts)
            found.append((*lead, *factors.dim(extent // parts, "replicate")))
        return found

    arrays = [dims(array) for array in range(len(call.shapes))]
    first = len(arrays) - call.results
    return factors.rule([*([] for _ in range(call.bounds)), *arrays[:first]], arrays[first:])


@lru_cache(maxsize=READ_FORMS)
def call_work(call: PallasCall) -> KernelWork:
    """The work of a kernel: as its author estimates it, else counted in its body, once for each step of its grid.

    A branch whose condition follows from data counts as run; of a loop whose length does, one trip is counted, and the
    work is guessed.
    """
    estimate, reading = call.params["cost_estimate"], call.reading
    counts = None if reading is None else counted_steps(reading)
    total, moved = (None, None) if counts is None else (counts.flops, call.moved_bytes)
    guessed = counts is None or counts.guessed
    if call.known is not None:
        total, moved, guessed = call.known.flops, call.known.moved_bytes, False
    if estimate is not None:
        total, guessed = float(estimate.flops + estimate.transcendentals), False
        moved = float(estimate.bytes_accessed) or moved
    return KernelWork(
        name=str(call.params["name"] or "pallas_call"),
        flops=total,
        bytes=moved,
        engine="vector" if counts is None else counts.engine,
        guessed=guessed,
        dtype=None if counts is None else counts.dtype,
        attends=counts is None or counts.exponentials > 0,
        exponentials=0.0 if counts is None else counts.exponentials,
    )
