"""Elimination of all nodes within the room that messages leave between their bound and a target.

Messages make of the cost of a choice x their bound and slack that is nowhere below zero:

    cost(x)  =  bound + sum over nodes  s_n(x_n) + sum over edges  s_mn(x_m, x_n)

So where x costs less than the target, no part of its slack is above the room, target - bound. Nodes are minimised out one
by one, those of the smallest tables first; of each table that this makes

- its least entry goes to the bound, and the room is smaller by that: what messages cannot see are mostly small cycles, and
  those are closed first, which leaves little room for the large tables that come last;
- entries above the room go, and choices that have no entry left.

Where the room gets used up, nothing costs less than the target. Where all nodes are eliminated, the cheapest choice is
found. Where it ends before, as a table would be too large, the bound holds.
References: Dechter, "Bucket elimination: a unifying framework for reasoning", Artificial Intelligence 113 (1999); Kask and
Dechter, "A general scheme for automatic generation of search heuristics from specification dependencies", Artificial
Intelligence 129 (2001), for bounds of what is yet to be added.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import final

import numpy as np
from numpy.typing import NDArray

from pbqp.compiled.arrays import Arrays
from pbqp.compiled.kernels import Floats, Ints
from pbqp.compiled.multiplicative_weights import Dual
from pbqp.exact.elimination import plan_order
from pbqp.network.network import Network

MOST_ENTRIES, MOST_HELD = 4_000_000, 40_000_000
"""The largest table, and all tables together, in numbers of 8 bytes."""
MOST_PLANNED = 10_000_000
"""The largest table if no choice went, above which an end is unlikely."""
MOST_WORK = 2_000_000_000
"""Most additions: some seconds."""
PLAIN = 30_000
"""Sums of so many numbers are taken at once; larger ones only where there is room."""
ROWS = 1 << 16
"""Numbers summed at a time of those."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Eliminated:
    """A bound of all choices, at most the target, and the cheapest choice (positions), if it was found below the target."""

    bound: float
    pick: Ints | None


@dataclass(slots=True, eq=False)
class _Factor:
    """Slack of several nodes, ascending, a dim each."""

    nodes: tuple[int, ...]
    table: Floats


@dataclass(frozen=True, slots=True, eq=False)
class _Bucket:
    """What a node was minimised out of: its slack, and that of factors by the choices left then (`labels`)."""

    node: int
    unary: Floats
    labels: dict[int, Ints]
    factors: tuple[_Factor, ...]

    def best(self, pick: Ints) -> int:
        """The best choice of the node beside those of the others."""
        costs = self.unary
        for factor in self.factors:
            at = tuple(
                slice(None) if other == self.node else int(np.searchsorted(self.labels[other], pick[other]))
                for other in factor.nodes
            )
            costs = costs + factor.table[at]
        return int(self.labels[self.node][int(costs.argmin())])


def is_likely(network: Network) -> bool:
    """Whether all nodes of a network can mostly be eliminated."""
    return plan_order(network, max_entries=MOST_PLANNED).entries <= MOST_PLANNED


def eliminate(arrays: Arrays, dual: Dual, target: float) -> Eliminated:
    """What elimination proves within the slack of the last messages, or finds below the target."""
    run = _Elimination(arrays, dual, target)
    done = run.run()
    if run.room < 0:
        return Eliminated(bound=target, pick=None)
    if not done:
        return Eliminated(bound=target - run.room, pick=None)
    pick = np.zeros(len(run.labels), dtype=np.int64)
    for bucket in reversed(run.buckets):
        pick[bucket.node] = bucket.best(pick)
    return Eliminated(bound=target - run.room, pick=pick)


