"""Every choice tried in turn: the oracle the other methods are tested against."""

from __future__ import annotations

import itertools
import math

from pbqp.errors import SolverError
from pbqp.options import SolveOptions
from pbqp.problem import Problem
from pbqp.solution import Solution

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
        bound=value,
        status="infeasible" if best is None else "optimal",
        seconds=options.elapsed(),
        method="brute",
    )
