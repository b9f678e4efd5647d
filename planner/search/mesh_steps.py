"""Steps of a search: what is done about one mesh at a time, in this process or in another, and what is told of it.

A step goes on from the one before it on the same mesh: a mesh is looked at, its best plan without a memory limit is found,
then the best within the limit, and what gap that left is closed. What a step needs of those before stays where they were
done; elsewhere they are done again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from pbqp.deadline import Deadline
from pbqp.options import SolveOptions
from planner.pricing.instance import Instance
from planner.pricing.mesh import Shape
from planner.search.best_on_mesh import Candidate, Looked, Outcome, Postponed, free_plan, least_plan, look
from planner.search.problem import PlanningProblem
from planner.search.workers import MeshPlan, Report, Task


@final
class Desk:
    """Does steps of a search, and knows what those done here need to go on."""

    def __init__(
        self,
        meshes: Sequence[Shape],
        problem: PlanningProblem,
        limit_bytes: float,
        solving: SolveOptions,
    ) -> None:
        self._meshes, self._problem, self._limit_bytes, self._solving = meshes, problem, limit_bytes, solving
        self._going_on: dict[int, Looked | Postponed] = {}
        self._with_plan: dict[int, Candidate] = {}

    def do(self, task: Task, due: Deadline) -> Report:
        """Takes the step in time, after those before it where they were done elsewhere."""
        for earlier in () if task.mesh in self._going_on else task.before:
            self.do(earlier, due)
        known, shape = self._going_on.pop(task.mesh, None), self._meshes[task.mesh]
        # Solves of one mesh alone have tables in common.
        solving = self._solving.until(due).afresh()
        if isinstance(known, Postponed):
            go_on = known.closed if task.step == "closed" else known.limited
            return self._report(task, go_on(solving, cutoff=task.cutoff))
        if task.step == "least":
            instance = self._problem.instance(shape)
            return self._report(task, least_plan(instance, self._limit_bytes, solving, best=task.cutoff))
        if known is None:
            stated = self._problem.state(self._problem.mesh(shape))
            known = look(stated.whole() if solving.share is False else stated, solving, best=task.cutoff)
        if task.step == "look":
            nothing = Outcome(candidate=None, bound=known.bound)
            return self._report(task, known if known.bound < known.cutoff else nothing)
        return self._report(task, free_plan(known, self._limit_bytes, solving, best=task.cutoff))

    def forget(self) -> None:
        """Drops what is needed to go on only."""
        self._going_on.clear()

    def instance(self, mesh: int) -> Instance:
        """The problem of a mesh, with all strategies."""
        known = self._with_plan.get(mesh)
        return self._problem.instance(self._meshes[mesh]) if known is None else known.instance

    def _report(self, task: Task, found: Outcome | Postponed | Looked) -> Report:
        """The report of what a step found; what the next one needs is kept."""
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


def _plan(candidate: Candidate) -> MeshPlan:
    return MeshPlan(
        choice=candidate.choice,
        value=candidate.value,
        bound=candidate.bound,
        peak_bytes=candidate.peak_bytes,
        shared=candidate.shared,
        per_byte=candidate.per_byte,
    )
