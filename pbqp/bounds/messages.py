"""A lower bound for large networks by message passing (TRW-S), and the choices it rules out.

Messages move costs along edges without changing the total of any choice. For a fixed order of the nodes, a sweep visits
every node i, sums its costs and the messages it got, shares that sum evenly (weight 1 / max(edges forward, edges
backward)) among the edges ahead, and sends along each   M_ij[x_j] = min over x_i   share_i[x_i] - M_ji[x_i] + E[x_i,
x_j]. What is left on nodes and edges is never negative, so the minima taken out on the way add up to a lower bound; on
a tree one forward and one backward sweep reach the optimum. At a node i in the backward sweep

    F_i (taken out by the forward sweep before i)  +  B_i (by the backward sweep after i)  +  sum at i of choice a

bounds the cost of every answer with x_i = a: choices whose bound is above the best known value are pruned.
Reference: Kolmogorov, "Convergent tree-reweighted message passing for energy minimization", PAMI 28 (2006).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import numpy as np
from numpy.typing import NDArray

from pbqp.network.network import Indices, Network, normalise
from pbqp.network.table_cache import TableCache
from pbqp.problem import Array


@final
class Wire:
    """One edge with its two messages; `first` comes before `second` in the order of the nodes.

    Wires that are alike share their costs and classes, by the table cache.
    """

    __slots__ = (
        "backward",
        "checked",
        "costs",
        "ends",
        "finite",
        "first",
        "forward",
        "groups",
        "low",
        "offer",
        "second",
        "table_cache",
    )

    def __init__(
        self, first: int, second: int, ends: tuple[Indices, Indices], costs: Array, table_cache: TableCache
    ) -> None:
        self.first, self.second, self.table_cache = first, second, table_cache
        self.forward = np.zeros(ends[1].size)
        self.backward = np.zeros(ends[0].size)
        self.offer = np.zeros(ends[0].size)
        self.low = 0.0
        self._set(ends, costs)

    def _set(self, ends: tuple[Indices, Indices], costs: Array) -> None:
        """Takes over classes and costs, dropping classes that no choice is in."""
        made = self.table_cache.once("wire", (*ends, costs), lambda: _renumbered(ends, costs))
        self.ends, self.costs, self.groups, self.finite = made
        self.checked = self.finite

    def prune(self, first: Indices | None, second: Indices | None) -> None:
        """Forgets the choices of each end that are not among these; None keeps all."""
        ends = self.ends
        if first is not None:
            self.backward = self.backward[first]
            self.offer = self.offer[first]
            ends = (self.table_cache.taken(ends[0], first), ends[1])
        if second is not None:
            self.forward = self.forward[second]
            ends = (ends[0], self.table_cache.taken(ends[1], second))
        self._set(ends, self.costs)

    def per_class(self, dim: int, values: Array) -> Array:
        """The least value within each class of one end's choices."""
        group = self.groups[dim]
        return values if group is None else np.minimum.reduceat(values[group[0]], group[1])

    def send(self, dim: int, offer: Array) -> Array:
        """min over the choices of end `dim` of offer + costs, for every choice of the other end."""
        offer = self.per_class(dim, offer)
        if dim == 0:
            message = np.minimum.reduce(self.costs + offer[:, None], axis=0)
        else:
            message = np.minimum.reduce(self.costs + offer, axis=1)
        return message if self.groups[1 - dim] is None else message[self.ends[1 - dim]]

    def given(self, pick: int) -> Array:
        """Costs of every choice of the second end when the first end picks `pick`."""
        return self.costs[self.ends[0][pick]][self.ends[1]]


LabelGroups = tuple[Indices, Indices] | None
"""The choices of one end in the order of their classes, and where each class starts; None for classes of one choice."""


def _renumbered(
    ends: tuple[Indices, Indices], costs: Array
) -> tuple[tuple[Indices, Indices], Array, list[LabelGroups], bool]:
    """Classes numbered anew without those that no choice is in, the costs between them, the groups of both ends, and
    whether no cost is infinite.
    """
    renumbered: list[Indices] = []
    for dim, end in enumerate(ends):
        used = np.bincount(end, minlength=costs.shape[dim]) > 0
        if used.all():
            renumbered.append(end)
        else:
            costs = np.compress(used, costs, axis=dim)
            renumbered.append((np.cumsum(used) - 1)[end])
    groups: list[LabelGroups] = []
    for end, count in zip(renumbered, costs.shape, strict=True):
        if end.size == count and (end == np.arange(count)).all():
            groups.append(None)
        else:
            order = np.argsort(end, kind="stable")
            groups.append((order, np.searchsorted(end[order], np.arange(count))))
    return (renumbered[0], renumbered[1]), np.ascontiguousarray(costs), groups, bool(np.isfinite(costs).all())


