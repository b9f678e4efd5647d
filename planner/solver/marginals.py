"""What every choice of one node would cost in total, everything else at its best: the evidence behind a decision."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.errors import SolverError
from planner.solver.control import Control
from planner.solver.deadline import Deadline
from planner.solver.exact import elimination
from planner.solver.heuristics.local_search import LocalSearch
from planner.solver.network.network import Network
from planner.solver.problem import Array, Problem
from planner.solver.smaller.reductions import Reducer

MARGINAL_KICKS = 30
"""Restarts of the local search for one choice where elimination is too dear."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Marginals:
    """`values[p]`: the least total cost found with choice p, `inf` where it is forbidden; `exact[p]`: none is less."""

    values: Array
    exact: npt.NDArray[np.bool_]


def min_marginals(problem: Problem, node: int, *, time_limit: float = 10.0, seed: int = 0) -> Array:
    """For each choice of `node`, the least total cost with that choice forced, as far as `marginals` finds it."""
    return marginals(problem, node, time_limit=time_limit, seed=seed).values


def marginals(
    problem: Problem,
    node: int,
    *,
    start: Sequence[int] | None = None,
    time_limit: float = 10.0,
    seed: int = 0,
) -> Marginals:
    """For each choice of `node`, the least total cost with that choice forced.

    Rows are ignored: the figures say what a choice costs in time, not whether it fits. Exact where elimination is
    affordable, of the whole or once the choice is forced; elsewhere local search from `start`, a choice of all nodes,
    finds a good one within its share of `time_limit` seconds. Raises SolverError for a node that does not exist.
    """
    if not 0 <= node < len(problem.node_costs):
        raise SolverError(f"node {node} does not exist: nodes are 0 .. {len(problem.node_costs) - 1}.")
    count = problem.node_costs[node].size
    values, exact = np.full(count, math.inf), np.ones(count, np.bool_)
    network = Network.of(problem)

    def incomparable(other: int) -> Array:
        """Bytes by which every choice beats every other in one of two rows, so that none is dominated."""
        labels = network.labels[node].astype(np.float64)
        return np.stack([labels, -labels]) if other == node else np.zeros((0, network.labels[other].size))

    if not Reducer(network, keep=(node,), usage_of=incomparable).run():
        return Marginals(values=values, exact=exact)
    left = network.labels[node]
    order = elimination.plan_order(network, last=(node,), max_entries=elimination.MAX_ENTRIES)
    if elimination.affordable(order):
        values[left] = elimination.eliminate_all_but(network, order, node)
        return Marginals(values=values, exact=exact)
    begun = dict(enumerate(start)) if start is not None else None
    for position, pick in enumerate(left.tolist()):
        forced = network.copy()
        forced.keep(node, np.array([position]))
        control = Control(deadline=Deadline.after(time_limit / left.size), seed=seed)
        values[pick], exact[pick] = _least(forced, begun, control)
    return Marginals(values=values, exact=exact)


def _least(network: Network, start: Mapping[int, int] | None, control: Control) -> tuple[float, bool]:
    """The least cost of a network, and whether it is proven."""
    if not Reducer(network, keep=(), usage_of=lambda node: np.zeros((0, network.labels[node].size))).run():
        return math.inf, True
    order = elimination.plan_order(network, max_entries=elimination.MAX_ENTRIES)
    if elimination.affordable(order):
        return elimination.eliminate(network, order, np.zeros(len(network.labels), np.intp)), True
    found = LocalSearch(network, None, start).run(control, control.left(), MARGINAL_KICKS)
    return (math.inf if found is None else found[0]), False
