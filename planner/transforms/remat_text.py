"""What a plan says of a choice of what is saved: which values are, which are computed again, and what that takes."""

from __future__ import annotations

from collections.abc import Sequence

from planner.folded import fold_numbers
from planner.program.jaxpr.remat.residuals import Crossing
from planner.transforms.remat_choice import Choice
from planner.transforms.remat_prices import is_fused
from planner.units import quantity

MOST_NAMED = 6
"""Values that the words of a choice name."""


def describe_remat(
    crossings: Sequence[Crossing], choice: Choice, written: Choice, devices: int, *, beside: str = "as written"
) -> str:
    """What a choice is, `beside` the program as it is given: what is saved, what of that is more than a view is not."""
    clauses: list[str] = []
    for crossing, saved, repeated, before in zip(crossings, choice.saved, choice.repeated, written.saved, strict=True):
        again = [crossing.values[i].name for i in repeated if not all(map(is_fused, crossing.values[i].steps))]
        kept = [crossing.values[i].name for i in sorted(saved, key=lambda i: -crossing.values[i].aval.bytes)]
        read = sum(value.needed for value in crossing.values)
        each = "" if crossing.length == 1 else f" of each of {crossing.length} passes"
        part = f"of {read} values that the backward pass reads{each} {len(saved)} are saved"
        clauses.append(
            f"{part} ({_named(kept)}), {beside} {len(before)}; computed again: {_named(again) or 'nothing heavy'}"
        )
    more = (choice.bytes - written.bytes) / devices
    memory = f"{quantity(abs(more), 'B')} {'more' if more >= 0 else 'less'} are saved per device than {beside}"
    if choice.offloaded:
        away = [
            crossing.values[i].name
            for crossing, positions in zip(crossings, choice.offloaded, strict=True)
            for i in sorted(positions, key=lambda i, of=crossing: -of.values[i].aval.bytes)
        ]
        memory += f", {quantity(choice.host_bytes / devices, 'B')} wait in the memory of its host ({_named(away)})"
    again, before = (quantity(one.flops / devices, "FLOP") for one in (choice, written))
    return f"recomputation: {'; '.join(clauses)}; {memory}, {again} are computed again, {before} {beside}"


def _named(names: Sequence[str]) -> str:
    distinct = list(dict.fromkeys(names))
    folded = [fold.name for fold in fold_numbers(distinct, [None] * len(distinct))]
    more = f" and {len(folded) - MOST_NAMED} more" if len(folded) > MOST_NAMED else ""
    return ", ".join(folded[:MOST_NAMED]) + more