@final
class _Elimination:
    """One elimination: what is left of the `room`, of the choices (`labels`), and of slack."""

    def __init__(self, arrays: Arrays, dual: Dual, target: float) -> None:
        slack = dual.slack()
        net = arrays.net
        self.labels: list[Ints] = [np.arange(size) for size in net.size.tolist()]
        self.unary = list(np.split(slack.unary, net.offset[1:]))
        self.room = target - slack.bound + arrays.rounding.error(target)
        self.holding: list[dict[int, _Factor]] = [{} for _ in self.labels]
        self.buckets: list[_Bucket] = []
        self.work = self.held = 0
        self._serial = 0
        for edge, ends in enumerate(zip(net.first.tolist(), net.second.tolist(), strict=True)):
            self._hold(ends, slack.table(edge))

    def run(self) -> bool:
        """Eliminates the nodes, as long as there is room; whether that were all, and there is room."""
        heap = [(self._size(node), node) for node in range(len(self.labels))]
        heapify(heap)
        waiting = set(range(len(self.labels)))
        while waiting and self.room >= 0:
            size, node = heappop(heap)
            if node not in waiting:
                continue
            now = self._size(node)
            if now != size:
                heappush(heap, (now, node))
                continue
            if self.work > MOST_WORK or self.held > MOST_HELD or size > MOST_ENTRIES:
                return False
            waiting.discard(node)
            for other in self._minimise(node):
                heappush(heap, (self._size(other), other))
        return self.room >= 0

    def _hold(self, nodes: tuple[int, ...], table: Floats) -> None:
        """Adds a factor."""
        factor = _Factor(nodes, table)
        self.held += table.size
        for node in nodes:
            self.holding[node][self._serial] = factor
        self._serial += 1

    def _scope(self, node: int) -> tuple[int, ...]:
        """The other nodes of a node's factors, ascending."""
        factors = self.holding[node].values()
        return tuple(sorted({other for factor in factors for other in factor.nodes if other != node}))

    def _size(self, node: int) -> int:
        """Entries of the table that is left by eliminating a node."""
        return math.prod(self.labels[other].size for other in self._scope(node))

    def _minimise(self, node: int) -> tuple[int, ...]:
        """Replaces the factors of a node by one over their other nodes, which it returns."""
        unary, scope = self.unary[node], self._scope(node)
        factors = self._taken(list(self.holding[node].items()))
        names = {other: self.labels[other] for other in (*scope, node)}
        self.buckets.append(_Bucket(node, unary, names, tuple(_Factor(f.nodes, f.table) for f in factors)))
        if not scope:
            self.room -= float(sum((factor.table for factor in factors), start=unary).min())
            return ()
        shape = tuple(self.labels[other].size for other in scope)
        inside, ends = np.zeros(shape), np.zeros(shape)
        for factor in self._inside(scope):
            inside += _spread(factor.table, factor.nodes, scope)
        for other in scope:
            ends += _spread(self.unary[other], (other,), scope)
        table = inside + self._least(unary, [_lines(factor, node) for factor in factors], scope, inside + ends)
        fits = table + ends <= self.room
        if not fits.any():
            self.room = -1.0
            return ()
        table[~fits] = np.inf
        low = float(table.min())
        self.room -= low
        self._hold(scope, table - low)
        for dim, other in enumerate(scope):
            left = np.asarray(fits.any(axis=tuple(d for d in range(len(scope)) if d != dim)))
            if not left.all():
                self._keep(other, left)
        return scope

    def _least(self, unary: Floats, lines: Sequence[_Factor], scope: tuple[int, ...], beside: Floats) -> Floats:
        """min over a node's choices, the last dim of `lines`, of all slack; infinite where there is no room `beside`."""
        self.work += beside.size * (len(lines) + len(scope))
        if beside.size * unary.size <= PLAIN:
            total = np.broadcast_to(unary, (*beside.shape, unary.size))
            for line in lines:
                total = total + _spread(line.table, line.nodes, scope)
            return total.min(axis=-1)
        low = beside + float(unary.min())
        for line in lines:
            low += _spread(line.table.min(axis=-1), line.nodes, scope)
        places = np.flatnonzero(low <= self.room)
        self.work += places.size * unary.size * len(lines)
        least = np.full(beside.size, np.inf)
        flat = [line.table.reshape(-1, unary.size) for line in lines]
        step = max(1, ROWS // unary.size)
        for start in range(0, places.size, step):
            some = places[start : start + step]
            at = dict(zip(scope, np.unravel_index(some, beside.shape), strict=True))
            total = unary
            for line, rows in zip(lines, flat, strict=True):
                where = tuple(at[other] for other in line.nodes)
                total = total + rows[np.ravel_multi_index(where, line.table.shape[:-1])]
            least[some] = total.min(axis=1)
        return least.reshape(beside.shape)

    def _inside(self, scope: tuple[int, ...]) -> list[_Factor]:
        """Takes away the factors over some of these nodes only."""
        found: dict[int, _Factor] = {}
        for node in scope:
            found.update((n, f) for n, f in self.holding[node].items() if set(f.nodes) <= set(scope))
        return self._taken(list(found.items()))

    def _taken(self, numbered: Sequence[tuple[int, _Factor]]) -> list[_Factor]:
        """Takes away some factors."""
        for number, factor in numbered:
            for node in factor.nodes:
                del self.holding[node][number]
        return [factor for _, factor in numbered]

    def _keep(self, node: int, left: NDArray[np.bool_]) -> None:
        """Leaves a node with these of its choices."""
        self.labels[node] = self.labels[node][left]
        self.unary[node] = self.unary[node][left]
        for factor in self.holding[node].values():
            factor.table = np.compress(left, factor.table, axis=factor.nodes.index(node))


def _spread(table: Floats, nodes: Sequence[int], scope: Sequence[int]) -> Floats:
    """A table over some of the nodes of a scope with a dim for every node of it; further dims stay last."""
    sizes = dict(zip(nodes, table.shape, strict=False))
    return table.reshape((*(sizes.get(node, 1) for node in scope), *table.shape[len(nodes) :]))


def _lines(factor: _Factor, node: int) -> _Factor:
    """A factor with the dim of one node, no longer among its `nodes`, last."""
    table = np.ascontiguousarray(np.moveaxis(factor.table, factor.nodes.index(node), -1))
    return _Factor(tuple(other for other in factor.nodes if other != node), table)
