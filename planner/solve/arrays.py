"""A network and its memory as flat arrays, the form that the compiled kernels work on (see `planner.solve.kernels`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.schedule import spread
from planner.solve.kernels import Floats, Ints
from planner.solve.network import Indices
from planner.solve.rows import RowTable
from planner.solve.ties import Tied

FORBIDDEN = 1e3
"""Price of a forbidden pair, in the largest cost of the network: a bound with it is a bound without."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arrays:
    """The arrays of the kernels under their names there, and what leads back: `labels` of the nodes in `names`.

    Bytes are as in the rows; `limits` and `units` (what a row's overuse is measured in) belong to the rows.
    """

    names: Ints
    labels: tuple[Indices, ...]
    constant: float
    size: Ints
    off: Ints
    unary: Floats
    ea: Ints
    eb: Ints
    et: Ints
    tables: Floats
    adj: Ints
    ptr: Ints
    mptr: Ints
    mo: Ints
    mb: Ints
    me: Ints
    memory: Floats
    limits: Floats
    units: Floats

    @staticmethod
    def of(tied: Tied, rows: RowTable) -> Arrays:
        """The arrays of a network whose ties are gone, with the memory its nodes carry."""
        network = tied.network
        names = sorted(network.live)
        position = {node: i for i, node in enumerate(names)}
        size = np.asarray([network.unary[node].size for node in names], dtype=np.int64)
        starts: dict[int, int] = {}
        chunks: list[Floats] = []
        edges: list[tuple[int, int, int]] = []
        filled = 0
        for m, n, table in network.edges():
            if id(table) not in starts:
                starts[id(table)] = filled
                chunks.append(table.ravel())
                filled += table.size
            edges.append((position[m], position[n], starts[id(table)]))
        unary = np.concatenate([*(network.unary[node] for node in names), np.zeros(0)])
        tables = np.concatenate([*chunks, np.zeros(0)])
        finite = np.isfinite(tables)
        dear = FORBIDDEN * max(np.abs(tables[finite]).max(initial=0.0), np.abs(unary).max(initial=0.0), 1e-300)
        ends = np.asarray(edges, dtype=np.int64).reshape(-1, 3)
        order = np.argsort(np.concatenate([ends[:, 0], ends[:, 1]]), kind="stable")
        degree = np.bincount(ends[:, :2].ravel(), minlength=len(names))
        mptr, memory = _memory(tied, rows, names)
        return Arrays(
            names=np.asarray(names, dtype=np.int64),
            labels=tuple(network.labels[node] for node in names),
            constant=network.constant,
            size=size,
            off=np.cumsum(size) - size,
            unary=unary,
            ea=np.ascontiguousarray(ends[:, 0]),
            eb=np.ascontiguousarray(ends[:, 1]),
            et=np.ascontiguousarray(ends[:, 2]),
            tables=np.where(finite, tables, dear),
            adj=order % max(len(edges), 1),
            ptr=np.concatenate([[0], np.cumsum(degree)]),
            mptr=mptr,
            mo=memory[0],
            mb=memory[1],
            me=memory[2],
            memory=memory[3],
            limits=rows.limits,
            units=np.maximum(np.abs(rows.limits), 1.0),
        )

    @property
    def network(self) -> tuple[Ints, Ints, Floats, Ints, Ints, Ints, Floats, Ints, Ints]:
        """The arguments of the kernels from `size` to `ptr`."""
        return self.size, self.off, self.unary, self.ea, self.eb, self.et, self.tables, self.adj, self.ptr

    @property
    def uses(self) -> tuple[Ints, Ints, Ints, Ints, Floats]:
        """The arguments of the kernels from `mptr` to `memory`."""
        return self.mptr, self.mo, self.mb, self.me, self.memory

    def over(self, pick: Ints) -> Floats:
        """Bytes every row uses under a choice, less its limit."""
        holders = np.repeat(np.arange(self.names.size), np.diff(self.mptr))
        amounts = self.memory[self.mo + pick[holders]]
        return spread(self.mb, self.me, amounts, self.limits.size) - self.limits

    def picked(self, choice: Sequence[int]) -> Ints | None:
        """A choice of all nodes of the problem in the numbering of the arrays; None if some of it is not left."""
        pick = np.zeros(self.names.size, dtype=np.int64)
        for i, (name, labels) in enumerate(zip(self.names.tolist(), self.labels, strict=True)):
            position = int(np.searchsorted(labels, choice[name]))
            if position == labels.size or labels[position] != choice[name]:
                return None
            pick[i] = position
        return pick

    def chosen(self, pick: Ints) -> dict[int, int]:
        """A choice in the numbering of the problem, by node."""
        return {int(name): int(self.labels[i][pick[i]]) for i, name in enumerate(self.names.tolist())}


def _memory(tied: Tied, rows: RowTable, names: list[int]) -> tuple[Ints, tuple[Ints, Ints, Ints, Floats]]:
    """`mptr`, and `mo`, `mb`, `me` and `memory`; pieces of one node with the same runs are one entry."""
    counts: list[int] = []
    starts: list[int] = []
    runs: list[tuple[int, int]] = []
    chunks: list[Floats] = []
    filled = 0
    spans: dict[int, tuple[tuple[int, int], ...]] = {}
    for piece, begin, end in zip(rows.pieces.tolist(), rows.begins.tolist(), rows.ends.tolist(), strict=True):
        spans[piece] = (*spans.get(piece, ()), (begin, end))
    for node in names:
        together: dict[tuple[tuple[int, int], ...], Floats] = {}
        for piece, usage in tied.carried.get(node, []):
            span = spans.get(piece, ())
            together[span] = together[span] + usage if span in together else usage
        count = 0
        for span, usage in together.items():
            chunks.append(usage)
            starts += [filled] * len(span)
            runs += span
            filled += usage.size
            count += len(span)
        counts.append(count)
    pairs = np.asarray(runs, dtype=np.int64).reshape(-1, 2)
    memory = np.concatenate([*chunks, np.zeros(0)])
    found = (
        np.asarray(starts, dtype=np.int64),
        np.ascontiguousarray(pairs[:, 0]),
        np.ascontiguousarray(pairs[:, 1]),
        memory,
    )
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]), found
