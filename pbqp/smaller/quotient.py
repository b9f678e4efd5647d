"""Solving with shared layers: one decision for all copies of a layer, and what that loses at most.

The nodes of a problem fall into classes (`alike_nodes`); the problem with one node per class has

    the costs of a class              those of a member, times the number of members
    the table between two classes     the sum of the tables between their members
    the table of a class with itself  its diagonal, added to the costs of the class: its members choose alike
    the bytes of a class in a row     the sum of those of its members

Its choice, given to all members, is one of the whole problem at the same cost. Where the classes are lossless and there are
no rows, its bound is the whole problem's too. Elsewhere (chains of layers; rows, which some layers could keep by
themselves) the whole problem is solved after it, for what is better only: that gives the bound.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from pbqp.auto import solve_auto
from pbqp.deadline import Deadline
from pbqp.identity import numbered
from pbqp.memory_rows import Indices
from pbqp.network.table_cache import TableCache
from pbqp.options import Share, SolveOptions
from pbqp.problem import Array, Edge, Problem
from pbqp.smaller.alike_nodes import SHARING_PAYS, Classes, Links, classify
from pbqp.smaller.smaller import Choice
from pbqp.solution import RELATIVE_TOLERANCE, Solution

SMALLEST = 100
"""Problems of fewer nodes are solved whole: they take no time."""
MANY_NODES = 5_000
"""Problems of more nodes share at a loss too: solving them whole takes tens of seconds (5 s for 2,900 nodes)."""
DIVIDED = 2_000
"""Under rows, copies are divided into ranges that choose for themselves, up to about this many nodes in all."""
FIRST_SHARE = 0.5
"""Part of the time that the shared problem may take where the whole one is solved after it."""


def solve_shared(
    problem: Problem, options: SolveOptions, cutoff: float = math.inf, gap: float = 0.0, *, compiled: bool = False
) -> Solution:
    """What `solve` hands back, with the same meaning of value and bound, from one decision for all copies of a layer.

    `detail` then says how many `decisions` there are and how many `shared_decisions` were made for them, and
    `lost_at_most`: the part of the value that sharing may have cost.
    """
    classes = _worth_sharing(problem, options.share)
    seconds = options.seconds
    of_solve = partial(options.of_solve, gap=gap, compiled=compiled)
    if classes is None:
        return solve_auto(problem, of_solve(seconds, cutoff=cutoff))
    deadline = Deadline.after(seconds)
    if problem.rows:
        classes = classes.divided(max(1, DIVIDED // classes.count))
    small = quotient(problem, classes, options.table_cache)
    part = 1.0 if small.lossless else FIRST_SHARE
    found = solve_auto(small.problem, of_solve(part * seconds, cutoff=cutoff))
    solution = _lifted(problem, small, found)
    if small.lossless or (problem.rows and len(problem.node_costs) > MANY_NODES):
        return solution
    left = deadline.left(0.1 * seconds)
    upper = min(cutoff, solution.value)
    whole = solve_auto(problem, of_solve(left, cutoff=upper))
    if whole.choice is not None or solution.choice is None:
        return replace(whole, seconds=deadline.elapsed)
    return _certified(solution, bound=min(whole.bound, solution.value), seconds=deadline.elapsed)


def _worth_sharing(problem: Problem, share: Share) -> Classes | None:
    """The classes of a problem, where sharing is wanted and makes it smaller."""
    count = len(problem.node_costs)
    if share is False or count < SMALLEST or (share == "auto" and problem.rows and count <= MANY_NODES):
        return None
    classes = classes_of(problem)
    if classes.count > SHARING_PAYS * count:
        return None
    return classes if classes.lossless or share is True or count > MANY_NODES else None


def classes_of(problem: Problem) -> Classes:
    """The classes of a problem's nodes; rows play no part."""
    colors = _numbers([costs.tobytes() for costs in problem.node_costs])
    distinct, table_of = numbered(edge.costs for edge in problem.edges)
    contents: dict[Hashable, int] = {}
    kinds = [contents.setdefault((table.shape, table.tobytes()), len(contents)) for table in distinct]
    links = Links(
        sources=np.asarray([edge.nodes[0] for edge in problem.edges], np.intp),
        targets=np.asarray([edge.nodes[1] for edge in problem.edges], np.intp),
        kinds=np.asarray([kinds[table] for table in table_of], np.intp),
    )
    return classify(np.asarray(colors, np.intp), links)


