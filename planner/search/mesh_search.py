"""Search: the best mesh and strategies under a memory limit, with a bound on what any plan could reach.

Meshes are compared by kind: those of most devices first, and of these those of up to two axes, whose problems are small;
where a good value is known from the start the problems of all of them are. n devices need at least an n-th of what one
device needs, for computing and for memory; a mesh for which that is no better than the best plan so far, or does not fit,
is done. Of the others of a kind,

1. where a plan is known, all are looked at for better ones (`look`), which bounds each;
2. the best plan without a limit is found, lowest bound first;
3. what is over the limit is searched under it, lowest bound first: a plan that one of them has within the limit is mostly
   better than what the others could have.

Gaps that this leaves are closed last, when the best of all meshes is about known. The bound of the whole search is the
least of the meshes' bounds.

Each of these goes in waves of one mesh, then two, four and so on, which know the plans of the waves before them: the meshes
that promise most are searched one after the other, and the many that promise little at the same time, by `workers`. The
waves, and so the plan, are the same for any number of workers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby

from pbqp.budget import Budget
from pbqp.deadline import Deadline
from pbqp.smaller.smaller import floor_of
from planner.decision import Tried
from planner.errors import InfeasibleError
from planner.options import GAP, Progress, Share, Unit
from planner.pricing.instance import Instance
from planner.pricing.memory import whole_bytes
from planner.rules.op_work import has_work_of_shapes
from planner.search.best_on_mesh import WORTHWHILE, Candidate, best_of_peak
from planner.search.infeasible import no_fit
from planner.search.mesh_steps import Desk, Report, Step, Task
from planner.search.problem_source import States
from planner.search.shared_layers import SharedInstance
from planner.search.workers import Workers
from planner.units import quantity

MESH_SHARE = 0.4
"""Part of the time left that one mesh may take: another may be better."""
MESH_SECONDS = 1.0
"""What a mesh gets even where no time is left."""
HASTENING = 0.5
"""Time for the best of the plans of least memory, as a part of what finding the least memory took."""
HASTENING_SECONDS = 2.0
"""And at least so much."""
SMALL_AXES = 2
"""Meshes of up to so many axes have small problems."""
WAVE_GROWTH = 2
"""How many times as many meshes a wave has as the one before it."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """All feasible plans by value, the bound over all meshes, what was not finished, and the meshes in their order.

    `short` says whether plans that would be better are over the limit, `unlimited` is a bound of any plan without one. Of
    many plans of the least peak the first is any, where that is asked for; `faster` seeks the best of them then.
    """

    candidates: tuple[Candidate, ...]
    bound: float
    seconds: float
    notes: tuple[str, ...]
    tried: tuple[Tried, ...] = ()
    short: bool = False
    unlimited: float = 0.0
    faster: Callable[[], Found] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is asked of a search: bytes per device, whether their peak is what is minimised, how long it may take.

    `gap` is what may be left between the best plan within the limit and the bound, as a part of the value, `seed` that of
    heuristics; `share` says whether layers share their decisions (see `quotient`), `explained` whether the error that
    nothing fits says why. Up to so many `workers` search at a time. `unit` is that of the values told to `progress`. Only
    plans of a value `below` what is known already are sought. A mesh tried later must be better by a share of `worth`;
    where that is more than what ties are told by, what is postponed is taken up at once, as its plans spare more of the
    others than they could spare of it. Of plans of the least peak the best is sought at once if `hastened`. `planning`
    starts when planning began, where that is before this search.
    """

    limit_bytes: float
    time_limit_s: float
    minimise_memory: bool = False
    gap: float = GAP
    seed: int = 0
    share: Share = "auto"
    progress: Callable[[Progress], object] | None = None
    unit: Unit = "s"
    explained: bool = True
    below: float = math.inf
    worth: float = WORTHWHILE
    workers: int = 1
    hastened: bool = True
    planning: Deadline = field(default_factory=Deadline.never)

    @property
    def at_once(self) -> bool:
        """Whether what is postponed is taken up at once."""
        return self.worth > WORTHWHILE


