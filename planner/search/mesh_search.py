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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import groupby

from pbqp.deadline import Deadline
from pbqp.options import SolveOptions
from planner.decision import Tried
from planner.errors import InfeasibleError
from planner.machine.cores import usable_cores
from planner.options import UNITS, Options, Progress
from planner.pricing.memory.memory_model import whole_bytes
from planner.pricing.mesh import Shape, ShapeKey, shape_key
from planner.program.tracing.gc_pause import paused
from planner.rules.op_work import has_work_of_shapes
from planner.search.best_on_mesh import WORTHWHILE, Candidate, best_of_peak
from planner.search.infeasible import Unexplained, no_fit
from planner.search.mesh_steps import Desk
from planner.search.offered_meshes import fitting_meshes
from planner.search.problem import PlanningProblem
from planner.search.workers import Report, SearchStep, Task, Workers
from planner.units import quantity

MESH_SHARE = 0.4
"""Part of the time left that one mesh may take: another may be better."""
MESH_SECONDS = 1.0
"""What a mesh gets even where no time is left."""
TIE_BREAK_SHARE = 0.5
"""Time for the best of the plans of least memory, as a part of what finding the least memory took."""
TIE_BREAK_SECONDS = 2.0
"""And at least so much."""
SMALL_AXES = 2
"""Meshes of up to so many axes have small problems."""
WAVE_GROWTH = 2
"""How many times as many meshes a wave has as the one before it."""


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """All feasible plans by value, the bound over all meshes, what was not finished, and the meshes in their order.

    `memory_bound`: plans that would be better are over the limit; `free_bounds` bound by mesh its plans without a limit.
    Where the least peak is sought and ties were left, the first plan is any of those of the least peak; `tie_broken` then
    gives the result with the best of them.
    """

    candidates: tuple[Candidate, ...]
    bound: float
    seconds: float
    notes: tuple[str, ...]
    tried: tuple[Tried, ...] = ()
    memory_bound: bool = False
    free_bounds: Mapping[ShapeKey, float] = field(default_factory=dict[ShapeKey, float])
    tie_broken: Callable[[], SearchResult] | None = None

    @property
    def unlimited(self) -> float:
        """A bound of any plan without a limit."""
        return min(self.free_bounds.values(), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """How meshes are searched for one problem: the user's `options`, and what is known before the search.

    `limit_bytes`: most bytes per device. `without`: meshes that are left out. `explained`: the error that nothing fits says
    why. `below`: only plans of a smaller value are sought. `worth`: the share by which a mesh tried later must be better;
    where it is more than what ties are told by, a postponed mesh is taken up at once, as its plans spare more of the others
    than they could spare of it. `free_bounds`: by mesh, what is known that its plans without a limit cost at the least.
    `tie_break_by_time`: among plans of the least peak the best is sought at once. `planning` starts when planning began,
    where that is before this search.
    """

    limit_bytes: float
    options: Options = field(default_factory=Options)
    without: Collection[ShapeKey] = ()
    explained: bool = True
    below: float = math.inf
    worth: float = WORTHWHILE
    free_bounds: Mapping[ShapeKey, float] = field(default_factory=dict[ShapeKey, float])
    tie_break_by_time: bool = True
    planning: Deadline = field(default_factory=Deadline.never)

    @property
    def at_once(self) -> bool:
        """Whether postponed meshes are taken up at once."""
        return self.worth > WORTHWHILE


def search(meshes: Sequence[Shape], problem: PlanningProblem, how: SearchOptions) -> SearchResult:
    """The plans for these meshes, best first; none where none is below `how.below`.

    Raises: PinError, InfeasibleError where the pins fit no mesh, or no mesh has a plan within the limit; where it is to be
    explained, the error names what needs the most and the least memory that would do.
    """
    meshes = fitting_meshes(meshes, without=how.without, stated=problem.instance if problem.pinned else None)
    run = _MeshSearch(meshes, problem, how)
    most = usable_cores() if how.options.workers is None else how.options.workers
    with paused(), Workers(run.desk.do, run.due, most, planning=how.planning) as workers:
        for wave in run.waves():
            for task, report in workers.each(wave):
                run.memory_bound = run.memory_bound or not report.fits or report.following == "limited"
                run.take(task.mesh, report)
    run.desk.forget()
    if not run.candidates and (len(run.over) == len(meshes) or how.below == math.inf):
        over = [meshes[tried] for tried in sorted(run.over)]

        def why() -> InfeasibleError:
            return no_fit(over, problem, how.limit_bytes, solve_options(how.options, run.due()))

        raise why() if how.explained else Unexplained(f"no plan fits {quantity(how.limit_bytes, 'B')} per device", why)
    if not run.candidates or not run.minimise_memory:
        return run.result(workers.notes)
    seconds = run.deadline.elapsed

    def tie_broken() -> SearchResult:
        run.break_tie(seconds)
        return run.result(workers.notes)

    return tie_broken() if how.tie_break_by_time else replace(run.result(workers.notes), tie_broken=tie_broken)


def solve_options(options: Options, deadline: Deadline) -> SolveOptions:
    """How the problem of one mesh is solved, as the user's options have it."""
    return SolveOptions(deadline=deadline, gap=options.gap, seed=options.seed, share=options.share_layers)


def _kind(shape: Shape, *, looked: bool) -> tuple[int, bool]:
    """What meshes have in common that are compared before what they postponed is taken up.

    Where all are `looked` at first, large problems too are small.
    """
    return math.prod(shape.values()), len(shape) > SMALL_AXES and not looked


class _MeshSearch:
    """What a search knows so far, by the positions of the meshes."""

    def __init__(self, meshes: Sequence[Shape], problem: PlanningProblem, how: SearchOptions) -> None:
        self.meshes, self.how, self.options = meshes, how, how.options
        # Before the deadline starts: the model of the program may have to be made for it.
        self.alone = _Alone(meshes, problem)
        self.deadline = Deadline.after(how.options.time_limit_s)
        self.desk = Desk(meshes, problem, how.limit_bytes, solve_options(how.options, self.due()))
        self.objective = problem.request.objective
        self.minimise_memory = self.objective == "memory"
        self.candidates: dict[int, Candidate] = {}
        self.bounds: dict[int, float] = {}
        self.unlimited: dict[int, float] = {}
        self.notes: list[str] = []
        self.over: set[int] = set()
        self.reports: dict[int, Report] = {}
        self.tasks: dict[int, Task] = {}
        self.stopped = self.memory_bound = False

    @property
    def best(self) -> float:
        """The least value of a plan, or what plans are to be below of."""
        return min((found.value for found in self.candidates.values()), default=self.how.below)

    @property
    def first(self) -> int:
        """The first mesh whose plan is about as good as the best."""
        return min(i for i, found in self.candidates.items() if found.value <= self.best * (1 + WORTHWHILE))

    def result(self, notes: Sequence[str]) -> SearchResult:
        """What the search came to; `notes` are told beside its own."""
        first = self.first if self.candidates else None
        order = sorted(self.candidates, key=lambda tried: (tried != first, self.candidates[tried].value, tried))
        shared_notes = [] if first is None else [self.candidates[first].shared]
        return SearchResult(
            candidates=tuple(self.candidates[tried] for tried in order),
            bound=min(self.bounds.values()),
            seconds=self.deadline.elapsed,
            notes=(*self.notes, *notes, *filter(None, shared_notes)),
            tried=self.tried() if self.candidates else (),
            memory_bound=self.memory_bound,
            free_bounds={shape_key(self.meshes[tried]): bound for tried, bound in self.unlimited.items()},
        )

    def tried(self) -> tuple[Tried, ...]:
        """What became of every mesh."""
        values = {tried: found.value for tried, found in self.candidates.items()}
        bounds = {tried: bound if math.isfinite(bound) else None for tried, bound in self.bounds.items()}
        return tuple(
            Tried(mesh=dict(shape), bound=None if tried in self.over else bounds[tried], value=values.get(tried))
            for tried, shape in enumerate(self.meshes)
        )

    def due(self) -> Deadline:
        """By when a step of a mesh should end that begins now."""
        part = 1.0 if len(self.meshes) == 1 else MESH_SHARE
        return Deadline.after(max(part * self.deadline.left(), MESH_SECONDS))

    def waves(self) -> Iterator[list[Task]]:
        """The steps to take, kind of meshes after kind; those of a wave may be taken at the same time.

        A wave must be settled before the next is taken: its reports decide which meshes are still worth a step.
        """
        self._tell(0)
        if self.alone.bytes / self.alone.most > self.how.limit_bytes:
            for tried in range(len(self.meshes)):
                self.take(tried, Report(bound=math.inf, fits=False))
            return
        looked = self.how.at_once and math.isfinite(self.how.below)
        for _, of_kind in groupby(range(len(self.meshes)), key=lambda tried: _kind(self.meshes[tried], looked=looked)):
            kind = list(of_kind)
            waiting: list[int] = []
            for tried in kind:
                shape = self.meshes[tried]
                floor = self.alone.floor(shape, minimise_memory=self.minimise_memory, best=self._cutoff(tried))
                floor = max(floor, self.how.free_bounds.get(shape_key(shape), 0.0))
                self.unlimited[tried] = floor
                if self.alone.bytes / math.prod(shape.values()) > self.how.limit_bytes:
                    self.memory_bound = self.memory_bound or floor < self._cutoff(tried)
                    self.take(tried, Report(bound=math.inf, fits=False))
                else:
                    self.bounds[tried] = floor
                    waiting.append(tried)
            if self.minimise_memory:
                yield from self._waves("least", waiting)
            else:
                if math.isfinite(self._cutoff(kind[0])) and len(waiting) > 1:
                    yield from self._waves("look", waiting, all_at_once=True)
                yield from self._waves("free", waiting)
            yield from self._waves("limited")
        yield from self._waves("closed")
        self._tell(len(self.meshes) - 1, tried=len(self.meshes))

    def _waves(self, step: SearchStep, first: Sequence[int] = (), *, all_at_once: bool = False) -> Iterator[list[Task]]:
        """A step of the meshes that have come to it, and of those for which it is the `first`, in waves.

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
            yield [self._task(tried, step) for tried in wave]
            size *= WAVE_GROWTH
            if self.how.at_once and step == "free":
                yield from self._waves("limited")

    def _late(self, waiting: Sequence[int], new: Collection[int]) -> bool:
        """Whether no time is left for what waits; what is told where that is so of meshes not begun."""
        begun = sum(tried in self.reports or bound >= self._cutoff(tried) for tried, bound in self.bounds.items())
        if not self.deadline.passed or not self.reports:
            return False
        if not new:
            return bool(self.candidates)
        limit, count = self.options.time_limit_s, len(self.meshes)
        note = f"the time limit of {limit:g} s ended the search after {begun} of {count} meshes"
        self.notes += [note] if not self.stopped else []
        self.stopped = True
        return True

    def _cutoff(self, tried: int) -> float:
        """What a plan of a mesh is to be clearly below of: of plans about as good the one of the first mesh is taken."""
        if self.candidates and self.how.at_once:
            return self.best * (1 - self.how.worth)
        return self.best * (1 + 2 * WORTHWHILE if self.candidates and tried < self.first else 1)

    def _task(self, tried: int, step: SearchStep) -> Task:
        self._tell(tried)
        before, cutoff = self.tasks.get(tried), self._cutoff(tried)
        if step in ("limited", "closed"):
            cutoff *= 1 - WORTHWHILE
        task = Task(mesh=tried, step=step, cutoff=cutoff) if before is None else before.followed_by(step, cutoff=cutoff)
        self.tasks[tried] = task
        return task

    def take(self, tried: int, report: Report) -> None:
        """Takes over what is known of a mesh."""
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
                per_byte=plan.per_byte,
            )
        elif not report.fits:
            self.over.add(tried)
        self._tell(tried)

    def break_tie(self, seconds: float) -> None:
        """Puts the best plan of the least peak, which took so long to find, in the place of any such plan."""
        first, least = self.first, self.reports[self.first].least
        most = max(TIE_BREAK_SHARE * seconds, TIE_BREAK_SECONDS)
        solving = solve_options(self.options, self.due().within(most))
        if least is not None:
            self.candidates[first] = best_of_peak(self.candidates[first], least, solving)

    def _tell(self, mesh: int, tried: int | None = None) -> None:
        """Tells how far the search is: that it is at a mesh, and how many were `tried`."""
        ended = sum(report.following is None for report in self.reports.values())
        if callable(self.options.progress):
            self.options.progress(
                Progress(
                    tried=ended if tried is None else tried,
                    total=len(self.meshes),
                    mesh=self.meshes[mesh],
                    incumbent=min((found.value for found in self.candidates.values()), default=math.inf),
                    bound=min(self.bounds.values(), default=0.0),
                    below=self.how.below,
                    seconds=self.deadline.elapsed,
                    unit=UNITS[self.objective],
                )
            )


class _Alone:
    """What one device needs: the least value of computing, which n devices share if it is divisible, and `bytes`.

    The more devices, the more may stay on their chips: what is computed for a number of them holds for fewer, and is
    computed anew for those where that may tell more.
    """

    def __init__(self, meshes: Sequence[Shape], problem: PlanningProblem) -> None:
        self.problem = problem
        self.most = max(math.prod(shape.values()) for shape in meshes)
        self.divisible = problem.request.objective != "energy"
        # Where there is one mesh only, nothing is to be saved.
        self.several, self.axes = len(meshes) > 1, tuple(meshes[0])
        on_chips = self.most * problem.mesh(meshes[0]).on_chip_bytes
        self.bytes = whole_bytes(problem.model, on_chips) * (1 - WORTHWHILE) if self.several else 0.0

    @cached_property
    def of_shapes(self) -> bool:
        """Whether parts of a kernel may have less work in all than the whole, as a function of shapes says it."""
        return has_work_of_shapes(self.problem.graph)

    def floor(self, shape: Shape, *, minimise_memory: bool, best: float) -> float:
        """A lower bound of what is minimised on a mesh, to be compared with the `best` plan so far."""
        if not self.several:
            return 0.0
        count = math.prod(shape.values())
        if minimise_memory:
            return self.bytes / count
        if self.of_shapes:
            return 0.0
        found = 0.0
        # The least with the room on the chips of all devices, then, if that may tell more, with that of so many.
        for devices in dict.fromkeys((self.most, count)):
            if devices == self.most or found < best < math.inf:
                least = self.problem.least_pooled(self.axes, devices) * (1 - WORTHWHILE)
                found = least / count if self.divisible else least
        return found