def _numbers(keys: list[bytes]) -> list[int]:
    seen: dict[bytes, int] = {}
    return [seen.setdefault(key, len(seen)) for key in keys]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Quotient:
    """The problem with one node per class: a `Smaller` form of the whole one.

    It is `lossless` where copies have one and the same optimum; elsewhere nothing is known of what tells them apart.
    """

    problem: Problem
    classes: Classes
    lossless: bool

    @property
    def bound(self) -> float:
        """What a choice costs at the least in which copies differ, beyond the optimum of those in which they do not."""
        return math.inf if self.lossless else -math.inf

    def lift(self, choice: Choice) -> Indices:
        """The choice in which all members of a class choose alike."""
        return self.classes.lift(choice)


def quotient(problem: Problem, classes: Classes, table_cache: TableCache) -> Quotient:
    """The problem with one node per class; the same tables under one `table_cache` give the same objects."""
    of = classes.of.tolist()
    costs = [
        float(size) * problem.node_costs[first]
        for first, size in zip(classes.first.tolist(), classes.sizes.tolist(), strict=True)
    ]
    tables, table_of = numbered(edge.costs for edge in problem.edges)
    ends = ((of[edge.nodes[0]], of[edge.nodes[1]]) for edge in problem.edges)
    counts = Counter((*pair, table) for pair, table in zip(ends, table_of, strict=True))
    edges: list[Edge] = []
    for (source, target, number), count in counts.items():
        table = _times(tables[number], count, table_cache)
        if source == target:
            costs[source] = costs[source] + np.diagonal(table)
        else:
            edges.append(Edge(nodes=(source, target), costs=table))
    small = Problem(
        name=problem.name,
        node_costs=tuple(costs),
        edges=tuple(edges),
        rows=tuple(row.merged(of) for row in problem.rows),
        node_names=tuple(problem.node_names[first] for first in classes.first.tolist()) if problem.node_names else (),
    )
    return Quotient(problem=small, classes=classes, lossless=classes.lossless and not problem.rows)


def _times(table: Array, count: int, table_cache: TableCache) -> Array:
    return table if count == 1 else table_cache.once(("times", count), (table,), lambda: float(count) * table)


def _lifted(problem: Problem, small: Quotient, found: Solution) -> Solution:
    """A solution of the whole problem from one of its quotient."""
    decisions = {"decisions": len(problem.node_costs), "shared_decisions": small.classes.count}
    bound = min(found.bound, small.bound)
    if found.choice is None:
        status = found.status if small.lossless else "unknown"
        return replace(found, bound=bound, status=status, detail={**found.detail, **decisions})
    choice = tuple(small.lift(found.choice).tolist())
    value = problem.evaluate(choice)
    lifted = replace(found, choice=choice, value=value, detail={**found.detail, **decisions})
    return _certified(lifted, bound=min(bound, value), seconds=found.seconds, lossless=small.lossless)


def _certified(solution: Solution, *, bound: float, seconds: float, lossless: bool = False) -> Solution:
    """The solution with a bound of the whole problem, and with what sharing lost at most."""
    proven = replace(solution, bound=bound, seconds=seconds)
    optimal = solution.status == "optimal" if lossless else proven.gap <= RELATIVE_TOLERANCE
    detail = {**solution.detail, "lost_at_most": 0.0 if lossless else proven.gap}
    return replace(proven, status="optimal" if optimal else "feasible", detail=detail)


def describe_sharing(free: Solution, *, gap: float, limited: bool) -> str:
    """What a person is told of a plan whose problem without a memory limit had this solution; "" where nothing is shared.

    `gap` is the part by which the plan may miss the optimum, `limited` whether a memory limit shaped it.
    """
    made, of, lost = (free.detail.get(key) for key in ("shared_decisions", "decisions", "lost_at_most"))
    if not isinstance(made, int) or not isinstance(of, int) or not isinstance(lost, float):
        return ""
    if limited and of > MANY_NODES:
        lost = gap
    loss = "which loses nothing" if lost <= RELATIVE_TOLERANCE else f"which loses at most {100 * lost:.2g} %"
    if math.isinf(lost) or gap >= 1:
        loss = "and what that loses is not known"
    return f"layers that are alike share their decisions: {made} are made for {of}, {loss}"
