"""Why no choice satisfies the rows, and how much memory would do.

The least bytes of a row, over all choices that take nothing forbidden, is a pairwise problem with bytes as costs. A
row whose least bytes are over its limit cannot hold by itself; where every row can, the rows only conflict together.
One limit for all rows must be at least the largest of the least bytes (proven), and the largest row of any choice
would do (found); halving the interval between the two with the solver brings them together.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pbqp.deadline import Deadline
from pbqp.options import SolveOptions
from pbqp.problem import Edge, Problem, Row
from pbqp.row_table import RowTable
from pbqp.solution import Detail, Solution

MOST_CONFLICTING = 32
"""How many rows are minimised on their own: those nearest to their limits by everyone's least bytes."""
HALVINGS = 8
"""How often the interval of the least limit is halved at most."""

Solver = Callable[[Problem, SolveOptions], Solution]


def why_infeasible(problem: Problem, options: SolveOptions, solver: Solver) -> Detail:
    """`conflict` (names of rows), `reason`, and where memory is the reason `least_limit` and how sure it is, in bytes.

    `least_limit` is one limit for all rows that is enough; `least_limit_bound` one that is certainly needed. They are
    equal, and `least_limit_is` says "proven", where the halving came to an end, else it says "found".
    """
    allowed = _bytes_only(problem, ())
    plain = solver(allowed, _slice(options))
    if plain.status == "infeasible":
        return {"conflict": (), "reason": "forbidden choices alone leave no choice, whatever the memory"}
    rows = RowTable.of(problem)
    labels = [np.flatnonzero(np.isfinite(values)) for values in problem.node_costs]
    share = (rows.least(labels) - rows.limits) / np.maximum(np.abs(rows.limits), 1.0)
    order = np.argsort(-share, kind="stable")[:MOST_CONFLICTING].tolist()
    needed, enough = -math.inf, _largest(problem, plain.choice)
    alone: list[str] = []
    for row in (problem.rows[int(rows.origin[index])] for index in order):
        least = solver(_bytes_only(problem, (row,)), _slice(options))
        needed = max(needed, least.bound)
        enough = min(enough, _largest(problem, least.choice))
        if least.bound > row.limit:
            alone.append(row.name)
        if options.left() <= 0:
            break
    for _ in range(HALVINGS):
        if enough <= needed or options.left() <= 0:
            break
        middle = needed + (enough - needed) / 2
        limited = tuple(replace(row, limit=middle) for row in problem.rows)
        trial = solver(replace(allowed, rows=limited), _slice(options))
        if trial.choice is not None:
            enough = _largest(problem, trial.choice)
        elif trial.status == "infeasible":
            needed = middle
        else:
            break
    conflict = tuple(alone) or tuple(problem.rows[position].name for position in rows.origin.tolist())
    return {
        "conflict": conflict,
        "reason": "rows that cannot hold even alone" if alone else "rows that cannot hold together",
        "least_limit": enough,
        "least_limit_bound": needed,
        "least_limit_is": "proven" if enough <= needed else "found",
    }


def _slice(options: SolveOptions) -> SolveOptions:
    """A options for one of many small problems: a fifth of the time left."""
    return SolveOptions(deadline=Deadline.after(max(0.05, 0.2 * options.left())), seed=options.seed)


def _largest(problem: Problem, choice: tuple[int, ...] | None) -> float:
    """The bytes of the fullest row under a choice."""
    return math.inf if choice is None else max(row.usage(choice) for row in problem.rows)


def _bytes_only(problem: Problem, rows: tuple[Row, ...]) -> Problem:
    """The problem of using the least bytes in all of `rows` together while taking nothing forbidden; without rows."""
    costs = [np.where(np.isfinite(values), 0.0, np.inf) for values in problem.node_costs]
    for row in rows:
        for node, usage in zip(row.nodes, row.usages, strict=True):
            costs[node] = costs[node] + usage
    edges = tuple(
        Edge(nodes=edge.nodes, costs=np.where(np.isfinite(edge.costs), 0.0, np.inf))
        for edge in problem.edges
        if not np.isfinite(edge.costs).all()
    )
    return Problem(name=f"{problem.name}: bytes", node_costs=tuple(costs), edges=edges)
