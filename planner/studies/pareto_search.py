"""The search for a front: its two ends first, then plans for limits of memory between those already found.

A plan found for a limit tells two things: a point, and that nothing is better between its peak and the limit. The next
limit is tried where the room left between two neighbours is the widest, by the product of the logarithms of both ratios, at
the geometric mean of its ends. All searches are of one program made ready once. Then the plans are checked, the ends as
that of `plan` is.

Where arguments may go to hosts without being named, the least memory is that of the devices with as many of them there as
may be; below what the devices take without that, all plans are sought so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

from pbqp.deadline import Deadline
from planner.errors import ArgumentError, CompileError, InfeasibleError, PinError
from planner.options import Options, telling
from planner.planning.candidates import Candidates, candidates_between
from planner.planning.driver import best_plan
from planner.plans.plan import Plan
from planner.request.resolve import PlanRequest
from planner.search.problem import PlanningProblem
from planner.studies.pareto import Front, cost_of
from planner.units import quantity
from planner.variants.host_arguments import levels_on_hosts, may_use_hosts

END_SHARE = 0.4
"""Part of the time left that the search for one end may take."""
NEAR_MEMORY = 1.01
"""Neighbours whose peaks are as near as this need no plan between them."""
NEAR_COST = 1.003
"""Nor those whose costs are: plans are within a thousandth of the best."""
TRIES = 2
"""Limits tried at most for each plan that is asked for."""
LEAST_SECONDS = 1.0
"""What a search gets even where no time is left."""
BETWEEN_TIMES = 6.0
"""A search between the ends may take so many times as long as the longer of theirs: what is left is told as a gap."""
BETWEEN_SECONDS = 8.0
"""And at least so much."""
T = TypeVar("T")

BETWEEN = "a plan between the ends of a front"


def front_of(request: PlanRequest, count: int) -> Front:
    """The front of a request, of at most so many plans. Raises: what `best_plan` does, for the best end."""
    processes = request.target.processes
    request.check_pins()
    search = _Search(request, count)
    outcome = processes.decided(search.run)
    # Only the process that searched has candidates; how many points there are, all must know.
    points = search.points or [_Point(candidates=search.untried(), end=end) for end in outcome["ends"]]
    checks = _Checks(request, search.deadline)
    plans: list[Plan] = []
    notes: list[str] = list(outcome["notes"])
    order = sorted(range(len(points)), key=lambda i: (not points[i].end, -i))
    for i in order:
        # The best end is that of `plan`, and fails as that does; the others are told of.
        try:
            plans.append(checks.checked(points[i]))
        except (CompileError, InfeasibleError) as error:
            if i == order[0]:
                raise
            notes.append(f"a plan was left out: {error}")
    objective = request.variants.request.objective

    def figures(plan: Plan) -> tuple[float, float]:
        return plan.predicted.peak_bytes, cost_of(plan.decision, objective)

    # Checks may have put other plans in the place of some.
    return Front(_undominated(plans, figures), objective=objective, notes=notes)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Point:
    """The candidates for one plan, the first of them proposed; nothing better is known up to the limit `reach`."""

    candidates: Candidates
    peak: float = 0.0
    cost: float = 0.0
    reach: float = 0.0
    end: bool = False
    microbatches: int = 1

    @property
    def figures(self) -> tuple[float, float]:
        """The peak and the cost."""
        return self.peak, self.cost


class _Search:
    """What is found so far: points, the least peak first, and notes."""

    def __init__(self, request: PlanRequest, count: int) -> None:
        self.request, self.count = request, count
        self.wanted = request.variants.request
        self.deadline = Deadline.after(request.options.time_limit_s)
        self.longest = 0.0
        self.on_hosts: PlanningProblem | None = None
        """The problem with arguments on hosts, for limits below the least memory `without_hosts`."""
        self.without_hosts = 0.0
        self.points: list[_Point] = []
        self.notes: list[str] = []

    def run(self) -> dict[str, Any]:
        """What other processes must know, once all is found. Raises: InfeasibleError, PinError."""
        best = self.end(self.wanted.objective)
        least = self.least(best)
        ends = [best, *([] if least is None else [least, *self.least_on_hosts(least)])]
        self.points = _undominated(ends, lambda point: point.figures)
        if best.peak <= self.wanted.memory_limit:
            self.between()
        return {"ends": [point.end for point in self.points], "notes": self.notes}

    def least(self, best: _Point) -> _Point | None:
        """The end of least memory; None where it was not found."""
        try:
            return self.end("memory")
        except InfeasibleError as error:
            self.notes.append(f"no plan of less memory was found than {quantity(best.peak, 'B')}: {error}")
            return None

    def least_on_hosts(self, least: _Point) -> list[_Point]:
        """The end of least memory with arguments on hosts; none where that is not less than the `least` without."""
        variants, options = self.request.variants.starting(self.request.problem), self.request.options
        if variants.request.topology.chip.platform != "tpu" or not may_use_hosts(variants, options):
            return []
        for waiting in reversed(list(levels_on_hosts(variants))):
            with suppress(ArgumentError, InfeasibleError, PinError):
                found = self.end("memory", waiting.base)
                if found.peak < least.peak:
                    self.on_hosts, self.without_hosts = waiting.base, least.peak
                    return [found]
        return []

    def end(self, objective: str, problem: PlanningProblem | None = None) -> _Point:
        """One end, of another problem where one is given. Raises: InfeasibleError, PinError."""
        stage = "the least memory" if objective == "memory" else f"the least {objective}"
        stage += "" if problem is None else ", with arguments on hosts"
        problem = (problem or self.request.problem).with_objective(objective, self.wanted.memory_limit)
        options = self.options(END_SHARE * self.deadline.left(), stage)
        clock = Deadline.never()
        found = self.point(Candidates(self.request, problem, options), reach=0.0, end=True)
        self.longest = max(self.longest, clock.elapsed)
        return found

    def between(self) -> None:
        """Adds points between the ends, until there are enough of them or nothing is left between."""
        for tries in range(TRIES * self.count):
            room = self.widest()
            if room is None:
                break
            if self.deadline.passed:
                limit_s = self.request.options.time_limit_s
                found = f"{len(self.points)} of {self.count} plans, after {tries} limits of memory between the ends"
                self.notes.append(f"the time limit of {limit_s:g} s ended the search with {found}")
                return
            lower, upper = room
            limit = math.sqrt(_from(lower) * upper.peak)
            found = self.at(limit, lower, upper)
            if found is None or found.cost >= lower.cost / NEAR_COST:
                at = self.points.index(lower)
                self.points[at] = replace(lower, reach=limit)
            else:
                self.points = _undominated([*self.points, found], lambda point: point.figures)
        if len(self.points) == 1:
            self.notes.append(f"one plan has both the least memory and the least {self.wanted.objective}")
        elif len(self.points) < self.count:
            found = f"{len(self.points)} plans instead of {self.count}"
            self.notes.append(
                f"{found}: none was found between them that is better than its neighbours by enough to tell"
            )

    def widest(self) -> tuple[_Point, _Point] | None:
        """The points between which the widest room is; None where enough is known."""
        if len(self.points) >= self.count:
            return None
        rooms = [
            (math.log(upper.peak / _from(lower)) * math.log(lower.cost / upper.cost), lower, upper)
            for lower, upper in pairwise(self.points)
            if upper.peak > NEAR_MEMORY * _from(lower) > 0 and lower.cost > NEAR_COST * upper.cost > 0
        ]
        if not rooms:
            return None
        _, lower, upper = max(rooms, key=lambda room: room[0])
        return lower, upper

    def at(self, limit: float, lower: _Point, upper: _Point) -> _Point | None:
        """The point for a limit of memory between two; None where none is found in time."""
        known = self.on_hosts if self.on_hosts is not None and limit < self.without_hosts else self.request.problem
        problem = known.with_objective(self.wanted.objective, limit)
        left = self.deadline.left() / max(self.count - len(self.points), 1)
        left = min(left, max(BETWEEN_TIMES * self.longest, BETWEEN_SECONDS))
        # Above this limit nothing is to be sought, whatever a compiler says.
        options = replace(self.options(left, f"at most {quantity(limit, 'B')}"), check="never")
        fewest, most = sorted((lower.microbatches, upper.microbatches))
        with suppress(InfeasibleError):
            candidates = candidates_between(self.request, problem, options, fewest=fewest, most=most)
            return self.point(candidates, reach=limit)
        return None

    def untried(self) -> Candidates:
        """The candidates of a point on a process that proposes none."""
        return Candidates(self.request, self.request.problem, self.request.options)

    def point(self, candidates: Candidates, *, reach: float, end: bool = False) -> _Point:
        """The point of the first of these candidates. Raises: InfeasibleError, PinError."""
        first = candidates.propose()
        return _Point(
            candidates=candidates,
            peak=first.predicted.peak_bytes,
            cost=cost_of(first, self.wanted.objective),
            reach=reach,
            end=end,
            microbatches=first.form.microbatches,
        )

    def options(self, seconds: float, stage: str) -> Options:
        """The user's, for one search of the front."""
        return replace(telling(self.request.options, stage), time_limit_s=max(seconds, LEAST_SECONDS))


