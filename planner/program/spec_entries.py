"""Entries of PartitionSpecs: None, an axis or several, for every dim; read as the axes they name, in one way everywhere."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any


def axes_of_entry(entry: Any) -> tuple[str, ...]:
    """The axes that split a dim; none for an entry of None, or for one that leaves the dim free."""
    if isinstance(entry, str):
        return (entry,)
    return tuple(entry) if isinstance(entry, (tuple, list)) else ()


def parts_over(axes: Iterable[str], sizes: Mapping[str, int]) -> int:
    """Into how many parts these axes split a dim."""
    return math.prod(sizes[axis] for axis in axes)


def axes_of_spec(spec: Iterable[Any], rank: int) -> tuple[tuple[str, ...], ...]:
    """The axes that split every dim of an array of so many dims."""
    entries = [axes_of_entry(entry) for entry in spec]
    return tuple(entries + [()] * (rank - len(entries)))
