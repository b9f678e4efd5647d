"""What every choice of one node would cost in total, everything else at its best: the evidence behind a decision."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np

from planner.errors import SolverError
from planner.problem import Array, Problem
from planner.solve import elimination
from planner.solve.auto import solve_auto
from planner.solve.control import Control
from planner.solve.network import Network
from planner.solve.reductions import Reducer


def min_marginals(problem: Problem, node: int, *, time_limit: float = 10.0, seed: int = 0) -> Array:
    """For each choice of `node`, the least total cost with that choice forced; `inf` where it is forbidden.

    Rows are ignored: the figures say what a choice costs in time, not whether it fits. Exact where elimination is
    affordable; otherwise each choice is solved on its own within its share of `time_limit` seconds, and the figure is
    the best value found. Raises SolverError for a node that does not exist.
    """
    if not 0 <= node < len(problem.node_costs):
        raise SolverError(f"node {node} does not exist: nodes are 0 .. {len(problem.node_costs) - 1}.")
    totals = np.full(problem.node_costs[node].size, math.inf)
    network = Network.of(problem)

    def incomparable(other: int) -> Array:
        """Bytes by which every choice beats every other in one of two rows, so that none is dominated."""
        labels = network.labels[node].astype(np.float64)
        return np.stack([labels, -labels]) if other == node else np.zeros((0, network.labels[other].size))

    if not Reducer(network, keep=(node,), usage_of=incomparable).run():
        return totals
    order = elimination.plan_order(network, last=(node,), max_entries=elimination.MAX_ENTRIES)
    if elimination.affordable(order):
        totals[network.labels[node]] = elimination.eliminate_all_but(network, order, node)
        return totals
    share = time_limit / network.labels[node].size
    for pick in network.labels[node].tolist():
        forced = np.where(np.arange(totals.size) == pick, problem.node_costs[node], np.inf)
        costs = tuple(forced if other == node else values for other, values in enumerate(problem.node_costs))
        control = Control(time_limit=share, started=time.perf_counter(), seed=seed)
        totals[pick] = solve_auto(replace(problem, node_costs=costs, rows=()), control).value
    return totals
