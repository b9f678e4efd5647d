"""The front door of the solver and the one table of its methods."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from pbqp.auto import solve_auto
from pbqp.bounds.subgradient import solve_lagrangian
from pbqp.deadline import Deadline
from pbqp.errors import SolverError
from pbqp.exact.exact import solve_brute, solve_elimination, solve_ilp
from pbqp.heuristics.random_search import solve_random
from pbqp.network.table_cache import TableCache
from pbqp.options import Improvement, SolveOptions
from pbqp.problem import Problem
from pbqp.solution import Solution

Method = Callable[[Problem, SolveOptions], Solution]


def solve_primal_dual(problem: Problem, options: SolveOptions) -> Solution:
    """The best choice found within the time and the bound proven, by prices and block moves."""
    from pbqp.compiled import primal_dual

    return primal_dual.run_primal_dual(problem, options)


METHODS: Mapping[str, Method] = {
    "auto": solve_auto,
    "brute": solve_brute,
    "elimination": solve_elimination,
    "ilp": solve_ilp,
    "lagrangian": solve_lagrangian,
    "primal_dual": solve_primal_dual,
    "random": solve_random,
}


def solve(
    problem: Problem,
    *,
    time_limit: float = 60.0,
    seed: int = 0,
    method: str = "auto",
    progress: Improvement | None = None,
    cutoff: float = math.inf,
    gap: float = 0.0,
    compiled: bool = False,
    table_cache: TableCache | None = None,
) -> Solution:
    """The cheapest choice that violates no row, with a proven lower bound.

    Stops after about `time_limit` seconds with the best choice and bound so far. `progress(value, bound)` hears of
    improvements. The result depends on `seed` alone, unless the time limit cuts in. With a `cutoff`, only choices that
    cost less are sought; without a choice, a bound of at least the cutoff says that there is none. A `gap` is the part of
    the value that may be left between it and the bound; with one, a search ends when little is to be hoped for, without, it
    rather uses its time (`detail["ended"]`). `compiled`: it is part of a problem so large that compiled code
    does more of the work; large ones are told by themselves. Solves of problems that have tables (as objects) in common are
    faster with one `table_cache`.
    Raises SolverError for an unknown method or a time limit that is not positive.
    """
    if method not in METHODS:
        raise SolverError(f"there is no method {method!r}: choose one of {', '.join(sorted(METHODS))}.")
    if not time_limit > 0:
        raise SolverError(f"the time limit is {time_limit}: give a positive number of seconds.")
    deadline = Deadline.after(time_limit)
    options = SolveOptions(deadline=deadline, seed=seed, progress=progress, table_cache=table_cache or TableCache())
    return METHODS[method](problem, options.of_solve(time_limit, cutoff=cutoff, gap=gap, compiled=compiled))
