"""Exact reductions: make a network smaller without losing its optimum, and map the answer back.

    forbidden    a choice with infinite cost, or whose every partner on some edge is forbidden, goes
    dominated    a goes if some b satisfies   c[a] - c[b] + sum over edges  min_q (E[a, q] - E[b, q])  >=  0
                 and, where memory rows count the node, usage[b] <= usage[a] in every row   (Goldstein's criterion)
    separable    an edge with E[p, q] = f[p] + g[q] moves into its nodes; a node with one choice is the usual case
    R0, R1, R2   a node with at most two neighbours is minimised out:  T[x, y] = min_p c[p] + E[p, x] + F[p, y]

`keep` names nodes that must stay, because a row counts them. Every step but R0-R2 only removes choices or moves costs,
so only R0-R2 have to be undone: the trail holds the eliminated node's costs, and `undo` picks its best choice given its
neighbours'. References: Scholz and Eckstein, "Register allocation for irregular architectures" (2002), for R0-R2;
Goldstein, Biophysical Journal 66 (1994), for dominance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heappop, heappush
from typing import final

import numpy as np
from numpy.typing import NDArray

from pbqp.network.network import Indices, Network, classes, firsts
from pbqp.network.table_cache import TableCache
from pbqp.problem import Array
from pbqp.rounding import UNIT

PAIR_BUDGET = 400_000
"""Largest number of (choice, choice, partner) triples looked at per edge in one dominance test."""
SEPARABLE_TOLERANCE = 1e-14
"""Relative size of what may be left of a separable edge: the rounding of two additions of doubles."""

UsageOf = Callable[[int], Array]
"""Bytes of a node's remaining choices, one line per piece (see `rows.RowTable`); no line where no row counts it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Eliminated:
    """A node minimised out: its costs and its tables to the neighbours it had."""

    node: int
    unary: Array
    labels: Indices
    neighbours: tuple[int, ...]
    neighbour_labels: tuple[Indices, ...]
    tables: tuple[Array, ...]


def undo(trail: list[Eliminated], choice: NDArray[np.intp]) -> None:
    """Fills in the choices of eliminated nodes, last eliminated first."""
    for step in reversed(trail):
        costs = step.unary
        for neighbour, labels, table in zip(step.neighbours, step.neighbour_labels, step.tables, strict=True):
            costs = costs + table[:, np.searchsorted(labels, choice[neighbour])]
        choice[step.node] = step.labels[int(costs.argmin())]


