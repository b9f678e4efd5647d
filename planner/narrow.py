"""Narrowing: the instance of a mesh without the strategies that no plan below a cutoff can choose.

 1. Transfers cost nothing or more, so a plan costs at least the least value of every node. A strategy that costs more than
    its node's least by the whole distance from that sum to the cutoff is in no plan that costs less than the cutoff.
 2. Messages (see `solve.messages`) bound the cost of every plan with a strategy; those above the cutoff go, and what is
    left has a higher bound. Where the bound reaches the cutoff, the mesh is done without being solved.

Where a good plan of another mesh is known, few strategies are left, and all that follows works on small tables.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.identity import numbered
from planner.instance import Instance
from planner.problem import Array, Edge, Problem
from planner.solve.messages import Messages
from planner.solve.network import Network
from planner.solve.reductions import Reducer

Positions = npt.NDArray[np.intp]

ROUNDING = 1e-9
"""What sums of values may be off by, relative."""
SWEEPS = 12
"""Most sweeps of messages."""
PRUNED_EVERY = 3
"""Strategies are given up after so many sweeps: it takes as long as two."""
WORTHWHILE = 0.05
"""Sweeps go on while, between prunings, they close this part of the gap to the cutoff."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Narrowed:
    """An instance with fewer strategies, the `cutoff` that those it lacks cost, and a `bound` of what it is left with.

    `kept[node]` are the positions of the strategies among those of the whole one.
    """

    instance: Instance
    kept: tuple[Positions, ...]
    cutoff: float
    bound: float

    def lift(self, choice: Sequence[int]) -> tuple[int, ...]:
        """A choice of the narrowed instance as one of the whole."""
        return tuple(int(kept[pick]) for kept, pick in zip(self.kept, choice, strict=True))


def narrow(instance: Instance, cutoff: float) -> Narrowed:
    """The instance with the strategies that a plan of a value below `cutoff` may choose, at least one per node.

    A `bound` of at least the cutoff says that there is no such plan.
    """
    values = instance.node_values
    least = [float(np.min(of)) for of in values]
    floor = math.fsum(least)
    room = cutoff - floor + ROUNDING * abs(cutoff)
    first = [np.flatnonzero(of <= low + max(room, 0.0)) for of, low in zip(values, least, strict=True)]
    some = instance.restricted(first)
    kept, bound = swept(some.problem, cutoff)
    left = some.restricted(kept, restricted(some.problem, kept))
    return Narrowed(
        instance=left,
        kept=tuple(positions[after] for positions, after in zip(first, kept, strict=True)),
        cutoff=cutoff,
        bound=max(floor, bound),
    )


def swept(problem: Problem, cutoff: float) -> tuple[list[Positions], float]:
    """The choices of every node that messages leave below the cutoff, and a bound of what costs less.

    The problem has no rows; a bound of at least the cutoff says that nothing does.
    """
    network = Network.of(problem)
    whole: list[Positions] = [np.arange(costs.size) for costs in problem.node_costs]
    if not Reducer(network).forbid(network.live):
        return whole, math.inf
    upper = cutoff + ROUNDING * abs(cutoff)
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
        if bound - mark < WORTHWHILE * (cutoff - bound):
            break
        mark = bound
    return list(network.labels), bound


def restricted(problem: Problem, kept: Sequence[Positions]) -> Problem:
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
    return Problem(
        name=problem.name,
        node_costs=tuple(costs[positions] for costs, positions in zip(problem.node_costs, kept, strict=True)),
        edges=tuple(edges),
        node_names=problem.node_names,
    )
