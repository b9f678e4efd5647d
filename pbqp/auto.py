"""The method that composes the others, from the cheapest proof to the dearest.

1. Without rows: reductions; if what is left can be eliminated, that is the optimum. Otherwise messages bound and prune,
   local search finds, reductions and elimination are tried again on the rest, and the program (ILP) closes the gap.
2. If that optimum violates no row it is the answer. Otherwise the violated rows, and only those, become active: prices
   bound and prune, local search repairs, the program with the active rows closes the gap.
3. If the optimum under the active rows violates another row, that one becomes active too, and so on.
4. Where that leaves a gap, and from the start for large problems with rows, `primal_dual` goes on: a program with rows
   added where violated, if that is small, then prices and block moves, compiled.

Before 2, problems with rows that are not small try sweeps and moves of that method that are counted, not timed.

Where no choice satisfies the rows it says why, and how much memory would do. The least bytes of a row, over all choices
that take nothing forbidden, is a pairwise problem with bytes as costs. A row whose least bytes are over its limit
cannot hold by itself; where every row can, the rows only conflict together. One limit for all rows must be at least the
largest of the least bytes (proven), and the largest row of any choice would do (found); halving the interval between
the two with the solver brings them together.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pbqp.bounds.cutting_planes import best_prices
from pbqp.bounds.subgradient import Effort, tighten
from pbqp.compiled import is_compiled, is_large
from pbqp.exact import elimination
from pbqp.exact.ilp import IntegerProgram
from pbqp.heuristics.local_search import LocalSearch
from pbqp.incumbent import Incumbent
from pbqp.network.network import Indices
from pbqp.options import SolveOptions
from pbqp.problem import Problem
from pbqp.row_table import RowTable
from pbqp.smaller.prepared import Prepared
from pbqp.solution import Detail, Solution

if TYPE_CHECKING:
    from pbqp.compiled.multiplicative_weights import Dual
from collections.abc import Callable

from pbqp.deadline import Deadline
from pbqp.problem import Edge, Row

VARIABLES_PER_SECOND = 20_000
"""How large a program is tried: variables per second left. HiGHS solves tight ones of 1e5 variables in seconds."""

SQUEEZES = 10
"""Most rounds of bounding and pruning before the program."""
ROUGH_SQUEEZES = 2
"""Most rounds for large problems where a gap may stay."""
ROUND_PAYS = 0.9
"""Another round follows while the last one left at most this part of the choices."""
PARTIAL_SHARE = 0.3
"""Part of the time left that a program with only some of the rows may take: the others may still become active."""
FEW_CHOICES = 2_000
"""What is left of a problem without rows is solved compiled where it has more choices: a program of it takes minutes."""
EXACT_SHARE, ROUGH_SHARE = 0.2, 0.6
"""Part of the time for reductions and programs where rows may leave a gap for prices and block moves to close; the same
where a gap may stay, which programs mostly close, and by themselves: what prices and block moves find depends on timing."""
COMPILED_SECONDS = 5.0
"""Time left below which they are not begun: the first use on a machine compiles for some seconds."""
ROWS_AT_ONCE = 2
"""How many violated rows, the worst, become active at first; later as many as are active, so few rounds are needed."""


def solve_auto(problem: Problem, options: SolveOptions) -> Solution:
    """The best choice found and the best bound proven; where there is no choice, also why, and what would do."""
    solution = seek(problem, options)
    if solution.status != "infeasible" or not problem.rows:
        return solution
    reasons = why_infeasible(problem, options, seek)
    return replace(solution, detail={**solution.detail, **reasons}, seconds=options.elapsed())


def seek(problem: Problem, options: SolveOptions) -> Solution:
    """The best choice found and the best bound proven, by whatever the problem calls for."""
    every = RowTable.of(problem)
    best = Incumbent(problem, every, options)
    detail: Detail = {}
    large = is_large(problem.node_costs)
    if every.count and not large and is_compiled(problem.node_costs) and options.left() >= COMPILED_SECONDS:
        from pbqp.compiled.primal_dual import search_counted

        detail = search_counted(problem, every, best, options)
    if not best.settled and not (every.count and large):
        share = ROUGH_SHARE if options.gap > 0 else EXACT_SHARE
        seconds = options.left() * (share if every.count else 1.0)
        limited = replace(options, deadline=options.deadline.within(seconds))
        detail = by_stages(problem, every, best, limited)
    if every.count and not best.settled and options.left() >= COMPILED_SECONDS:
        from pbqp.compiled.primal_dual import search_priced

        detail = search_priced(problem, every, best, options)
    ended = "gap" if best.settled else "time" if options.left() <= 0 else "stall"
    return best.solution("auto", {"ended": ended, **detail})


def by_stages(problem: Problem, every: RowTable, best: Incumbent, options: SolveOptions) -> Detail:
    """Improves choice and bound of `best` by reductions, messages, local search and programs; what the network became.

    `every` are the rows of the problem.
    """
    active: Indices = np.zeros(0, dtype=np.intp)
    while True:
        prepared = Prepared(problem, every.subset(active), options.table_cache)
        answer = minimise(prepared, best, options)
        if best.settled or answer is None or options.left() <= 0:
            break
        over = best.over(answer)
        if not over.size:
            break
        excess = (every.used(answer) - every.limits)[over] / np.maximum(np.abs(every.limits[over]), 1.0)
        if best.choice is None:
            _repair(problem, every, best, answer, options)
        worst = over[np.argsort(-excess, kind="stable")[: max(ROWS_AT_ONCE, active.size)]]
        if np.isin(worst, active).all():
            break
        active = np.union1d(active, worst)
    return prepared.detail


def minimise(prepared: Prepared, best: Incumbent, options: SolveOptions) -> Indices | None:
    """The best choice found under the rows of `prepared`, None if none; bounds and feasible choices go to `best`.

    The rows of `prepared` are some of those of `best`, so its bounds hold there.
    """
    local = Incumbent(prepared.problem, prepared.rows, replace(options, progress=None))
    if not prepared.fit() or not prepared.reduce(compiled=_is_compiled(prepared, options)):
        best.raise_bound(math.inf)
        return None
    answer = _eliminated(prepared, best)
    if answer is not None:
        return answer
    if best.choice is not None:
        local.offer(np.asarray(best.choice))
    bound_and_prune(prepared, local, options)
    harder = replace(options, compiled=True)
    if (
        not local.settled
        and prepared.possible
        and not _is_compiled(prepared, options)
        and _is_compiled(prepared, harder)
    ):
        bound_and_prune(prepared, local, harder)
    # Where a gap may stay, large programs take longer than they are worth.
    if not local.settled and prepared.possible and not (options.gap > 0 and _is_compiled(prepared, options)):
        share = 1.0 if prepared.rows.count == best.rows.count else PARTIAL_SHARE
        _program(prepared, local, share * options.left(), options.gap)
    best.raise_bound(min(local.bound, local.value))
    if local.choice is None:
        return None
    found = np.asarray(local.choice)
    best.offer(found)
    return found


def bound_and_prune(prepared: Prepared, local: Incumbent, options: SolveOptions) -> None:
    """Bounds, prunes and reduces in turn: every round starts from a smaller network, whose bounds are higher.

    Ends when the optimum is proven, when a round prunes little, or with half of the time.
    """
    network, rows = prepared.network, prepared.rows
    until = options.deadline.within(0.5 * options.left())
    dual: Dual | None = None
    for turn in range(SQUEEZES):
        before = sum(network.unary[node].size - 1 for node in network.live)
        seconds = 0.5 * until.left()
        priced = best_prices(prepared, local, options, seconds) if rows.count else None
        if priced is not None:
            local.raise_bound(min(priced.bound, local.value))
            if not math.isfinite(priced.bound) or not priced.prices.any():
                priced = None
        if _is_compiled(prepared, options):
            from pbqp.compiled.squeeze import squeeze

            dual = squeeze(prepared, local, options, seconds, dual, reduced=turn > 0)
        else:
            bound = tighten(prepared, local, options, Effort(steps=60, seconds=seconds), priced)
            local.raise_bound(min(bound, local.value))
        if local.settled:
            return
        if not prepared.fit() or not prepared.reduce(compiled=_is_compiled(prepared, options)):
            local.raise_bound(local.value)
            return
        answer = _eliminated(prepared, local)
        if answer is not None:
            local.offer(answer)
            return
        after = sum(network.unary[node].size - 1 for node in network.live)
        if until.passed or (turn > 0 and after > ROUND_PAYS * before):
            return
        if options.gap > 0 and _is_compiled(prepared, options) and turn >= ROUGH_SQUEEZES - 1:
            return


def _is_compiled(prepared: Prepared, options: SolveOptions) -> bool:
    """Whether messages and moves are compiled: for a large problem without rows of which much is left."""
    network = prepared.network
    large = options.compiled or is_compiled(prepared.problem.node_costs)
    left = sum(network.unary[node].size for node in network.live)
    return large and not prepared.rows.count and left > FEW_CHOICES


def _eliminated(prepared: Prepared, best: Incumbent) -> Indices | None:
    """The optimum by elimination, where there are no rows and it is affordable."""
    if prepared.rows.count:
        return None
    order = elimination.plan_order(prepared.network, max_entries=elimination.MAX_ENTRIES)
    if not elimination.affordable(order):
        return None
    choice = np.zeros(len(prepared.network.labels), dtype=np.intp)
    bound = elimination.eliminate(prepared.network, order, choice)
    if math.isinf(bound):
        return None
    picks = {node: int(choice[node]) for node in prepared.network.live}
    answer = prepared.complete(picks)
    bound = elimination.proven(prepared.network, bound)
    best.raise_bound(min(bound, prepared.problem.evaluate(answer.tolist())))
    best.offer(answer)
    return answer


def _repair(problem: Problem, every: RowTable, best: Incumbent, answer: Indices, options: SolveOptions) -> None:
    """Local search under all rows from an answer that some of them forbid, so that there is some choice early on."""
    prepared = Prepared(problem, every, options.table_cache)
    if prepared.fit() and prepared.reduce(dominance=False, eliminate=False):
        start = {node: int(answer[node]) for node in prepared.network.live}
        found = LocalSearch(prepared.network, every, start).run(options, 0.1 * options.left(), 0)
        if found is not None:
            best.offer(prepared.complete(found[1]))


def _program(prepared: Prepared, local: Incumbent, seconds: float, gap: float) -> None:
    """Closes the gap by the program, if what is left of the network is small enough for the time given."""
    network, rows = prepared.network, prepared.rows
    program = IntegerProgram(network, rows if rows.count else None, local.value)
    if program.size > VARIABLES_PER_SECOND * seconds:
        return
    result = program.solve(seconds, local.value, gap)
    if result.choice is not None:
        local.offer(prepared.complete(result.choice))
    local.raise_bound(min(result.bound, local.value) if local.choice is not None else result.bound)


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