@final
class Reducer:
    """Reduces one network in place, keeping the trail to undo it and the count of every kind of step.

    Where it is `compiled`, all pairs of choices of nodes that no row counts are tested for dominance.
    """

    def __init__(
        self,
        network: Network,
        keep: Collection[int] = (),
        usage_of: UsageOf | None = None,
        *,
        compiled: bool = False,
    ) -> None:
        self.network = network
        self.compiled = compiled
        self.kept = frozenset(keep)
        self.usage_of = usage_of
        self.trail: list[Eliminated] = []
        self.counts: Counter[str] = Counter()
        self._changed: set[int] = set()

    def run(self, *, dominance: bool = True, eliminate: bool = True) -> bool:
        """Applies every reduction until none applies; False if some node is left without a choice."""
        network = self.network
        self._changed = set(network.live)
        while self._changed:
            network.table_cache.tidy()
            if not self.forbid(self._changed & network.live):
                return False
            touched, self._changed = self._changed & network.live, set()
            for node in sorted(touched):
                self._detach(node)
            if eliminate:
                self._eliminate_small()
            if dominance:
                for node in sorted(touched & network.live, key=lambda n: (network.unary[n].size, n)):
                    self._dominate(node)
        return bool(np.isfinite(network.constant))

    def forbid(self, nodes: Collection[int]) -> bool:
        """Removes forbidden choices, spreading from `nodes`; False if some node is left without a choice."""
        network = self.network
        waiting = sorted(nodes)
        queued = set(waiting)
        while waiting:
            node = waiting.pop()
            queued.discard(node)
            possible = np.isfinite(network.unary[node])
            for table in network.tables[node].values():
                possible &= network.table_cache.once("possible", (table,), partial(_possible, table))
            if possible.all():
                continue
            self.counts["forbidden"] += int(possible.size - possible.sum())
            network.keep(node, possible)
            if not possible.any():
                return False
            self._changed.update((node, *network.tables[node]))
            fresh = [other for other in network.tables[node] if other not in queued]
            waiting += fresh
            queued.update(fresh)
        return True

    def _detach(self, node: int) -> None:
        """Moves the separable edges of a node into the unary costs."""
        network = self.network
        for other, table in list(network.tables[node].items()):
            parts = network.table_cache.once("separate", (table,), partial(_separated, table))
            if parts is None:
                continue
            network.unary[node] = network.unary[node] + parts[0]
            network.unary[other] = network.unary[other] + parts[1]
            network.disconnect(node, other)
            network.lost += parts[2]
            if not network.rounding.whole:
                network.lost += 4 * UNIT * float(np.abs(table).max())
            self._changed.update((node, other))
            self.counts["separable"] += 1

    def _eliminate_small(self) -> None:
        """R0, R1 and R2 until every node left is kept or has three neighbours; smallest tables first."""
        network = self.network

        def work(node: int) -> int:
            product = network.unary[node].size
            for other in network.tables[node]:
                product *= network.unary[other].size
            return product

        ready = [(len(network.tables[n]), work(n), n) for n in network.live if n not in self.kept]
        ready = [entry for entry in ready if entry[0] <= 2]
        heapify(ready)
        while ready:
            degree, effort, node = heappop(ready)
            if node not in network.live or (degree, effort) != (len(network.tables[node]), work(node)):
                continue
            neighbours = self._minimise_out(node)
            self._changed.update(neighbours)
            if len(neighbours) == 2:
                self._detach(neighbours[0])
            for other in neighbours:
                if other not in self.kept and len(network.tables[other]) <= 2:
                    heappush(ready, (len(network.tables[other]), work(other), other))

    def _minimise_out(self, node: int) -> tuple[int, ...]:
        """Eliminates a node with at most two neighbours, which it returns."""
        network = self.network
        neighbours = tuple(sorted(network.tables[node]))
        tables = tuple(network.tables[node][other] for other in neighbours)
        unary = network.unary[node]
        self.trail.append(
            Eliminated(
                node=node,
                unary=unary,
                labels=network.labels[node],
                neighbours=neighbours,
                neighbour_labels=tuple(network.labels[other] for other in neighbours),
                tables=tables,
            )
        )
        for other in neighbours:
            network.disconnect(node, other)
        network.live.discard(node)
        self.counts[f"R{len(neighbours)}"] += 1
        step = ("minimise", unary.tobytes())
        if not neighbours:
            network.constant += float(unary.min())
        elif len(neighbours) == 1:
            cheapest = network.table_cache.once(step, tables, lambda: (unary[:, None] + tables[0]).min(axis=0))
            network.unary[neighbours[0]] = network.unary[neighbours[0]] + cheapest
        else:
            joined = network.table_cache.once(step, tables, lambda: min_plus(tables[0] + unary[:, None], tables[1]))
            network.add_table(neighbours[0], neighbours[1], joined)
        return neighbours

    def _dominate(self, node: int) -> None:
        """Removes the dominated choices of one node."""
        network = self.network
        unary = network.unary[node]
        if unary.size == 1:
            return
        usage = self.usage_of(node) if self.usage_of is not None else np.zeros((0, unary.size))
        tables = tuple(network.tables[node].values())
        step = ("dominate", self.compiled, unary.tobytes(), usage.tobytes())
        removed = network.table_cache.once(step, tables, partial(self._test, unary, tables, usage))
        if removed.any():
            self.counts["dominated"] += int(removed.sum())
            network.keep(node, ~removed)
            self._changed.update((node, *network.tables[node]))

    def _test(self, unary: Array, tables: tuple[Array, ...], usage: Array) -> NDArray[np.bool_]:
        """Which choices of a node with these costs and bytes are dominated."""
        if self.compiled and not usage.size:
            from pbqp.compiled.dominance import dominated

            return dominated(unary, tables)
        return _dominated(unary, tables, usage, self.network.table_cache)


