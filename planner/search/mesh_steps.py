"""Steps of a search: what is done about one mesh at a time, in this process or in another, and what is told of it.

A step goes on from the one before it on the same mesh: a mesh is looked at, its best plan without a memory limit is found,
then the best within the limit, and what gap that left is closed. What a step needs of those before stays where they were
done; elsewhere they are done again. A report is what the search needs to know, a few numbers and a choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, final

from pbqp.budget import Budget
from pbqp.deadline import Deadline
from planner.pricing.instance import Instance
from planner.search.best_on_mesh import Candidate, Looked, Outcome, Postponed, free_plan, least_plan, look
from planner.search.least_memory import Least
from planner.search.problem_source import States

Step = Literal["look", "free", "limited", "closed", "least"]
"""What is below a cutoff; the best plan without a limit; the best within it; the same to the end; that of least memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A step of the mesh at a position: only what is below `cutoff` is sought. `before` led to it."""

    mesh: int
    step: Step
    cutoff: float
    before: tuple[Task, ...] = ()

    def followed_by(self, step: Step, *, cutoff: float) -> Task:
        """The next step of the same mesh."""
        return Task(mesh=self.mesh, step=step, cutoff=cutoff, before=(*self.before, replace(self, before=())))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A plan of a mesh: one strategy per node, its value, bound and peak bytes; see `Candidate`."""

    choice: tuple[int, ...]
    value: float
    bound: float
    peak_bytes: float
    shared: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What came of a step: a bound of the mesh's plans, the plan where one is below the cutoff, and which step may follow.

    The rest is as in `Outcome`.
    """

    bound: float
    plan: Plan | None = None
    fits: bool = True
    note: str = ""
    following: Step | None = None
    least: Least | None = None


@final
class Desk:
    """Does steps of a search, and knows what those done here need to go on."""

    def __init__(
        self,
        meshes: Sequence[Mapping[str, int]],
        program: States,
        *,
        limit_bytes: float,
        budget: Budget,
        shared: bool,
    ) -> None:
        self._meshes, self._program, self._limit_bytes, self._shared = meshes, program, limit_bytes, shared
        self._budget = budget
        self._going_on: dict[int, Looked | Postponed] = {}
        self._with_plan: dict[int, Candidate] = {}

    def do(self, task: Task, due: Deadline) -> Report:
        """Takes the step in time, after those before it where they were done elsewhere."""
        for earlier in () if task.mesh in self._going_on else task.before:
            self._done(earlier, due)
        return self._done(task, due)

    def forget(self) -> None:
        """Drops what is needed to go on only."""
        self._going_on.clear()

    def instance(self, mesh: int) -> Instance:
        """The problem of a mesh, with all strategies."""
        known = self._with_plan.get(mesh)
        return self._program.instance(self._meshes[mesh]) if known is None else known.instance

    def _done(self, task: Task, due: Deadline) -> Report:
        # Solves of one mesh alone have tables in common.
        budget = self._budget.until(due).afresh()
        found = self._outcome(task, budget)
        if isinstance(found, Looked):
            self._going_on[task.mesh] = found
            return Report(bound=found.bound, following="free")
        if isinstance(found, Postponed):
            self._going_on[task.mesh] = found
            return Report(bound=found.bound, following="limited")
        if found.open is not None:
            self._going_on[task.mesh] = found.open
        if found.candidate is not None:
            self._with_plan[task.mesh] = found.candidate
        return Report(
            bound=found.bound,
            plan=found.candidate and _plan(found.candidate),
            fits=found.fits,
            note=found.note,
            following=None if found.open is None else "closed",
            least=found.least,
        )

    def _outcome(self, task: Task, budget: Budget) -> Outcome | Postponed | Looked:
        known, shape = self._going_on.pop(task.mesh, None), self._meshes[task.mesh]
        if isinstance(known, Postponed):
            searched = known.closed if task.step == "closed" else known.limited
            return searched(budget, cutoff=task.cutoff)
        if task.step == "least":
            return least_plan(self._program.instance(shape), self._limit_bytes, budget, best=task.cutoff)
        if known is None:
            shared = self._program.shared(shape) if self._shared else None
            stated = self._program.instance(shape) if shared is None else shared
            known = look(stated, budget, best=task.cutoff)
        if task.step == "look":
            return known if known.bound < known.cutoff else Outcome(candidate=None, bound=known.bound)
        return free_plan(known, self._limit_bytes, budget, best=task.cutoff)


def _plan(candidate: Candidate) -> Plan:
    return Plan(
        choice=candidate.choice,
        value=candidate.value,
        bound=candidate.bound,
        peak_bytes=candidate.peak_bytes,
        shared=candidate.shared,
    )