@final
class Messages:
    """The messages of a network; `extra`, the prices of memory rows, adds to its costs and may change at any time, and
    with it what the bounds are lowered by, `rounding`.
    """

    def __init__(self, network: Network) -> None:
        self.constant, self._lost = network.constant, network.lost
        self.rounding = network.rounding
        self.unary, edges = normalise(network)
        self.extra: dict[int, Array] = {}
        self.order = sorted(self.unary)
        self.outgoing: dict[int, list[Wire]] = {node: [] for node in self.order}
        self.incoming: dict[int, list[Wire]] = {node: [] for node in self.order}
        for edge in edges:
            wire = Wire(*edge.nodes, edge.classes, edge.costs, network.table_cache)
            self.outgoing[wire.first].append(wire)
            self.incoming[wire.second].append(wire)
        self.weight = {node: 1.0 / max(len(self.outgoing[node]), len(self.incoming[node]), 1) for node in self.order}
        self.bound = -np.inf
        self.bounds: dict[int, Array] = {}

    def _total(self, node: int) -> Array:
        total = self.unary[node] + self.extra[node] if node in self.extra else self.unary[node].copy()
        for wire in self.outgoing[node]:
            total += wire.backward
        for wire in self.incoming[node]:
            total += wire.forward
        return total

    def sweep(self) -> float:
        """The lower bound of one forward and one backward sweep; kept as `bound`, per choice as `bounds`."""
        taken = self.constant
        before: dict[int, float] = {}
        for node in self.order:
            before[node] = taken
            total = self._total(node)
            least = float(total[total.argmin()])
            taken += least
            share = (total - least) * self.weight[node]
            for wire in self.outgoing[node]:
                wire.offer = share - wire.backward
                message = wire.send(0, wire.offer)
                wire.low = float(message[message.argmin()])
                taken += wire.low
                wire.forward = message - wire.low
        after = 0.0
        error = self._lost + self.rounding.error(taken)
        credit = dict.fromkeys(self.order, 0.0)
        for node in reversed(self.order):
            after += credit[node]
            total = self._total(node)
            self.bounds[node] = total + (before[node] + after - error)
            least = float(total[total.argmin()])
            after += least
            share = (total - least) * self.weight[node]
            for wire in self.incoming[node]:
                message = wire.send(1, share - wire.forward)
                low = float(message[message.argmin()])
                credit[wire.first] += low
                wire.backward = message - low
        self.bound = self.constant + after - error
        return self.bound

    def decode(self) -> dict[int, int]:
        """A choice (as positions) read off the messages: each node's best, given those before it."""
        picks: dict[int, int] = {}
        for node in self.order:
            total = self.unary[node] + self.extra[node] if node in self.extra else self.unary[node].copy()
            for wire in self.outgoing[node]:
                total += wire.backward
            for wire in self.incoming[node]:
                total += wire.given(picks[wire.first])
            picks[node] = int(total.argmin())
        return picks

    def above(self, upper: float, offset: float) -> dict[int, Indices]:
        """For nodes that lose some: the positions of the choices whose bound plus `offset` is not above `upper`."""
        kept: dict[int, Indices] = {}
        for node, bounds in self.bounds.items():
            keep = bounds + offset <= upper
            if not keep.all():
                kept[node] = np.flatnonzero(keep)
        return kept

    def forbid_pairs(self, upper: float, offset: float) -> list[tuple[int, int, NDArray[np.bool_]]]:
        """Forbids pairs of choices whose bound is above `upper`: for edges (m, n) that lose some, which they now lack.

        Right after a sweep, a pair's bound is that of its second choice, plus what the forward sweep left on the pair.
        """
        lost: list[tuple[int, int, NDArray[np.bool_]]] = []
        for node in self.order:
            for wire in self.incoming[node]:
                at_second = wire.per_class(1, self.bounds[node] - wire.forward) - wire.low
                bounds = wire.costs + at_second + wire.per_class(0, wire.offer)[:, None]
                pruned = (bounds + offset > upper) & np.isfinite(wire.costs)
                if pruned.any():
                    wire.costs, wire.finite = np.where(pruned, np.inf, wire.costs), False
                    wire.checked = False
                    lost.append((wire.first, node, pruned[np.ix_(*wire.ends)]))
        return lost

    def unsupported(self) -> dict[int, Indices]:
        """For nodes that lose some: the positions of the choices that still have a possible partner on every edge."""
        good: dict[int, NDArray[np.bool_]] = {}
        for wires in self.outgoing.values():
            for wire in wires:
                if wire.checked:
                    continue
                # What it finds is pruned, which makes it unchecked again.
                wire.checked = True
                for dim, node in enumerate((wire.first, wire.second)):
                    lonely = np.isinf(wire.costs.min(axis=1 - dim))
                    if lonely.any():
                        fine = ~lonely[wire.ends[dim]]
                        good[node] = fine & good[node] if node in good else fine
        return {node: np.flatnonzero(fine) for node, fine in good.items()}

    def prune(self, kept: Mapping[int, Indices]) -> None:
        """Forgets choices of nodes; the bound stays valid for what is left."""
        for node, keep in kept.items():
            self.unary[node] = self.unary[node][keep]
            if node in self.extra:
                self.extra[node] = self.extra[node][keep]
            for wire in self.outgoing[node]:
                wire.prune(keep, kept.get(wire.second))
            for wire in self.incoming[node]:
                if wire.first not in kept:
                    wire.prune(None, keep)
            self.bounds.pop(node, None)
