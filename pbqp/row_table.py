"""Memory rows as arrays: what every row uses under a choice, and which choices no row can afford."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from pbqp.memory_rows import Indices, Row, Schedule, spread
from pbqp.problem import NEAR, Array, Problem
from pbqp.vectors import summed_by

Carried = Mapping[int, Sequence[tuple[int, Array]]]
"""Pieces of memory by node: the number of each in the row table, and its bytes per remaining choice."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RowTable:
    """The rows that some choice can violate.

    A piece is a vector of bytes per choice of one node that one or more rows count: `nodes[p]` is its node, `usages[p]`
    the bytes. Run i says that rows begins[i] .. ends[i] - 1 count piece `pieces[i]`; a row counts at most one piece of a
    node. The runs of a piece follow one another. `origin[r]` is the row's position in the problem and `limits[r]` its
    limit in bytes.
    """

    origin: Indices
    limits: Array
    nodes: Indices
    usages: tuple[Array, ...]
    pieces: Indices
    begins: Indices
    ends: Indices

    @staticmethod
    def of(problem: Problem) -> RowTable:
        """The table of a problem's rows, less those that no choice violates."""
        rows = problem.rows
        whole = _of_schedule(rows) if isinstance(rows, Schedule) else _of_rows(rows)
        highs = np.zeros(whole.nodes.size)
        for number, (node, usage) in enumerate(zip(whole.nodes.tolist(), whole.usages, strict=True)):
            highs[number] = usage[np.isfinite(problem.node_costs[node])].max(initial=-np.inf)
        return whole.subset(np.flatnonzero(whole._summed(highs) > whole.limits))

    @property
    def count(self) -> int:
        """Number of rows."""
        return int(self.limits.size)

    @cached_property
    def pieces_of(self) -> dict[int, tuple[int, ...]]:
        """For every node that a row counts, its pieces."""
        found: dict[int, tuple[int, ...]] = {}
        for number in np.unique(self.pieces).tolist():
            node = int(self.nodes[number])
            found[node] = (*found.get(node, ()), number)
        return found

    @cached_property
    def _flat(self) -> tuple[Array, Indices]:
        """All usages one behind the other, and where each begins."""
        starts = np.cumsum([0, *(usage.size for usage in self.usages)])
        return np.concatenate([*self.usages, np.zeros(0)]), starts[:-1]

    @cached_property
    def _runs_of(self) -> Indices:
        """Where the runs of every piece begin, and the end of the last one's."""
        return np.searchsorted(self.pieces, np.arange(self.nodes.size + 1))

    def _summed(self, amounts: Array) -> Array:
        """For every row the sum of the amounts of the pieces it counts; an amount may be infinite."""
        per_run = amounts[self.pieces]
        endless = np.isinf(per_run)
        total = spread(self.begins, self.ends, np.where(endless, 0.0, per_run), self.count)
        for run in np.flatnonzero(endless).tolist():
            total[self.begins[run] : self.ends[run]] += per_run[run]
        return total

    def used(self, choice: Sequence[int] | Indices) -> Array:
        """Bytes every row uses under a choice of all nodes, up to rounding."""
        flat, starts = self._flat
        return self._summed(flat[starts + np.asarray(choice, dtype=np.intp)[self.nodes]])

    def least(self, labels: Sequence[Indices]) -> Array:
        """Bytes every row uses at the least if each node picks among `labels` on its own."""
        lows = [usage[labels[node]].min() for node, usage in zip(self.nodes.tolist(), self.usages, strict=True)]
        return self._summed(np.asarray(lows, dtype=np.float64))

    def price(self, multipliers: Array) -> dict[int, Array]:
        """For each node in a priced row, the sum over its pieces of price times bytes, per choice."""
        sums = np.concatenate([[0.0], np.cumsum(multipliers)])
        prices = np.bincount(self.pieces, sums[self.ends] - sums[self.begins], self.nodes.size)
        numbers = np.flatnonzero(prices).tolist()
        return summed_by((int(self.nodes[number]), prices[number] * self.usages[number]) for number in numbers)

    def spans(self) -> dict[int, tuple[tuple[int, int], ...]]:
        """By piece the runs of rows that count it."""
        found: dict[int, tuple[tuple[int, int], ...]] = {}
        for piece, *run in zip(self.pieces.tolist(), self.begins.tolist(), self.ends.tolist(), strict=True):
            found[piece] = (*found.get(piece, ()), (run[0], run[1]))
        return found

    def rows_of(self, piece: int) -> Indices:
        """The rows that count a piece."""
        runs = slice(*self._runs_of[piece : piece + 2].tolist())
        spans = [np.arange(*span) for span in zip(self.begins[runs].tolist(), self.ends[runs].tolist(), strict=True)]
        return np.concatenate([*spans, np.zeros(0, dtype=np.intp)])

    def counted_by(self, row: int) -> Indices:
        """The pieces that a row counts."""
        return self.pieces[(self.begins <= row) & (row < self.ends)]

    def affordable(self, labels: Sequence[Indices]) -> dict[int, NDArray[np.bool_]] | None:
        """For nodes that lose some of their `labels`, which ones fit beside everyone else's least bytes.

        None where the rows leave some node without a choice.
        """
        room = self.limits - self.least(labels) + NEAR * np.abs(self.limits)
        if (room < 0).any():
            return None
        rooms = np.full(self.nodes.size, np.inf)
        np.minimum.at(rooms, self.pieces, least_within(room, self.begins, self.ends))
        keep: dict[int, NDArray[np.bool_]] = {}
        for number in np.flatnonzero(np.isfinite(rooms)).tolist():
            node = int(self.nodes[number])
            bytes_of = self.usages[number][labels[node]]
            fits = bytes_of - bytes_of.min() <= rooms[number]
            if not fits.all():
                keep[node] = fits & keep[node] if node in keep else fits
        return keep if all(fits.any() for fits in keep.values()) else None

    def subset(self, rows: Indices) -> RowTable:
        """The table with only some of its rows (ascending)."""
        begins, ends = np.searchsorted(rows, self.begins), np.searchsorted(rows, self.ends)
        left = np.flatnonzero(begins < ends)
        return RowTable(
            origin=self.origin[rows],
            limits=self.limits[rows],
            nodes=self.nodes,
            usages=self.usages,
            pieces=self.pieces[left],
            begins=begins[left],
            ends=ends[left],
        )

    def incidence(self) -> sparse.csr_array:
        """Rows by pieces: 1 where the row counts the piece. For tables of few rows."""
        lines = [np.arange(*span) for span in zip(self.begins.tolist(), self.ends.tolist(), strict=True)]
        at = np.concatenate([*lines, np.zeros(0, dtype=np.intp)])
        columns = np.repeat(self.pieces, self.ends - self.begins)
        return sparse.csr_array((np.ones(at.size), (at, columns)), shape=(self.count, self.nodes.size))


