"""The solver's working copy of a problem: nodes, merged edges and remaining choices, changed in place by reductions.

Edges are as small as they can be written: what one end alone decides moves into the node, equal lines are kept once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from pbqp.identity import numbered
from pbqp.memory_rows import Indices
from pbqp.network.table_cache import TableCache
from pbqp.problem import Array, Problem
from pbqp.rounding import Rounding


@final
class Network:
    """A pairwise problem that shrinks: at most one table per pair of nodes, and only the choices still possible.

    `unary[n][i]` is the cost of the i-th remaining choice of node n, `labels[n][i]` that choice in the problem's own
    numbering (ascending), `tables[m][n]` the costs between m (rows) and n (columns); `tables[n][m]` is its transpose.
    `live` are the nodes not yet eliminated, `constant` the cost that no longer depends on any choice. Edges that are alike
    share one table, and what changes them alike keeps it so (`table_cache`). `rounding` is that of the problem, `lost` by
    how much a choice may cost more in the network beyond that.
    """

    def __init__(
        self,
        unary: list[Array],
        labels: list[Indices],
        tables: list[dict[int, Array]],
        rounding: Rounding,
        table_cache: TableCache | None = None,
    ) -> None:
        self.unary = unary
        self.labels = labels
        self.tables = tables
        self.live = set(range(len(unary)))
        self.constant = 0.0
        self.rounding, self.lost = rounding, 0.0
        self.table_cache = table_cache or TableCache()

    @staticmethod
    def of(problem: Problem, table_cache: TableCache | None = None) -> Network:
        """The whole problem as a network; parallel edges are merged, tables of single edges stay shared."""
        labels = [np.arange(costs.size) for costs in problem.node_costs]
        unary = [costs.copy() for costs in problem.node_costs]
        network = Network(unary, labels, [{} for _ in labels], problem.rounding, table_cache)
        for edge in problem.edges:
            network.add_table(*edge.nodes, edge.costs)
        return network

    def copy(self) -> Network:
        """An independent copy; tables are shared, because no reduction writes into a table."""
        unary, tables = [costs.copy() for costs in self.unary], [dict(row) for row in self.tables]
        twin = Network(unary, list(self.labels), tables, self.rounding, self.table_cache)
        twin.live = set(self.live)
        twin.constant, twin.lost = self.constant, self.lost
        return twin

    def keep(self, node: int, positions: Indices | NDArray[np.bool_]) -> None:
        """Keeps only the given positions of a node's remaining choices."""
        lines: Indices = (
            np.flatnonzero(positions) if positions.dtype == np.bool_ else np.asarray(positions, dtype=np.intp)
        )
        self.unary[node] = self.unary[node][lines]
        self.labels[node] = self.labels[node][lines]
        for other, table in self.tables[node].items():
            self._put(node, other, self.table_cache.taken(table, lines))

    def _put(self, m: int, n: int, costs: Array) -> None:
        self.tables[m][n] = costs
        self.tables[n][m] = self.table_cache.transposed(costs)

    def disconnect(self, m: int, n: int) -> None:
        """Removes the edge between two nodes."""
        del self.tables[m][n]
        del self.tables[n][m]

    def add_table(self, m: int, n: int, costs: Array) -> None:
        """Adds costs between two nodes, merged with the edge that is there."""
        self._put(m, n, self.table_cache.added(costs, self.tables[m][n]) if n in self.tables[m] else costs)

    def forbid_pairs(self, m: int, n: int, pairs: NDArray[np.bool_]) -> None:
        """Makes pairs of remaining choices of two neighbours impossible."""
        self._put(m, n, np.where(pairs, np.inf, self.tables[m][n]))

    def edges(self) -> Iterable[tuple[int, int, Array]]:
        """The remaining edges (m, n, table) with m < n, in ascending order."""
        for m in sorted(self.live):
            for n in sorted(self.tables[m]):
                if m < n:
                    yield m, n, self.tables[m][n]

    def value(self, choice: NDArray[np.intp]) -> float:
        """Cost of a choice, given in the problem's numbering for all live nodes; `inf` if a choice is not left."""
        picks: dict[int, int] = {}
        for node in self.live:
            pick = int(np.searchsorted(self.labels[node], choice[node]))
            if pick == self.labels[node].size or self.labels[node][pick] != choice[node]:
                return float("inf")
            picks[node] = pick
        total = self.constant + sum(float(self.unary[node][picks[node]]) for node in self.live)
        return total + sum(float(table[picks[m], picks[n]]) for m, n, table in self.edges())


def classes(table: Array) -> Indices:
    """For each line of a table, the number of the first-seen line equal to it; numbers follow the order of seeing."""
    seen: dict[bytes, int] = {}
    lines = np.ascontiguousarray(table)
    keys: list[bytes] = lines.view(np.dtype((np.void, lines.strides[0]))).ravel().tolist()
    return np.asarray([seen.setdefault(key, len(seen)) for key in keys], dtype=np.intp)


def firsts(of: Indices) -> Indices:
    """For each of the numbers that `classes` gives, the first line that has it."""
    found = np.zeros(int(of.max(initial=-1)) + 1, dtype=np.intp)
    found[of[::-1]] = np.arange(of.size - 1, -1, -1)
    return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CompactEdge:
    """A table between classes of choices: `costs[classes[0][p], classes[1][q]]` for choices p, q of its nodes."""

    nodes: tuple[int, int]
    classes: tuple[Indices, Indices]
    costs: Array


def normalise(network: Network) -> tuple[dict[int, Array], list[CompactEdge]]:
    """Unary costs and nonnegative compact edges that add up to the network's cost, less its constant.

    A choice without a possible partner costs infinitely much alone. Edges left with nothing are gone.
    """
    unary = {node: network.unary[node].copy() for node in sorted(network.live)}
    edges: list[CompactEdge] = []
    joined = list(network.edges())
    tables, table_of = numbered(table for _, _, table in joined)
    compact = list(map(_compact, tables))
    for (m, n, _), number in zip(joined, table_of, strict=True):
        row, column, ends, costs = compact[number]
        unary[m] += row
        unary[n] += column
        if costs.any():
            edges.append(CompactEdge(nodes=(m, n), classes=ends, costs=costs))
    return unary, edges


def _compact(table: Array) -> tuple[Array, Array, tuple[Indices, Indices], Array]:
    """The least cost of every line, then of every column, the classes of both, and the table between classes."""
    row = table.min(axis=1)
    rest = table - np.where(np.isfinite(row), row, 0.0)[:, None]
    column = rest.min(axis=0)
    rest = rest - np.where(np.isfinite(column), column, 0.0)
    of_rows, of_columns = classes(rest), classes(rest.T)
    return row, column, (of_rows, of_columns), rest[np.ix_(firsts(of_rows), firsts(of_columns))]