def search(meshes: Sequence[Mapping[str, int]], program: States, asked: Asked) -> Found:
    """The plans for these meshes, best first; none where none is below what is asked for.

    Raises: InfeasibleError when no mesh has a plan within the limit; where that is asked for it names what needs the most
    and the least memory that would do.
    """
    budget = Budget(deadline=Deadline.after(asked.time_limit_s), gap=asked.gap, seed=asked.seed, share=asked.share)
    shared = asked.share is not False
    desk = Desk(meshes, program, limit_bytes=asked.limit_bytes, budget=budget, shared=shared)
    run = _MeshSearch(meshes, asked, _Alone(meshes, program), desk)
    with Workers(desk.do, run.due, asked.workers, planning=asked.planning) as workers:
        run.search(workers)
    desk.forget()
    if not run.candidates and len(run.over) < len(meshes) and asked.below < math.inf:
        return run.found(workers.notes)
    if not run.candidates and not asked.explained:
        raise InfeasibleError(f"no plan fits {quantity(asked.limit_bytes, 'B')} per device")
    if not run.candidates:
        raise no_fit([meshes[tried] for tried in sorted(run.over)], program, asked.limit_bytes, run.budget())
    if not asked.minimise_memory:
        return run.found(workers.notes)
    seconds = run.seconds

    def faster() -> Found:
        run.hasten(seconds)
        return run.found(workers.notes)

    return faster() if asked.hastened else replace(run.found(workers.notes), faster=faster)


def _kind(shape: Mapping[str, int], *, looked: bool) -> tuple[int, bool]:
    """What meshes have in common that are compared before what they postponed is taken up.

    Where all are `looked` at first, large problems too are small.
    """
    return math.prod(shape.values()), len(shape) > SMALL_AXES and not looked


