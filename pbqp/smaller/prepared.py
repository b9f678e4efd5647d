"""A problem made ready for a method: its network reduced under some of the rows, and the way back to full choices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import final

import numpy as np

from pbqp.network.network import Indices, Network
from pbqp.network.table_cache import TableCache
from pbqp.problem import Array, Problem
from pbqp.row_table import RowTable
from pbqp.smaller.reductions import Eliminated, Reducer, undo
from pbqp.smaller.smaller import Choice
from pbqp.solution import Detail

REDUCTION_ROUNDS = 5
"""How often rows and costs take turns in removing choices; each round only ever removes more."""


@final
class Prepared:
    """A reduced network under `rows`, with the trail of what was reduced. `possible` is False where nothing is left.

    A `Smaller` form of the problem; a choice of it is one of all nodes, right for those that are live.
    """

    bound = math.inf
    """Only choices are left out that some other is as good as, or that have no place in any within the rows."""

    def __init__(self, problem: Problem, rows: RowTable, table_cache: TableCache | None = None) -> None:
        self.problem = problem
        self.rows = rows
        self.network = Network.of(problem, table_cache)
        self.trail: list[Eliminated] = []
        self.counts: dict[str, int] = {}
        self.possible = True

    def fit(self) -> bool:
        """Removes choices that some row cannot afford beside everyone else's least; False if a node has none left."""
        for _ in range(REDUCTION_ROUNDS if self.rows.count else 0):
            keep = self.rows.affordable(self.network.labels)
            if keep is None:
                self.possible = False
                return False
            if not keep:
                return True
            for node, positions in keep.items():
                self.count("unaffordable", int((~positions).sum()))
                self.network.keep(node, positions)
        return True

    def reduce(self, *, dominance: bool = True, eliminate: bool = True, compiled: bool = False) -> bool:
        """Applies the exact reductions, of which dominance may be compiled; nodes in a row stay.

        False if some node has no choice left.
        """
        if not self.possible:
            return False
        reducer = Reducer(self.network, keep=self.rows.pieces_of, usage_of=self._usage, compiled=compiled)
        self.possible = reducer.run(dominance=dominance, eliminate=eliminate)
        self.trail += reducer.trail
        for name, count in reducer.counts.items():
            self.count(name, count)
        return self.possible

    def count(self, name: str, number: int) -> None:
        """Adds to the count of one kind of reduction."""
        self.counts[name] = self.counts.get(name, 0) + number

    def _usage(self, node: int) -> Array:
        pieces = self.rows.pieces_of.get(node, ())
        return np.asarray([self.rows.usages[piece][self.network.labels[node]] for piece in pieces])

    def complete(self, picks: Mapping[int, int]) -> Indices:
        """The choice of all nodes that follows from `picks`, the choices (problem's numbering) of the live ones."""
        choice = np.zeros(len(self.network.labels), dtype=np.intp)
        for node, pick in picks.items():
            choice[node] = pick
        return self.lift(choice)

    def lift(self, choice: Choice) -> Indices:
        """The choice of all nodes that follows from that of the live ones."""
        whole = np.array(choice, np.intp)
        undo(self.trail, whole)
        return whole

    @property
    def detail(self) -> Detail:
        """Counts of the reductions and what they left."""
        network = self.network
        left = sum(network.unary[node].size for node in network.live)
        return {**self.counts, "nodes_left": len(network.live), "choices_left": left, "rows_used": self.rows.count}
