"""Memory rows as sparse arrays: what every row uses under a choice, and which choices no row can afford."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from planner.problem import Array, Problem


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowTable:
    """The rows that some choice can violate.

    A piece is a vector of bytes per choice of one node that one or more rows count: `nodes[p]` is its node, `usages[p]`
    the bytes. `incidence[r, p]` is 1 where row r counts piece p; a row counts at most one piece of a node. `origin[r]`
    is the row's position in the problem and `limits[r]` its limit in bytes.
    """

    origin: NDArray[np.intp]
    limits: Array
    nodes: NDArray[np.intp]
    usages: tuple[Array, ...]
    incidence: sparse.csr_array
    pieces_of: dict[int, tuple[int, ...]]

    @staticmethod
    def of(problem: Problem) -> RowTable:
        """The table of a problem's rows, less those that no choice violates."""
        index: dict[tuple[int, int], int] = {}
        nodes: list[int] = []
        usages: list[Array] = []
        lows: list[float] = []
        highs: list[float] = []
        kept: list[int] = []
        columns: list[NDArray[np.intp]] = []

        def piece(node: int, usage: Array) -> int:
            number = index.setdefault((node, id(usage)), len(nodes))
            if number == len(nodes):
                nodes.append(node)
                usages.append(usage)
                possible = usage[np.isfinite(problem.node_costs[node])]
                lows.append(float(possible.min(initial=np.inf)))
                highs.append(float(possible.max(initial=-np.inf)))
            return number

        for position, row in enumerate(problem.rows):
            if len(set(row.nodes)) < len(row.nodes):
                merged: dict[int, Array] = {}
                for node, usage in zip(row.nodes, row.usages, strict=True):
                    merged[node] = merged[node] + usage if node in merged else usage
                terms = [piece(node, usage) for node, usage in merged.items()]
            else:
                terms = [piece(node, usage) for node, usage in zip(row.nodes, row.usages, strict=True)]
            if sum(highs[term] for term in terms) > row.limit:
                kept.append(position)
                columns.append(np.asarray(terms, dtype=np.intp))
        starts = np.cumsum([0, *(column.size for column in columns)])
        flat = np.concatenate(columns) if columns else np.zeros(0, dtype=np.intp)
        shape = (len(kept), len(nodes))
        incidence = sparse.csr_array((np.ones(flat.size), flat, starts), shape=shape)
        pieces_of: dict[int, tuple[int, ...]] = {}
        for number in np.unique(flat).tolist():
            pieces_of[nodes[number]] = (*pieces_of.get(nodes[number], ()), number)
        return RowTable(
            origin=np.asarray(kept, dtype=np.intp),
            limits=np.asarray([problem.rows[position].limit for position in kept], dtype=np.float64),
            nodes=np.asarray(nodes, dtype=np.intp),
            usages=tuple(usages),
            incidence=incidence,
            pieces_of=pieces_of,
        )

    @property
    def count(self) -> int:
        """Number of rows."""
        return int(self.limits.size)

    def used(self, choice: Sequence[int] | NDArray[np.intp]) -> Array:
        """Bytes every row uses under a choice of all nodes."""
        picked = [usage[choice[node]] for node, usage in zip(self.nodes.tolist(), self.usages, strict=True)]
        return np.asarray(self.incidence @ np.asarray(picked, dtype=np.float64))

    def least(self, labels: Sequence[NDArray[np.intp]]) -> Array:
        """Bytes every row uses at the least if each node picks among `labels` on its own."""
        lows = [usage[labels[node]].min() for node, usage in zip(self.nodes.tolist(), self.usages, strict=True)]
        return np.asarray(self.incidence @ np.asarray(lows, dtype=np.float64))

    def price(self, multipliers: Array) -> dict[int, Array]:
        """For each node in a priced row, the sum over its pieces of price times bytes, per choice."""
        prices = np.asarray(self.incidence.T @ multipliers)
        priced: dict[int, Array] = {}
        for number in np.flatnonzero(prices).tolist():
            node = int(self.nodes[number])
            extra = prices[number] * self.usages[number]
            priced[node] = priced[node] + extra if node in priced else extra
        return priced

    def affordable(self, labels: Sequence[NDArray[np.intp]]) -> dict[int, NDArray[np.bool_]] | None:
        """For nodes that lose some of their `labels`, which ones fit beside everyone else's least bytes.

        None where the rows leave some node without a choice.
        """
        room = self.limits - self.least(labels)
        if (room < 0).any():
            return None
        transposed = self.incidence.T.tocsr()
        keep: dict[int, NDArray[np.bool_]] = {}
        for number, node in enumerate(self.nodes.tolist()):
            rows = transposed.indices[transposed.indptr[number] : transposed.indptr[number + 1]]
            if rows.size == 0:
                continue
            bytes_of = self.usages[number][labels[node]]
            fits = bytes_of - bytes_of.min() <= room[rows].min()
            if not fits.all():
                keep[node] = fits & keep[node] if node in keep else fits
        return keep if all(fits.any() for fits in keep.values()) else None

    def subset(self, rows: NDArray[np.intp]) -> RowTable:
        """The table with only some of its rows."""
        incidence = sparse.csr_array(self.incidence[rows])
        used = set(np.unique(incidence.indices).tolist())
        pieces_of = {node: tuple(p for p in pieces if p in used) for node, pieces in self.pieces_of.items()}
        return RowTable(
            origin=self.origin[rows],
            limits=self.limits[rows],
            nodes=self.nodes,
            usages=self.usages,
            incidence=incidence,
            pieces_of={node: pieces for node, pieces in pieces_of.items() if pieces},
        )