class _MeshSearch:
    """What a search knows so far, by the positions of the meshes."""

    def __init__(self, meshes: Sequence[Mapping[str, int]], asked: Asked, alone: _Alone, desk: Desk) -> None:
        self.meshes, self.asked, self.alone, self.desk = meshes, asked, alone, desk
        self.deadline = Deadline.after(asked.time_limit_s)
        self.candidates: dict[int, Candidate] = {}
        self.bounds: dict[int, float] = {}
        self.unlimited: dict[int, float] = {}
        self.notes: list[str] = []
        self.over: set[int] = set()
        self.reports: dict[int, Report] = {}
        self.tasks: dict[int, Task] = {}
        self.stopped = self.short = False

    @property
    def best(self) -> float:
        """The least value of a plan, or what plans are to be below of."""
        return min((found.value for found in self.candidates.values()), default=self.asked.below)

    @property
    def first(self) -> int:
        """The first mesh whose plan is about as good as the best."""
        return min(i for i, found in self.candidates.items() if found.value <= self.best * (1 + WORTHWHILE))

    @property
    def seconds(self) -> float:
        """Since the start."""
        return self.deadline.elapsed

    def found(self, notes: Sequence[str]) -> Found:
        """What the search came to; `notes` are told beside its own."""
        first = self.first if self.candidates else None
        order = sorted(self.candidates, key=lambda tried: (tried != first, self.candidates[tried].value, tried))
        words = [] if first is None else [self.candidates[first].shared]
        return Found(
            candidates=tuple(self.candidates[tried] for tried in order),
            bound=min(self.bounds.values()),
            seconds=self.seconds,
            notes=(*self.notes, *notes, *filter(None, words)),
            tried=self.tried() if self.candidates else (),
            short=self.short,
            unlimited=min(self.unlimited.values(), default=0.0),
        )

    def tried(self) -> tuple[Tried, ...]:
        """What became of every mesh."""
        values = {tried: found.value for tried, found in self.candidates.items()}
        bounds = {tried: bound if math.isfinite(bound) else None for tried, bound in self.bounds.items()}
        return tuple(
            Tried(mesh=dict(shape), bound=None if tried in self.over else bounds[tried], value=values.get(tried))
            for tried, shape in enumerate(self.meshes)
        )

    def budget(self) -> Budget:
        """What one mesh may take."""
        return Budget(deadline=self.due(), gap=self.asked.gap, seed=self.asked.seed, share=self.asked.share)

    def due(self) -> Deadline:
        """By when a step of a mesh should end that begins now."""
        part = 1.0 if len(self.meshes) == 1 else MESH_SHARE
        return Deadline.after(max(part * self.deadline.left(), MESH_SECONDS))

    def search(self, workers: Workers) -> None:
        """Searches all meshes, kind after kind."""
        self._tell(0)
        looked = self.asked.at_once and math.isfinite(self.asked.below)
        for _, of_kind in groupby(range(len(self.meshes)), key=lambda tried: _kind(self.meshes[tried], looked=looked)):
            self._first(list(of_kind), workers)
            self._waves("limited", workers)
        self._waves("closed", workers)
        self._tell(len(self.meshes) - 1, tried=len(self.meshes))

    def _first(self, of_kind: Sequence[int], workers: Workers) -> None:
        """The best plans of the meshes of a kind, or what would be if they fitted."""
        waiting: list[int] = []
        for tried in of_kind:
            shape = self.meshes[tried]
            floor = self.alone.floor(shape, minimise_memory=self.asked.minimise_memory, best=self._cutoff(tried))
            self.unlimited[tried] = floor
            if self.alone.bytes / math.prod(shape.values()) > self.asked.limit_bytes:
                self.short = self.short or floor < self._cutoff(tried)
                self._settle(tried, Report(bound=math.inf, fits=False))
            else:
                self.bounds[tried] = floor
                waiting.append(tried)
        if self.asked.minimise_memory:
            self._waves("least", workers, waiting)
            return
        if math.isfinite(self._cutoff(of_kind[0])) and len(waiting) > 1:
            self._waves("look", workers, waiting, all_at_once=True)
        self._waves("free", workers, waiting)

    def _waves(self, step: Step, workers: Workers, first: Sequence[int] = (), *, all_at_once: bool = False) -> None:
        """Takes a step of the meshes that are at it, and of those for which it is the first, in waves.

        Lowest bound first: a better plan there leaves less to be sought in the others.
        """
        size = len(self.meshes) if all_at_once else 1
        done: set[int] = set()
        while True:
            at_it = {tried for tried, report in self.reports.items() if report.following == step}
            new = {tried for tried in first if tried not in self.reports}
            waiting = [tried for tried in at_it | new if tried not in done and self.bounds[tried] < self._cutoff(tried)]
            if not waiting or self._late(waiting, new):
                return
            wave = sorted(waiting, key=lambda tried: (self.bounds[tried], tried))[:size]
            done.update(wave)
            for task, report in workers.each([self._task(tried, step) for tried in wave]):
                self.short = self.short or not report.fits or report.following == "limited"
                self._settle(task.mesh, report)
            size *= WAVE_GROWTH
            if self.asked.at_once and step == "free":
                self._waves("limited", workers)

    def _late(self, waiting: Sequence[int], new: Collection[int]) -> bool:
        """Whether no time is left for what waits; what is told where that is so of meshes not begun."""
        begun = sum(tried in self.reports or bound >= self._cutoff(tried) for tried, bound in self.bounds.items())
        if not self.deadline.passed or not self.reports:
            return False
        if not new:
            return bool(self.candidates)
        limit, count = self.asked.time_limit_s, len(self.meshes)
        note = f"the time limit of {limit:g} s ended the search after {begun} of {count} meshes"
        self.notes += [note] if not self.stopped else []
        self.stopped = True
        return True

    def _cutoff(self, tried: int) -> float:
        """What a plan of a mesh is to be clearly below of: of plans about as good the one of the first mesh is taken."""
        if self.candidates and self.asked.at_once:
            return self.best * (1 - self.asked.worth)
        return self.best * (1 + 2 * WORTHWHILE if self.candidates and tried < self.first else 1)

    def _task(self, tried: int, step: Step) -> Task:
        self._tell(tried)
        before, cutoff = self.tasks.get(tried), self._cutoff(tried)
        if step in ("limited", "closed"):
            cutoff *= 1 - WORTHWHILE
        task = Task(mesh=tried, step=step, cutoff=cutoff) if before is None else before.followed_by(step, cutoff=cutoff)
        self.tasks[tried] = task
        return task

    def _settle(self, tried: int, report: Report) -> None:
        """Takes over what came of a step."""
        self.reports[tried] = report
        self.bounds[tried] = report.bound
        task = self.tasks.get(tried)
        if task is not None and task.step in ("look", "free"):
            self.unlimited[tried] = report.bound
        self.notes += [report.note] if report.note else []
        plan = report.plan
        if plan is not None:
            self.candidates[tried] = Candidate(
                state=partial(self.desk.instance, tried),
                choice=plan.choice,
                value=plan.value,
                bound=plan.bound,
                peak_bytes=plan.peak_bytes,
                shared=plan.shared,
            )
        elif not report.fits:
            self.over.add(tried)
        self._tell(tried)

    def hasten(self, seconds: float) -> None:
        """Puts the best plan of the least peak, which took so long to find, in the place of any such plan."""
        first, least = self.first, self.reports[self.first].least
        budget = self.budget().within(max(HASTENING * seconds, HASTENING_SECONDS))
        if least is not None:
            self.candidates[first] = best_of_peak(self.candidates[first], least, budget)

    def _tell(self, mesh: int, tried: int | None = None) -> None:
        """Tells how far the search is: that it is at a mesh, and how many were `tried`."""
        ended = sum(report.following is None for report in self.reports.values())
        if self.asked.progress is not None:
            self.asked.progress(
                Progress(
                    tried=ended if tried is None else tried,
                    total=len(self.meshes),
                    mesh=self.meshes[mesh],
                    incumbent=self.best,
                    bound=min(self.bounds.values(), default=0.0),
                    seconds=self.seconds,
                    unit=self.asked.unit,
                )
            )


