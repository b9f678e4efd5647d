"""The search for a front: its two ends first, then plans for limits of memory between those already found.

A plan found for a limit tells two things: a point, and that nothing is better between its peak and the limit. The next
limit is tried where the room left between two neighbours is the widest, by the product of the logarithms of both ratios, at
the geometric mean of its ends. All searches are of one program made ready once. Then the plans are checked, the ends as
that of `plan` is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

from pbqp.deadline import Deadline
from planner.decision import Decision
from planner.errors import CompileError, InfeasibleError
from planner.options import Options, telling
from planner.planning.call import Call
from planner.plans.plan import Plan
from planner.studies.pareto import Front, cost_of
from planner.units import quantity
from planner.variants.verdict import Answer, again

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


def front_of(call: Call, count: int) -> Front:
    """The front of what is asked for, of at most so many plans. Raises: what `Call.handed_over` does, for the best end."""
    search = _Search(call, count)
    told = call.processes.decided(search.run)
    # Only the process that searched has proposals; how many there are, all must know.
    points = search.points or [_Point.elsewhere(end) for end in told["ends"]]
    checks = _Checks(call, search.deadline)
    plans: list[Plan] = []
    notes: list[str] = list(told["notes"])
    order = sorted(range(len(points)), key=lambda i: (not points[i].end, -i))
    for i in order:
        # The best end is that of `plan`, and fails as that does; the others are told of.
        try:
            plans.append(checks.handed_over(points[i]))
        except (CompileError, InfeasibleError) as error:
            if i == order[0]:
                raise
            notes.append(f"a plan was left out: {error}")
    objective = call.session.request.objective

    def figures(plan: Plan) -> tuple[float, float]:
        return plan.predicted.peak_bytes, cost_of(plan.decision, objective)

    # Checks may have put other plans in the place of some.
    return Front(_undominated(plans, figures), objective=objective, notes=notes)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Point:
    """The proposals for one plan, the first of them known; nothing better is known up to the limit `reach`."""

    proposed: Generator[Decision, Answer]
    peak: float = 0.0
    cost: float = 0.0
    reach: float = 0.0
    end: bool = False
    microbatches: int = 1

    @property
    def figures(self) -> tuple[float, float]:
        """The peak and the cost."""
        return self.peak, self.cost

    @staticmethod
    def elsewhere(end: bool) -> _Point:
        """One whose proposals another process has."""
        return _Point(proposed=_nothing(), end=end)


class _Search:
    """What is found so far: points, the least peak first, and notes."""

    def __init__(self, call: Call, count: int) -> None:
        self.call, self.count = call, count
        self.asked = call.session.request
        self.deadline = Deadline.after(call.options.time_limit_s)
        self.longest = 0.0
        self.points: list[_Point] = []
        self.notes: list[str] = []

    def run(self) -> dict[str, Any]:
        """What other processes must know, once all is found. Raises: InfeasibleError, PinError."""
        best = self.end(self.asked.objective)
        least = self.least(best)
        self.points = _undominated([least, best], lambda point: point.figures) if least is not None else [best]
        if best.peak <= self.asked.memory_limit:
            self.between()
        return {"ends": [point.end for point in self.points], "notes": self.notes}

    def least(self, best: _Point) -> _Point | None:
        """The end of least memory; None where it was not found."""
        try:
            return self.end("memory")
        except InfeasibleError as error:
            self.notes.append(f"no plan of less memory was found than {quantity(best.peak, 'B')}: {error}")
            return None

    def end(self, objective: str) -> _Point:
        """One end. Raises: InfeasibleError, PinError."""
        session = self.call.session.asking(objective=objective, memory_limit=self.asked.memory_limit)
        stage = "the least memory" if objective == "memory" else f"the least {objective}"
        options = self.options(END_SHARE * self.deadline.left(), stage)
        proposed, clock = self.call.proposed_in_any_form(session, options), Deadline.never()
        found = self.point(proposed, next(proposed), reach=0.0, end=True)
        self.longest = max(self.longest, clock.elapsed)
        return found

    def between(self) -> None:
        """Adds points between the ends, until there are enough of them or nothing is left between."""
        for tries in range(TRIES * self.count):
            room = self.widest()
            if room is None:
                break
            if self.deadline.passed:
                limit_s = self.call.options.time_limit_s
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
            self.notes.append(f"one plan has both the least memory and the least {self.asked.objective}")
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
        session = self.call.session.asking(objective=self.asked.objective, memory_limit=limit)
        left = self.deadline.left() / max(self.count - len(self.points), 1)
        left = min(left, max(BETWEEN_TIMES * self.longest, BETWEEN_SECONDS))
        options = self.options(left, f"at most {quantity(limit, 'B')}")
        # Above this limit nothing is to be sought, whatever a compiler says.
        fewest, most = sorted((lower.microbatches, upper.microbatches))
        proposed = self.call.proposed_between(session, replace(options, check="never"), fewest=fewest, most=most)
        with suppress(InfeasibleError):
            proposed = _of_all(proposed, self.asked.memory_limit, limit)
            return self.point(proposed, next(proposed), reach=limit)
        return None

    def point(
        self, proposed: Generator[Decision, Answer], first: Decision, *, reach: float, end: bool = False
    ) -> _Point:
        """The point of these proposals, the first of which was taken."""
        return _Point(
            proposed=again(first, proposed),
            peak=first.predicted.peak_bytes,
            cost=cost_of(first, self.asked.objective),
            reach=reach,
            end=end,
            microbatches=first.form.microbatches,
        )

    def options(self, seconds: float, stage: str) -> Options:
        """The user's, for one search of the front."""
        return replace(telling(self.call.options, stage), time_limit_s=max(seconds, LEAST_SECONDS))


class _Checks:
    """The checks of the plans of a front: those between its ends are compiled while that is affordable, and not run."""

    def __init__(self, call: Call, deadline: Deadline) -> None:
        self.call, self.deadline, self.longest = call, deadline, 0.0
        self.until: Deadline | None = None

    def handed_over(self, point: _Point) -> Plan:
        """The plan of a point, checked. Raises: what `Call.handed_over` raises."""
        clock = Deadline.never()
        if point.end or self.call.options.check != "auto":
            plan = self.call.handed_over(point.proposed)
            self.longest = max(self.longest, clock.elapsed)
            return plan
        if self.until is None:
            self.until = self.deadline.within(self.call.options.affordable_compile_s)
        left = self.until.left()
        late = bool(self.call.processes.decided(lambda: self.longest >= left))
        why = f"{BETWEEN}, of which only as many are compiled as time allows; verify() does it" if late else ""
        plan = self.call.handed_over(
            point.proposed, not_checked=why, not_run=f"{BETWEEN} is compiled and not run; verify(*args) does it"
        )
        self.longest = max(self.longest, clock.elapsed)
        return plan


def _of_all(
    proposed: Generator[Decision, Answer], memory_limit: float, within_bytes: float
) -> Generator[Decision, Answer]:
    """The proposals for a lower limit as some for what was asked for, and best within that limit."""
    decision = next(proposed)
    while True:
        request = replace(decision.request, memory_limit=memory_limit)
        certificate = replace(decision.certificate, within_bytes=within_bytes)
        decision = proposed.send((yield replace(decision, request=request, certificate=certificate)))


def _nothing() -> Generator[Decision, Answer]:
    """No proposals."""
    yield from ()


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
