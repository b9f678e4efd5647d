"""A network and its memory as flat arrays, the form that the compiled kernels work on (see `kernels`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pbqp.compiled.kernels import Floats, Ints, Net, Uses
from pbqp.identity import numbered
from pbqp.memory_rows import spread
from pbqp.network.network import Indices, Network
from pbqp.rounding import Rounding
from pbqp.row_table import Carried, RowTable
from pbqp.smaller.smaller import Choice
from pbqp.vectors import summed_by

DEAR_TABLE = 1e3
"""Price of a forbidden pair, in the largest cost of the network: a bound with it is a bound without."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arrays:
    """The records of the kernels, and what leads back: `labels` of the nodes in `names`, among `nodes` of the problem.

    `transposed` are the tables of the net transposed, each in its place. Bytes are as in the rows; `limits` and `units`
    (what a row's overuse is measured in) belong to the rows, `rounding` and `lost` to the network.
    """

    nodes: int
    names: Ints
    labels: tuple[Indices, ...]
    constant: float
    rounding: Rounding
    lost: float
    net: Net
    transposed: Floats
    uses: Uses
    limits: Floats
    units: Floats

    @staticmethod
    def of(network: Network, rows: RowTable, carried: Carried) -> Arrays:
        """The arrays of a network, with the memory its nodes carry."""
        names = sorted(network.live)
        position = {node: i for i, node in enumerate(names)}
        size = np.asarray([network.unary[node].size for node in names], dtype=np.int64)
        joined = list(network.edges())
        distinct, table_of = numbered(table for _, _, table in joined)
        starts = np.cumsum([0, *(table.size for table in distinct)]).tolist()
        edges = [(position[m], position[n], starts[number]) for (m, n, _), number in zip(joined, table_of, strict=True)]
        unary = np.concatenate([*(network.unary[node] for node in names), np.zeros(0)])
        tables = np.concatenate([*(table.ravel() for table in distinct), np.zeros(0)])
        forbidden = np.isinf(tables)
        tables[forbidden] = 0.0
        largest = max(tables.max(initial=0.0), -tables.min(initial=0.0), np.abs(unary).max(initial=0.0), 1e-300)
        tables[forbidden] = DEAR_TABLE * largest
        transposed = np.empty_like(tables)
        for table, start in zip(distinct, starts, strict=False):
            lines, columns = table.shape
            turned = transposed[start : start + table.size].reshape(columns, lines)
            turned[:] = tables[start : start + table.size].reshape(lines, columns).T
        ends = np.asarray(edges, dtype=np.int64).reshape(-1, 3)
        order = np.argsort(np.concatenate([ends[:, 0], ends[:, 1]]), kind="stable")
        degree = np.bincount(ends[:, :2].ravel(), minlength=len(names))
        return Arrays(
            nodes=len(network.labels),
            names=np.asarray(names, dtype=np.int64),
            labels=tuple(network.labels[node] for node in names),
            constant=network.constant,
            rounding=network.rounding,
            lost=network.lost,
            net=Net(
                size=size,
                offset=np.cumsum(size) - size,
                unary=unary,
                first=np.ascontiguousarray(ends[:, 0]),
                second=np.ascontiguousarray(ends[:, 1]),
                table_at=np.ascontiguousarray(ends[:, 2]),
                tables=tables,
                edges=order % max(len(edges), 1),
                edges_at=np.concatenate([[0], np.cumsum(degree)]),
            ),
            transposed=transposed,
            uses=_uses(carried, rows, names),
            limits=rows.limits,
            units=np.maximum(np.abs(rows.limits), 1.0),
        )

    def unfolded(self) -> tuple[Network, RowTable, Carried]:
        """The same as a network of nodes 0 up, with the rows and the memory its nodes carry."""
        net, uses = self.net, self.uses
        sizes, offsets = net.size.tolist(), net.offset.tolist()
        unary = [net.unary[begin : begin + size] for begin, size in zip(offsets, sizes, strict=True)]
        network = Network(unary, [np.arange(size) for size in sizes], [{} for _ in sizes], self.rounding)
        network.constant, network.lost = self.constant, self.lost
        for m, n, begin in zip(net.first.tolist(), net.second.tolist(), net.table_at.tolist(), strict=True):
            network.add_table(m, n, net.tables[begin : begin + sizes[m] * sizes[n]].reshape(sizes[m], sizes[n]))
        holders = np.repeat(np.arange(net.size.size), np.diff(uses.uses_at))
        usages = [
            uses.bytes[begin : begin + sizes[holder]]
            for begin, holder in zip(uses.bytes_at.tolist(), holders.tolist(), strict=True)
        ]
        carried: dict[int, list[tuple[int, Floats]]] = {}
        for piece, holder in enumerate(holders.tolist()):
            carried.setdefault(holder, []).append((piece, usages[piece]))
        rows = RowTable(
            origin=np.arange(self.limits.size),
            limits=self.limits,
            nodes=holders,
            usages=tuple(usages),
            pieces=np.arange(holders.size),
            begins=uses.begin,
            ends=uses.end,
        )
        return network, rows, carried

    def narrowed(self, possible: NDArray[np.bool_]) -> Arrays:
        """The arrays with these choices only, at least one of every node."""
        net, uses = self.net, self.uses
        kept = np.split(possible, net.offset[1:])
        holders = np.repeat(np.arange(net.size.size), np.diff(uses.uses_at)).tolist()
        tables: list[Floats] = []
        for m, n, begin in zip(net.first.tolist(), net.second.tolist(), net.table_at.tolist(), strict=True):
            shape = (kept[m].size, kept[n].size)
            table = net.tables[begin : begin + shape[0] * shape[1]].reshape(shape)
            tables.append(table[kept[m]][:, kept[n]])
        chunks = [
            uses.bytes[begin : begin + kept[holder].size][kept[holder]]
            for begin, holder in zip(uses.bytes_at.tolist(), holders, strict=True)
        ]
        size = np.add.reduceat(possible.astype(np.int64), net.offset)
        return replace(
            self,
            labels=tuple(labels[keep] for labels, keep in zip(self.labels, kept, strict=True)),
            net=net._replace(
                size=size,
                offset=np.cumsum(size) - size,
                unary=net.unary[possible],
                table_at=np.cumsum([0, *(table.size for table in tables)], dtype=np.int64)[:-1],
                tables=np.concatenate([*(table.ravel() for table in tables), np.zeros(0)]),
            ),
            transposed=np.concatenate([*(table.T.ravel() for table in tables), np.zeros(0)]),
            uses=uses._replace(
                bytes_at=np.cumsum([0, *(chunk.size for chunk in chunks)], dtype=np.int64)[:-1],
                bytes=np.concatenate([*chunks, np.zeros(0)]),
            ),
        )

    def over(self, pick: Ints) -> Floats:
        """Bytes every row uses under a choice, less its limit."""
        uses = self.uses
        holders = np.repeat(np.arange(self.names.size), np.diff(uses.uses_at))
        amounts = uses.bytes[uses.bytes_at + pick[holders]]
        return spread(uses.begin, uses.end, amounts, self.limits.size) - self.limits

    def picked(self, choice: Sequence[int]) -> Ints | None:
        """A choice of all nodes of the problem in the numbering of the arrays; None if some of it is not left."""
        pick = np.zeros(self.names.size, dtype=np.int64)
        for i, (name, labels) in enumerate(zip(self.names.tolist(), self.labels, strict=True)):
            position = int(np.searchsorted(labels, choice[name]))
            if position == labels.size or labels[position] != choice[name]:
                return None
            pick[i] = position
        return pick

    @property
    def bound(self) -> float:
        """Infinite: nothing is lost."""
        return math.inf

    def lift(self, choice: Choice) -> Indices:
        """A choice in the numbering of the problem, right for the nodes that are here."""
        whole = np.zeros(self.nodes, dtype=np.intp)
        for i, name in enumerate(self.names.tolist()):
            whole[name] = self.labels[i][choice[i]]
        return whole


def _uses(carried: Carried, rows: RowTable, names: list[int]) -> Uses:
    """The memory that the nodes carry; pieces of one node with the same runs are one use."""
    counts: list[int] = []
    starts: list[int] = []
    runs: list[tuple[int, int]] = []
    chunks: list[Floats] = []
    filled = 0
    spans = rows.spans()
    for node in names:
        by_span = summed_by((spans.get(piece, ()), usage) for piece, usage in carried.get(node, ()))
        count = 0
        for span, usage in by_span.items():
            chunks.append(usage)
            starts += [filled] * len(span)
            runs += span
            filled += usage.size
            count += len(span)
        counts.append(count)
    pairs = np.asarray(runs, dtype=np.int64).reshape(-1, 2)
    return Uses(
        uses_at=np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]),
        bytes_at=np.asarray(starts, dtype=np.int64),
        begin=np.ascontiguousarray(pairs[:, 0]),
        end=np.ascontiguousarray(pairs[:, 1]),
        bytes=np.concatenate([*chunks, np.zeros(0)]),
    )