class _Alone:
    """What one device needs: the least value of computing, which n devices share if it is divisible, and `bytes`.

    The more devices, the more may stay on their chips: what is computed for a number of them holds for fewer, and is
    computed anew for those where that may tell more.
    """

    def __init__(self, meshes: Sequence[Mapping[str, int]], program: States) -> None:
        self.program, self.shape = program, dict.fromkeys(meshes[0], 1)
        self.most = max(math.prod(shape.values()) for shape in meshes)
        self.values: dict[int, float] = {}
        self.bytes, self.divisible = 0.0, True
        if len(meshes) > 1:
            stated = program.alone(self.shape, self.most)
            instance = stated.instance if isinstance(stated, SharedInstance) else stated
            model = stated.members.whole if isinstance(stated, SharedInstance) else stated.model
            self.bytes = whole_bytes(model, tiled=instance.tiled) * (1 - WORTHWHILE)
            self.divisible = instance.objective.name != "energy"
            # Parts of a kernel may have less work in all than the whole, where a function of shapes says it.
            self.of_shapes = has_work_of_shapes(model.graph)
            self.values[self.most] = 0.0 if self.of_shapes else _least_value(stated)

    def floor(self, shape: Mapping[str, int], *, minimise_memory: bool, best: float) -> float:
        """A lower bound of what is minimised on a mesh, to be compared with the `best` plan so far."""
        if not self.values:
            # There is one mesh only, and so nothing to be saved.
            return 0.0
        count = math.prod(shape.values())
        if minimise_memory:
            return self.bytes / count
        found = self._shared(self.values[self.most], count)
        if found < best < math.inf and count < self.most and not self.of_shapes:
            if count not in self.values:
                self.values[count] = _least_value(self.program.alone(self.shape, count))
            found = self._shared(self.values[count], count)
        return found

    def _shared(self, value: float, count: int) -> float:
        return value / count if self.divisible else value


def _least_value(stated: Instance | SharedInstance) -> float:
    return floor_of(stated.node_values) * (1 - WORTHWHILE)
