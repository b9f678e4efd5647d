"""Names folded: those of repeated layers, which differ in their numbers, as one: `Block_{0..11}/attn/kernel`."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from typing import NamedTuple

_COUNTED = re.compile(r"#\d+$")
_Pieces = tuple[tuple[str, ...], tuple[int, ...]]
"""A name cut into words and numbers, at odd positions, and the positions of the names that it stands for."""


class Folded(NamedTuple):
    """Names that are alike as one, and the positions of those that it stands for."""

    name: str
    members: tuple[int, ...]


def fold_numbers(names: Sequence[str], alike: Sequence[Hashable]) -> list[Folded]:
    """The names of equal `alike` that differ in one number after the other, each lot as one, in the order of its first.

    What tells apart several of one name (`out`, `out#2`) is left out where all that have the name are alike.
    """
    found: list[_Pieces] = [
        (tuple(re.split(r"(\d+)", name)), (i,)) for i, name in enumerate(_without_counts(names, alike))
    ]
    for position in range(-1, max((len(pieces) for pieces, _ in found), default=0), 2):
        buckets: dict[object, list[_Pieces]] = {}
        for pieces, members in found:
            rest = (pieces[:position], pieces[position + 1 :]) if 0 <= position < len(pieces) else pieces
            buckets.setdefault((position < len(pieces), rest, alike[members[0]]), []).append((pieces, members))
        found = [_as_one(bucket, position) for bucket in buckets.values()]
    return [Folded("".join(pieces) if len(at) > 1 else names[min(at)], at) for pieces, at in found]


def _without_counts(names: Sequence[str], alike: Sequence[Hashable]) -> list[str]:
    bases = [_COUNTED.sub("", name) for name in names]
    kinds: dict[str, set[Hashable]] = {}
    for base, kind in zip(bases, alike, strict=True):
        kinds.setdefault(base, set()).add(kind)
    return [base if len(kinds[base]) == 1 else name for base, name in zip(bases, names, strict=True)]


def _as_one(bucket: Sequence[_Pieces], position: int) -> _Pieces:
    pieces, members = bucket[0][0], tuple(i for _, members in bucket for i in members)
    if len({pieces for pieces, _ in bucket}) > 1:
        numbers = sorted({int(pieces[position]) for pieces, _ in bucket})
        pieces = (*pieces[:position], "{" + _ranges(numbers) + "}", *pieces[position + 1 :])
    return pieces, members


def _ranges(numbers: Sequence[int]) -> str:
    """[0, 1, 2, 5] as "0..2,5"."""
    ranges: list[str] = []
    start = numbers[0]
    for here, following in zip(numbers, [*numbers[1:], None], strict=True):
        if following != here + 1:
            ranges.append(
                str(start) if start == here else f"{start},{here}" if here == start + 1 else f"{start}..{here}"
            )
            start = following if following is not None else here
    return ",".join(ranges)
