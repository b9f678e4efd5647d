"""Memory rows: one by one, or as the points of a schedule through which tensors live for intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import overload

import numpy as np

from pbqp.vectors import Floats, Indices, summed_by

Array = Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """One memory row: `usages[i][choice of nodes[i]]` bytes, summed over i, stay within `limit` bytes."""

    name: str
    limit: float
    nodes: tuple[int, ...]
    usages: tuple[Array, ...]

    def usage(self, choice: Sequence[int]) -> float:
        """Bytes this row uses under `choice`, summed exactly."""
        return math.fsum(usage[choice[node]] for node, usage in zip(self.nodes, self.usages, strict=True))

    def merged(self, of: Sequence[int]) -> Row:
        """The row of a problem in which node n is part of node `of[n]`."""
        usages = summed_by((of[node], usage) for node, usage in zip(self.nodes, self.usages, strict=True))
        return replace(self, nodes=tuple(usages), usages=tuple(usages.values()))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schedule(Sequence[Row]):
    """The rows of a schedule under one limit: `nodes[i]` counts `usages[i]` in the rows begins[i] .. ends[i] - 1.

    Twenty thousand rows of three thousand live nodes each are as many numbers as there are nodes; a row is put together
    when it is asked for.
    """

    names: tuple[str, ...]
    limit: float
    nodes: Indices
    usages: tuple[Array, ...]
    begins: Indices
    ends: Indices

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Row, ...]: ...
    def __getitem__(self, index: int | slice) -> Row | tuple[Row, ...]:
        if isinstance(index, slice):
            return tuple(self[position] for position in range(*index.indices(len(self))))
        position = range(len(self))[index]
        live = np.flatnonzero((self.begins <= position) & (position < self.ends)).tolist()
        nodes, usages = tuple(self.nodes[live].tolist()), tuple(self.usages[number] for number in live)
        return Row(name=self.names[position], limit=self.limit, nodes=nodes, usages=usages)

    def used(self, choice: Sequence[int]) -> Array:
        """Bytes every row uses under `choice`, up to rounding."""
        picked = [usage[choice[node]] for node, usage in zip(self.nodes.tolist(), self.usages, strict=True)]
        return spread(self.begins, self.ends, np.asarray(picked, dtype=np.float64), len(self))


def spread(begins: Indices, ends: Indices, amounts: Array, count: int) -> Array:
    """For `count` positions the sum of the amounts whose interval [begin, end) holds the position."""
    change = np.bincount(begins, amounts, count + 1) - np.bincount(ends, amounts, count + 1)
    return np.asarray(np.cumsum(change)[:count], dtype=np.float64)