def _possible(table: Array) -> NDArray[np.bool_]:
    """Which lines of a table hold a cost that is not forbidden."""
    return table.min(axis=1) < np.inf


def _separated(table: Array) -> tuple[Array, Array, float] | None:
    """f and g of a table that is f[p] + g[q], and by how much it may be less than their sum; None for one that is not."""
    size = np.abs(table).max()
    if not np.isfinite(size):
        return None
    first, second = table[:, :1], table[:1]
    rest = table - first - (second - second[0, 0])
    left = float(np.abs(rest).max())
    if left > SEPARABLE_TOLERANCE * size:
        return None
    return first[:, 0], second[0] - second[0, 0], left


def _dominated(unary: Array, tables: tuple[Array, ...], usage: Array, table_cache: TableCache) -> NDArray[np.bool_]:
    """Which choices of a node with these costs and bytes, a line per row, are dominated by one that stays."""
    lows = unary + sum((table.min(axis=1) for table in tables), start=np.zeros(unary.size))
    widest = max((table.shape[1] for table in tables), default=1)
    count = max(1, min(unary.size, PAIR_BUDGET // (unary.size * widest)))
    better = np.argsort(lows, kind="stable")[:count]
    # Two forbidden choices compare as NaN, and none of them dominates.
    with np.errstate(invalid="ignore"):
        margin = unary[:, None] - unary[better]
        for table in tables:
            margin = margin + worst_regret(table, better, table_cache)
    wins = margin >= 0
    for line in usage:
        wins &= line[:, None] >= line[better]
    wins[better, np.arange(count)] = False
    removed = np.zeros(unary.size, dtype=bool)
    for position in np.flatnonzero(wins.any(axis=1)).tolist():
        removed[position] = bool((wins[position] & ~removed[better]).any())
    return removed


def worst_regret(table: Array, better: Indices, table_cache: TableCache | None = None) -> Array:
    """min over q of E[a, q] - E[b, q] for every a and every b in `better`; partners forbidden to both do not count."""
    if table.size * better.size > 100_000:
        whole = table
        of, table = (
            table_cache.once("distinct", (whole,), lambda: _distinct(whole)) if table_cache else _distinct(whole)
        )
        if table.shape[0] < of.size:
            wanted, position = np.unique(of[better], return_inverse=True)
            return worst_regret(table, wanted)[of][:, position]
    if np.isfinite(table).all():
        return (table[:, None, :] - table[better][None, :, :]).min(axis=2)
    with np.errstate(invalid="ignore"):
        differences = table[:, None, :] - table[better][None, :, :]
    return np.nan_to_num(np.fmin.reduce(differences, axis=2), nan=np.inf, posinf=np.inf, neginf=-np.inf)


def _distinct(table: Array) -> tuple[Indices, Array]:
    """The class of every line of a table, and its distinct lines and columns."""
    table = table[:, firsts(classes(table.T))]
    of = classes(table)
    return of, table[firsts(of)]


def min_plus(left: Array, right: Array) -> Array:
    """T[x, y] = min over p of left[p, x] + right[p, y]: the matrix product in which + is min and * is +.

    Large tables are multiplied once per distinct column and spread out again.
    """
    if left.size * right.shape[1] <= 30_000:
        return (left[:, :, None] + right[:, None, :]).min(axis=0)
    of_left, of_right = classes(left.T), classes(right.T)
    left = left[:, firsts(of_left)]
    right = right[:, firsts(of_right)]
    result = left[0][:, None] + right[0]
    scratch = np.empty_like(result)
    for first, second in zip(left[1:], right[1:], strict=True):
        np.add(first[:, None], second, out=scratch)
        np.minimum(result, scratch, out=result)
    return result[np.ix_(of_left, of_right)]