class _Checks:
    """The checks of the plans of a front: those between its ends are compiled while that is affordable, and not run."""

    def __init__(self, request: PlanRequest, deadline: Deadline) -> None:
        self.request, self.deadline, self.longest = request, deadline, 0.0
        self.until: Deadline | None = None

    def checked(self, point: _Point) -> Plan:
        """The plan of a point, checked. Raises: what `best_plan` raises."""
        clock = Deadline.never()
        if point.end or self.request.options.check != "auto":
            plan = best_plan(self.request, point.candidates)
            self.longest = max(self.longest, clock.elapsed)
            return plan
        if self.until is None:
            self.until = self.deadline.within(self.request.options.affordable_compile_s)
        left = self.until.left()
        late = bool(self.request.target.processes.decided(lambda: self.longest >= left))
        why = f"{BETWEEN}, of which only as many are compiled as time allows; verify() does it" if late else ""
        not_run = f"{BETWEEN} is compiled and not run; verify(*args) does it"
        plan = best_plan(self.request, point.candidates, not_checked=why, not_run=not_run)
        self.longest = max(self.longest, clock.elapsed)
        return plan


def _from(point: _Point) -> float:
    """The limit of memory from which on something better than a point may be."""
    return max(point.peak, point.reach)


def _undominated(found: Sequence[T], figures: Callable[[T], tuple[float, float]]) -> list[T]:
    """Those of least peak first, each of which costs less than all before it, by their figures (peak, cost)."""
    kept: list[T] = []
    for one in sorted(found, key=figures):
        if not kept or figures(one)[1] < figures(kept[-1])[1]:
            kept.append(one)
    return kept
