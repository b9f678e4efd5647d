"""The exact methods on their own: elimination without an ILP, the ILP without eliminations, and every choice in turn.

The last is the oracle that the other methods are tested against.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from pbqp.errors import SolverError
from pbqp.exact import elimination
from pbqp.exact.ilp import IntegerProgram
from pbqp.heuristics.local_search import LocalSearch
from pbqp.incumbent import Incumbent
from pbqp.options import SolveOptions
from pbqp.problem import Problem
from pbqp.row_table import RowTable
from pbqp.smaller.prepared import Prepared
from pbqp.solution import Solution


def solve_elimination(problem: Problem, options: SolveOptions) -> Solution:
    """The optimum by reductions and elimination; rows are only checked afterwards.

    "unknown" where the elimination is too dear (see `elimination.MAX_ENTRIES`), or where the optimum without rows
    violates a row: then `bound` is that optimum.
    """
    rows = RowTable.of(problem)
    best = Incumbent(problem, rows, options)
    prepared = Prepared(problem, rows.subset(np.zeros(0, dtype=np.intp)))
    if not prepared.reduce():
        best.raise_bound(math.inf)
        return best.solution("elimination", prepared.detail)
    order = elimination.plan_order(prepared.network, max_entries=elimination.MAX_ENTRIES)
    if elimination.affordable(order):
        choice = np.zeros(len(problem.node_costs), dtype=np.intp)
        bound = elimination.eliminate(prepared.network, order, choice)
        best.raise_bound(elimination.proven(prepared.network, bound))
        if math.isfinite(bound):
            best.offer(prepared.complete({node: int(choice[node]) for node in prepared.network.live}))
    return best.solution("elimination", prepared.detail)


SEARCHED_EXACTLY = 0.9
"""The part of the time after which, where nothing was found, choices are sought by local search."""


def solve_ilp(problem: Problem, options: SolveOptions) -> Solution:
    """The optimum of the program of all nodes and all rows; only forbidden choices are removed beforehand."""
    rows = RowTable.of(problem)
    best = Incumbent(problem, rows, options)
    prepared = Prepared(problem, rows)
    if not prepared.fit() or not prepared.reduce(dominance=False, eliminate=False):
        best.raise_bound(math.inf)
        return best.solution("ilp", prepared.detail)
    held = rows if rows.count else None
    program = IntegerProgram(prepared.network, held, best.value)
    result = program.solve(SEARCHED_EXACTLY * options.left(), best.value, options.gap)
    found = result.choice
    if found is None and not result.ended:
        local = LocalSearch(prepared.network, held).run(options, options.left(), 0)
        found = None if local is None else local[1]
    if found is not None:
        best.offer(prepared.complete(found))
    best.raise_bound(min(result.bound, best.value))
    return best.solution("ilp", {**prepared.detail, "variables": program.size})


MAX_CHOICES = 2_000_000
"""Most combinations that are tried."""


def solve_brute(problem: Problem, options: SolveOptions) -> Solution:
    """The first of the cheapest choices that violate no row, found by trying all of them, whatever the time limit.

    Raises SolverError where there are more than `MAX_CHOICES` combinations.
    """
    sizes = [costs.size for costs in problem.node_costs]
    if math.prod(sizes) > MAX_CHOICES:
        raise SolverError(
            f"problem {problem.name!r} has {math.prod(sizes):.3g} combinations of choices, brute tries at most "
            f"{MAX_CHOICES}: use method='auto'."
        )
    best: tuple[int, ...] | None = None
    value = math.inf
    for choice in itertools.product(*map(range, sizes)):
        cost = problem.evaluate(choice)
        if cost < value and not problem.violations(choice):
            best, value = choice, cost
    return Solution(
        choice=best,
        value=value,
        bound=value if best is None else problem.evaluate_down(best),
        status="infeasible" if best is None else "optimal",
        seconds=options.elapsed(),
        method="brute",
    )
