"""Specs as JAX writes them: from rows of locations and layouts to PartitionSpecs, and back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from jax.sharding import PartitionSpec

from planner.program.spec_entries import axes_of_entry

Layout = tuple[tuple[int, ...], ...]
"""The axes of every dim, major first."""


def layout_of(location: Sequence[int], rank: int) -> Layout:
    """The axes of every dim, in mesh order, for a row of locations (axis -> dim or -1)."""
    return tuple(tuple(a for a, where in enumerate(location) if where == dim) for dim in range(rank))


@lru_cache(maxsize=65536)
def to_spec(layout: Layout, names: tuple[str, ...]) -> PartitionSpec:
    """The PartitionSpec of a layout, without trailing Nones; equal ones are one object."""
    entries: list[str | tuple[str, ...] | None] = []
    for axes in layout:
        split_axes = tuple(names[a] for a in axes)
        entries.append(None if not split_axes else split_axes[0] if len(split_axes) == 1 else split_axes)
    while entries and entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries)


def spec_of(location: Sequence[int], rank: int, names: tuple[str, ...]) -> PartitionSpec:
    """The PartitionSpec of a row of locations."""
    return _spec_of(tuple(location), rank, names)


@lru_cache(maxsize=65536)
def _spec_of(location: tuple[int, ...], rank: int, names: tuple[str, ...]) -> PartitionSpec:
    return to_spec(layout_of(location, rank), names)


def spec_text(spec: PartitionSpec) -> str:
    """A PartitionSpec in the short form P('x', None)."""
    return f"P({', '.join(map(repr, spec))})"


def entries_of(spec: PartitionSpec) -> list[list[str]]:
    """The axis names of every dim of a PartitionSpec, in the form JSON keeps."""
    return [list(axes_of_entry(entry)) for entry in spec]


def from_entries(entries: Sequence[Sequence[str]]) -> PartitionSpec:
    """The PartitionSpec that `entries_of` listed."""
    return PartitionSpec(*(None if not e else e[0] if len(e) == 1 else tuple(e) for e in entries))