def _of_schedule(schedule: Schedule) -> RowTable:
    """All rows of a schedule; the intervals of one node become one piece each."""
    if np.unique(schedule.nodes).size < schedule.nodes.size:
        return _of_rows(schedule)
    return RowTable(
        origin=np.arange(len(schedule)),
        limits=np.full(len(schedule), schedule.limit),
        nodes=schedule.nodes,
        usages=schedule.usages,
        pieces=np.arange(schedule.nodes.size),
        begins=schedule.begins,
        ends=schedule.ends,
    )


def _of_rows(rows: Iterable[Row]) -> RowTable:
    """All rows of a list; equal pieces, and rows that follow one another, are found."""
    index: dict[tuple[int, int], int] = {}
    nodes: list[int] = []
    usages: list[Array] = []
    columns: list[Indices] = []
    limits: list[float] = []

    def piece(node: int, usage: Array) -> int:
        number = index.setdefault((node, id(usage)), len(nodes))
        if number == len(nodes):
            nodes.append(node)
            usages.append(usage)
        return number

    for row in rows:
        terms = summed_by(zip(row.nodes, row.usages, strict=True))
        columns.append(np.asarray([piece(node, usage) for node, usage in terms.items()], dtype=np.intp))
        limits.append(row.limit)
    flat = np.concatenate([*columns, np.zeros(0, dtype=np.intp)])
    lines = np.repeat(np.arange(len(columns)), [column.size for column in columns])
    order = np.lexsort((lines, flat))
    flat, lines = flat[order], lines[order]
    goes_on = (flat[1:] == flat[:-1]) & (lines[1:] == lines[:-1] + 1)
    first = np.flatnonzero(np.concatenate([[True] * bool(flat.size), ~goes_on]))
    last = np.flatnonzero(np.concatenate([~goes_on, [True] * bool(flat.size)]))
    return RowTable(
        origin=np.arange(len(columns)),
        limits=np.asarray(limits, dtype=np.float64),
        nodes=np.asarray(nodes, dtype=np.intp),
        usages=tuple(usages),
        pieces=flat[first],
        begins=lines[first],
        ends=lines[last] + 1,
    )


def least_within(values: Array, begins: Indices, ends: Indices) -> Array:
    """The least value in each interval [begin, end), none of them empty: by minima over spans of powers of two."""
    least = np.full(begins.size, np.inf)
    power = np.frexp(ends - begins)[1] - 1
    spans, width = values, 1
    for level in range(int(power.max(initial=-1)) + 1):
        if level:
            spans, width = np.minimum(spans[:-width], spans[width:]), 2 * width
        here = np.flatnonzero(power == level)
        least[here] = np.minimum(spans[begins[here]], spans[ends[here] - width])
    return least


_NONE: Indices = np.zeros(0, np.intp)
NO_ROWS = RowTable(origin=_NONE, limits=np.zeros(0), nodes=_NONE, usages=(), pieces=_NONE, begins=_NONE, ends=_NONE)
"""Of a problem without rows."""
