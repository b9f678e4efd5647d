"""Ties: a node whose choice another node decides becomes part of it, memory and all.

An edge decides its first node where every choice of the second has exactly one possible partner. Then the first node's
costs, edges and bytes move to the second, choice by choice. Nothing is lost: it is the exact reduction for chains of ops
that must have the same layout although each of them takes memory of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import final

import numpy as np

from pbqp.network.network import Indices, Network
from pbqp.problem import Array
from pbqp.row_table import RowTable
from pbqp.smaller.smaller import Choice


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decided:
    """A node that another decides: its choice (problem's numbering) for each of the other's `labels`."""

    node: int
    by: int
    labels: Indices
    choices: Indices


@final
class Tied:
    """A network without ties, made from one in place; `carried` are the pieces of memory each node now stands for.

    A piece is given by its number in the row table and its bytes per remaining choice of the node. `possible` is False
    where some node is left without a choice. A `Smaller` form of the network; its choices are of all nodes, right
    for those that are live.
    """

    bound = math.inf
    """Nothing is lost."""

    def __init__(self, network: Network, rows: RowTable) -> None:
        self.network = network
        self.trail: list[Decided] = []
        self.carried: dict[int, list[tuple[int, Array]]] = {
            node: [(piece, rows.usages[piece][network.labels[node]]) for piece in pieces]
            for node, pieces in rows.pieces_of.items()
            if node in network.live
        }
        waiting = [(m, n) for m, n, _ in network.edges()]
        while waiting:
            m, n = waiting.pop()
            for node, by in sorted(((m, n), (n, m)), key=self._weight):
                picks = self._decided(node, by)
                if picks is not None:
                    waiting += self._fold(node, by, picks)
                    break
        self.possible = True
        for node in sorted(network.live):
            self.possible &= self._drop_forbidden(node)

    def lift(self, choice: Choice) -> Indices:
        """The choice with those of the nodes that others decide."""
        whole = np.array(choice, np.intp)
        for step in reversed(self.trail):
            whole[step.node] = step.choices[int(np.searchsorted(step.labels, whole[step.by]))]
        return whole

    def labels_of(self, kept: Mapping[int, Indices]) -> dict[int, Indices]:
        """The labels of all nodes that were live at first, where of those live now only `kept` are left."""
        labels = dict(kept)
        for step in reversed(self.trail):
            positions = np.searchsorted(step.labels, labels[step.by])
            labels[step.node] = np.unique(step.choices[positions])
        return labels

    def _weight(self, pair: tuple[int, int]) -> int:
        """What folding the first node of a pair would have to move."""
        return len(self.network.tables[pair[0]]) + len(self.carried.get(pair[0], ()))

    def _decided(self, node: int, by: int) -> Indices | None:
        """The one possible position of `node` for every choice of its neighbour `by`, if there is just one each."""
        if node not in self.network.live or by not in self.network.tables[node]:
            return None
        table = self.network.tables[node][by]
        return self.network.table_cache.once("decides", (table,), partial(_only_partner, table))

    def _fold(self, node: int, by: int, picks: Indices) -> list[tuple[int, int]]:
        """Makes `node` part of `by`; the edges that changed."""
        network = self.network
        table = network.tables[node][by]
        labels = network.labels[node]
        self.trail.append(Decided(node=node, by=by, labels=network.labels[by], choices=labels[picks]))
        network.unary[by] = network.unary[by] + network.unary[node][picks] + table[picks, np.arange(picks.size)]
        network.disconnect(node, by)
        same = picks.size == labels.size and bool((picks == np.arange(picks.size)).all())
        changed: list[tuple[int, int]] = []
        for other, costs in list(network.tables[node].items()):
            network.disconnect(node, other)
            network.add_table(by, other, costs if same else network.table_cache.taken(costs, picks))
            changed.append((by, other))
        moved = [(piece, usage if same else usage[picks]) for piece, usage in self.carried.pop(node, [])]
        if moved:
            self.carried.setdefault(by, []).extend(moved)
        network.live.discard(node)
        return changed

    def _drop_forbidden(self, node: int) -> bool:
        """Removes the forbidden choices of a node; False if it has no other."""
        possible = np.isfinite(self.network.unary[node])
        if not possible.all() and possible.any():
            self.network.keep(node, possible)
            if node in self.carried:
                self.carried[node] = [(piece, usage[possible]) for piece, usage in self.carried[node]]
        return bool(possible.any())


def _only_partner(table: Array) -> Indices | None:
    """For every column the one line that is possible; None where some column has several or none."""
    possible = np.isfinite(table)
    if not (possible.sum(axis=0) == 1).all():
        return None
    return possible.argmax(axis=0)
