"""Equal copies: of transfers that bring one array into one form there is one, or what is read much later is fetched again.

Compilers merge equal collectives, so a copy stands from the first of its readers to the last. Where memory is too short for
that, what comes later is fetched behind a barrier (`compiler.schedule.refetched`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from pbqp.vectors import Floats, Indices


class CopiesHeld(NamedTuple):
    """By copy its bytes and until when it stands; by copy that is fetched again the tensor that this waits for."""

    sizes: Floats
    stops: Indices
    refetched: Mapping[int, int]


class Equal(NamedTuple):
    """Copies by their start, and a number for each of them: those of one number are equal."""

    copies: Indices
    numbers: Indices


def as_one(sizes: Floats, stops: Indices, equal: Equal) -> CopiesHeld:
    """The bytes of the first of equal copies alone, until the last of them is done with."""
    _, first, which = np.unique(equal.numbers, return_index=True, return_inverse=True)
    sizes, until = sizes.copy(), stops.copy()
    np.maximum.at(until, equal.copies[first[which.ravel()]], stops[equal.copies])
    sizes[np.delete(equal.copies, first)] = 0.0
    return CopiesHeld(sizes, until, {})


def apart(
    spans: tuple[Floats, Indices, Indices],
    equal: Equal,
    waits_for: Callable[[int, int], int | None],
    profile: Floats,
    above: float,
) -> CopiesHeld:
    """Of equal copies the first, up to one that is fetched again as there is no room till then: those held longest first.

    `spans`: the bytes of every copy, from when and until when it stands by itself. `profile` is what is held at every point
    of the schedule with equal copies as one, somewhere more than `above` bytes. `waits_for` gives the tensor that a copy
    can wait for if it is fetched again after a time; None where it cannot be.
    """
    sizes, starts, stops = spans
    pairs = [*zip(equal.copies.tolist(), equal.numbers.tolist(), strict=True)]
    gaps: list[tuple[int, int, int]] = []
    latest: dict[int, int] = {}
    for copy, number in pairs:
        until, start = latest.get(number, int(starts[copy])), int(starts[copy])
        if start > until:
            gaps.append((until, start, copy))
        latest[number] = max(until, int(stops[copy]))
    waiting: dict[int, int] = {}
    for until, start, copy in sorted(gaps, key=lambda gap: gap[0] - gap[1]):
        behind = waits_for(copy, until) if (profile[until:start] > above).any() else None
        if behind is not None:
            waiting[copy] = behind
            profile[until:start] -= sizes[copy]
    held = CopiesHeld(sizes.copy(), stops.copy(), waiting)
    standing: dict[int, int] = {}
    for copy, number in pairs:
        if copy in waiting or number not in standing:
            standing[number] = copy
            continue
        first = standing[number]
        held.stops[first] = max(held.stops[first], held.stops[copy])
        held.sizes[copy] = 0.0
        if first in waiting:
            waiting[copy] = waiting[first]
    return held
