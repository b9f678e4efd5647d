"""Exact minimisation of a pairwise problem by eliminating one node at a time (min-plus bucket elimination).

    T[x_N(n)] = min over x_n of   unary[n][x_n] + sum of the tables that n is in
    choice of n = argmin of the same sum, once the choices of its neighbours N(n) are known

The order is greedy by the size of the table an elimination leaves (ties: least fill, then the smaller node), so nodes
of few neighbours go first and hubs stay last. Cost: one table over N(n) per node, so the method is exact whatever the
costs are, but only affordable where every table stays under `max_entries` numbers.
Reference: Dechter, "Bucket elimination: a unifying framework for reasoning", Artificial Intelligence 113 (1999).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from pbqp.network.network import Network
from pbqp.problem import Array

MAX_ENTRIES = 2_000_000
"""Largest table an elimination may leave, in numbers of 8 bytes."""
MAX_WORK = 2_000_000_000
"""Most additions one elimination of a whole network may take: some seconds of numpy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """An elimination order, the size of its largest table, and the additions it takes."""

    nodes: tuple[int, ...]
    entries: float
    work: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Factor:
    """A table over several nodes, one dim each, in ascending order of the nodes."""

    nodes: tuple[int, ...]
    table: Array


def plan_order(network: Network, last: Collection[int] = (), max_entries: float = math.inf) -> Order:
    """The greedy order that eliminates every live node but those in `last`; cut short once a table exceeds the cap."""
    around = {node: set(network.tables[node]) for node in network.live}
    size = {node: math.log(network.unary[node].size) for node in network.live}

    def key(node: int) -> tuple[float, int, int]:
        others = around[node]
        return (sum(size[other] for other in others), len(others), node)

    heap = [key(node) for node in network.live if node not in last]
    heapify(heap)
    order: list[int] = []
    entries = work = 0.0
    while heap:
        entry = heappop(heap)
        node = entry[2]
        if node not in around or entry != key(node):
            continue
        others = around.pop(node)
        order.append(node)
        entries = max(entries, math.exp(entry[0]))
        work += math.exp(entry[0] + size[node]) * (1 + len(others))
        if entries > max_entries:
            break
        for other in others:
            around[other] |= others
            around[other] -= {node, other}
        affected = set(others)
        for other in affected:
            if other not in last:
                heappush(heap, key(other))
    return Order(nodes=tuple(order), entries=entries, work=work)


def affordable(order: Order) -> bool:
    """Whether an order stays under the caps of this module."""
    return order.entries <= MAX_ENTRIES and order.work <= MAX_WORK


def eliminate(network: Network, order: Order, choice: NDArray[np.intp]) -> float:
    """The minimum over all live nodes as computed; `inf` if none is possible. Writes their best choices into `choice`."""
    buckets, rest = _forward(network, order)
    value = network.constant + sum(float(factor.table) for factor in rest)
    if math.isinf(value):
        return value
    _backward(network, buckets, {}, choice)
    return value


def proven(network: Network, minimum: float) -> float:
    """What every choice costs at the least if `minimum` is that of its network, as computed."""
    error = 0.0 if network.rounding.whole else network.rounding.error(minimum)
    return minimum - network.lost - error


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AllBut:
    """`totals[p]`: the minimum over all other live nodes for choice p of `node`, of those that are left of it."""

    network: Network
    node: int
    totals: Array
    buckets: list[tuple[int, list[Factor]]]

    def write(self, position: int, choice: NDArray[np.intp]) -> None:
        """Writes a choice of the node, and the best ones of all other live nodes with it, into `choice`."""
        choice[self.node] = self.network.labels[self.node][position]
        _backward(self.network, self.buckets, {self.node: position}, choice)


def eliminate_all_but(network: Network, order: Order, node: int) -> AllBut:
    """What each choice of `node` costs at the least; `order` leaves out only that node."""
    buckets, rest = _forward(network, order)
    totals = network.unary[node] + network.constant
    for factor in rest:
        totals = totals + factor.table
    return AllBut(network=network, node=node, totals=totals, buckets=buckets)


def _forward(network: Network, order: Order) -> tuple[list[tuple[int, list[Factor]]], list[Factor]]:
    """Each node with the factors it was eliminated from, in order, and the factors left at the end."""
    holding: dict[int, dict[int, Factor]] = {node: {} for node in network.live}
    serial = 0
    for m, n, table in network.edges():
        holding[m][serial] = holding[n][serial] = Factor(nodes=(m, n), table=table)
        serial += 1
    rest: list[Factor] = []
    buckets: list[tuple[int, list[Factor]]] = []
    for node in order.nodes:
        held = holding.pop(node)
        factors = list(held.values())
        buckets.append((node, factors))
        for number, factor in held.items():
            for other in factor.nodes:
                if other != node:
                    del holding[other][number]
        scope = tuple(sorted({other for factor in factors for other in factor.nodes if other != node}))
        made = Factor(nodes=scope, table=_minimise(network, node, factors, scope))
        for other in scope:
            holding[other][serial] = made
        serial += 1
        if not scope:
            rest.append(made)
    leftovers: dict[int, Factor] = {}
    for held in holding.values():
        leftovers.update(held)
    return buckets, [*rest, *leftovers.values()]


def _backward(
    network: Network,
    buckets: list[tuple[int, list[Factor]]],
    picks: dict[int, int],
    choice: NDArray[np.intp],
) -> None:
    """Writes the best choices of all nodes that were eliminated into `choice`, given the `picks` of those left."""
    for node, factors in reversed(buckets):
        costs = network.unary[node]
        for factor in factors:
            costs = costs + factor.table[tuple(picks.get(other, slice(None)) for other in factor.nodes)]
        picks[node] = int(costs.argmin())
        choice[node] = network.labels[node][picks[node]]


def _minimise(network: Network, node: int, factors: list[Factor], scope: tuple[int, ...]) -> Array:
    """The sum of a node's costs and factors, minimised over the node, as a table over `scope`."""
    unary = network.unary[node]
    if not scope:
        return np.asarray((unary + sum(factor.table for factor in factors)).min())
    shape = tuple(network.unary[other].size for other in scope)
    lined: list[Array] = []
    for factor in sorted(factors, key=lambda factor: factor.table.size):
        position = factor.nodes.index(node)
        table = np.moveaxis(factor.table, position, 0)
        dims = tuple(network.unary[other].size if other in factor.nodes else 1 for other in scope)
        lined.append(table.reshape((unary.size, *dims)))
    if math.prod(shape) * unary.size <= 30_000:
        total = unary.reshape((-1, *(1,) * len(scope)))
        for table in lined:
            total = total + table
        return np.broadcast_to(total.min(axis=0), shape)
    result = np.full(shape, np.inf)
    for position in range(unary.size):
        part = unary[position]
        for table in lined:
            part = part + table[position]
        np.minimum(result, part, out=result)
    return result
