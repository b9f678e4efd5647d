"""Random choices: the baseline any method must beat."""

from __future__ import annotations

import numpy as np

from pbqp.incumbent import Incumbent
from pbqp.options import SolveOptions
from pbqp.problem import Problem
from pbqp.row_table import RowTable
from pbqp.solution import Solution

DRAWS = 1000
"""Choices drawn."""


def solve_random(problem: Problem, options: SolveOptions) -> Solution:
    """The best of `DRAWS` choices drawn at random, each node on its own among its possible choices; no bound."""
    rows = RowTable.of(problem)
    best = Incumbent(problem, rows, options)
    random = np.random.default_rng(options.seed)
    possible = [np.flatnonzero(np.isfinite(costs)) for costs in problem.node_costs]
    if any(choices.size == 0 for choices in possible):
        best.raise_bound(np.inf)
        return best.solution("random", {})
    for _ in range(DRAWS):
        best.offer(np.asarray([int(choices[random.integers(choices.size)]) for choices in possible], dtype=np.intp))
        if options.left() <= 0:
            break
    return best.solution("random", {"draws": DRAWS})
