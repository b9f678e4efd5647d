"""Memory space: how large an array may be to get a place on the chip, with all others that want one at the same time.

A TPU's compiler gives places one array at a time, in the order of what they gain, each for as long as it lives, beside
those that have a place already (`xla/service/memory_space_assignment/`): the gain is that of all reads and the write, over
the square root of the size. What a kernel reads and what it writes are there at once. So of the scores of attention and
their exponentials, of half of the chip each, one goes to memory.

How arrays are split is not known here: all are taken to be split as often as the one that is asked for.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

SHARES = tuple(base * 2.0**-power for power in reversed(range(6)) for base in (3 / 8, 1 / 2))
"""The shares that are tried, up to the largest that an array takes: extents have factors of 2 and 3 as a rule."""


class Candidate(NamedTuple):
    """An array, whole, from the kernel that makes it to the last that reads it, and how often it is moved in a step."""

    tensor: int
    start: int
    stop: int
    bytes: float
    moved: float


def shares_on_chip(candidates: Iterable[Candidate], usable: float) -> dict[int, float]:
    """The share of the memory on the chip up to which each array gets a place, by tensor; all together get `usable`.

    Of those that gain the same the earlier is taken to have its place, so that identical layers have the same shares.
    """
    ordered = sorted(candidates, key=lambda one: (-_gain(one), one.start, one.tensor))
    longest = max((one.stop - one.start for one in ordered), default=0)
    placed, found = defaultdict[int, list[Candidate]](list), dict[int, float]()
    for one in ordered:
        near = (other for start in range(one.start - longest, one.stop + 1) for other in placed.get(start, ()))
        beside = [
            (other, other.bytes / one.bytes, SHARES[-1] if _gain(other) == _gain(one) else found[other.tensor])
            for other in near
            if other.stop >= one.start
        ]
        fits = [_fits(one, share, beside, usable) for share in SHARES]
        crowded = fits.index(False) if False in fits else len(SHARES)
        found[one.tensor] = SHARES[crowded - 1] if crowded else SHARES[0] / 2
        placed[one.start].append(one)
    return found


def _gain(one: Candidate) -> float:
    return one.moved * math.sqrt(one.bytes)


def _fits(one: Candidate, share: float, beside: list[tuple[Candidate, float, float]], usable: float) -> bool:
    """Whether an array that takes a share fits beside others, given with their size for each byte of its own and the
    largest share at which they have a place."""
    there = [(other, share * size) for other, size, most in beside if share * size <= most]
    return all(
        share + sum(size for other, size in there if other.start <= kernel <= other.stop) <= usable
        for kernel in {max(one.start, other.start) for other, _ in there}
    )
