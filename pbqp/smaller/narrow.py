"""Choices that no choice of all nodes below a cutoff can use, left out.

1. Edges cost nothing or more, so whatever is chosen costs at least the least of every node. A choice that costs more than
   its node's least by the whole distance from that sum to the cutoff is part of nothing that costs less than the cutoff.
2. Messages (see `messages`) bound what everything with a choice costs; those above the cutoff go, and what is left has a
   higher bound. Where the bound reaches the cutoff, the problem is done without being solved.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pbqp.bounds.messages import Messages
from pbqp.identity import numbered
from pbqp.memory_rows import Indices
from pbqp.network.network import Network
from pbqp.problem import Array, Edge, Problem
from pbqp.smaller.reductions import Reducer
from pbqp.smaller.smaller import floor_of

ROUNDING = 1e-9
"""What sums of values may be off by, relative."""
SWEEPS = 12
"""Most sweeps of messages."""
PRUNED_EVERY = 3
"""Choices are given up after so many sweeps: it takes as long as two."""
SWEEP_PAYS = 0.05
"""Sweeps go on while, between prunings, they close this part of the gap to the cutoff."""


def cheap(costs: Sequence[Array], cutoff: float) -> list[Indices]:
    """The choices of every node that the costs of all nodes leave below the cutoff, at least one each."""
    room = max(cutoff - floor_of(costs), 0.0) + ROUNDING * abs(cutoff)
    distinct, number_of = numbered(costs)
    kept = [np.flatnonzero(of <= of.min() + room) for of in distinct]
    return list(map(kept.__getitem__, number_of))


def swept(problem: Problem, cutoff: float, *, compiled: bool = False) -> tuple[list[Indices], float]:
    """The choices of every node that messages, perhaps compiled ones, leave below the cutoff; a bound of what costs less.

    The problem has no rows; a bound of at least the cutoff says that nothing does.
    """
    network = Network.of(problem)
    whole: list[Indices] = [np.arange(costs.size) for costs in problem.node_costs]
    if not Reducer(network).forbid(network.live):
        return whole, math.inf
    upper = cutoff + ROUNDING * abs(cutoff)
    if compiled:
        from pbqp.compiled.squeeze import pruned

        bound = pruned(network, upper, cutoff)
        return list(network.labels), bound
    messages = Messages(network)
    bound = mark = -math.inf
    for sweep in range(1, SWEEPS + 1):
        bound = max(bound, messages.sweep())
        if bound >= cutoff:
            break
        if sweep % PRUNED_EVERY:
            continue
        kept = messages.above(upper, 0.0)
        while kept:
            if any(positions.size == 0 for positions in kept.values()):
                return whole, cutoff
            messages.prune(kept)
            for node, positions in kept.items():
                network.keep(node, positions)
            kept = messages.unsupported()
        if bound - mark < SWEEP_PAYS * (cutoff - bound):
            break
        mark = bound
    return list(network.labels), bound


def restricted(problem: Problem, kept: Sequence[Indices]) -> Problem:
    """The problem with these choices of every node only; tables that were one object still are."""
    tables: dict[object, Array] = {}
    lines = [positions.tobytes() for positions in kept]
    edges: list[Edge] = []
    distinct, table_of = numbered(edge.costs for edge in problem.edges)
    for edge, table in zip(problem.edges, table_of, strict=True):
        source, target = edge.nodes
        key = (table, lines[source], lines[target])
        if key not in tables:
            tables[key] = distinct[table][np.ix_(kept[source], kept[target])]
        edges.append(Edge(nodes=edge.nodes, costs=tables[key]))
    taken: dict[object, Array] = {}
    for costs, positions, line in zip(problem.node_costs, kept, lines, strict=True):
        if (id(costs), line) not in taken:
            taken[id(costs), line] = costs[positions]
    return Problem(
        name=problem.name,
        node_costs=tuple(taken[id(costs), line] for costs, line in zip(problem.node_costs, lines, strict=True)),
        edges=tuple(edges),
        node_names=problem.node_names,
    )
