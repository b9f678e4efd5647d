"""Search: the best mesh and strategies under a memory limit, with a bound on what any plan could reach.

The meshes are tried in order, most devices first. n devices need at least an n-th of what one device needs, for computing
and for memory; a mesh for which that is no better than the best plan so far, or does not fit, is done. The rest is as in
`best_on_mesh`; what is postponed there is taken up, lowest bound first, after the other meshes like it (by number of
devices, and whether of three axes or more, whose problems are large): a plan that one of them has within the limit is
mostly better than what the others could have. Gaps that this leaves are closed last, when the best of all meshes is about
known. The bound of the whole search is the least of the meshes' bounds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from planner.decision import Tried
from planner.errors import InfeasibleError
from planner.one_mesh.instance import Instance
from planner.one_mesh.memory import whole_bytes
from planner.options import GAP, Progress, Share, Unit
from planner.rules.op_work import has_work_of_shapes
from planner.search.best_on_mesh import WORTHWHILE, Candidate, Outcome, Postponed, best_of_peak, free_plan, least_plan
from planner.search.least_memory import Least
from planner.search.no_fit import no_fit
from planner.search.one_per_class import SharedInstance
from planner.search.states import States
from planner.solver.budget import Budget
from planner.solver.deadline import Deadline
from planner.solver.smaller.smaller import floor_of
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


@dataclass(frozen=True, kw_only=True)
class Found:
    """All feasible plans by value, the bound over all meshes, what was not finished, and the meshes in their order."""

    candidates: tuple[Candidate, ...]
    bound: float
    seconds: float
    notes: tuple[str, ...]
    tried: tuple[Tried, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is asked of a search: bytes per device, whether their peak is what is minimised, how long it may take.

    `gap` is what may be left between the best plan within the limit and the bound, as a part of the value, `seed` that of
    heuristics; `share` says whether layers share their decisions (see `quotient`), `explained` whether the error that
    nothing fits says why. `unit` is that of the values told to `progress`. Only plans of a value `below` what is known
    already are sought. A mesh tried later must be better by a share of `worth`; where that is more than what ties are told
    by, what is postponed is taken up at once, as the plans it has spare more of the others than they could spare of it.
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

    @property
    def at_once(self) -> bool:
        """Whether what is postponed is taken up at once."""
        return self.worth > WORTHWHILE


def search(meshes: Sequence[Mapping[str, int]], program: States, asked: Asked) -> Found:
    """The plans for these meshes, best first; none where none is below what is asked for.

    Raises: InfeasibleError when no mesh has a plan within the limit; where that is asked for it names what needs the most
    and the least memory that would do.
    """
    limit_bytes = asked.limit_bytes
    run = _MeshSearch(meshes, asked)
    start, stopped = time.monotonic(), False
    alone = _Alone(meshes, program)
    for tried, shape in enumerate(meshes):
        if tried and _kind(shape) != _kind(meshes[tried - 1]):
            run.take_up()
        floor = alone.floor(shape, minimise_memory=asked.minimise_memory, best=run.sought)
        needed = alone.bytes / math.prod(shape.values())
        if run.deadline.passed and tried:
            run.bounds[tried] = floor
            late = f"the time limit of {asked.time_limit_s:g} s ended the search after {tried} of {len(meshes)} meshes"
            run.notes += [late] if not stopped else []
            stopped = True
            continue
        run.tell(tried, shape)
        if needed > limit_bytes:
            run.settle(tried, Outcome(candidate=None, bound=math.inf, fits=False))
        elif floor >= run.sought:
            run.settle(tried, Outcome(candidate=None, bound=floor))
        elif asked.minimise_memory:
            run.settle(tried, least_plan(program.instance(shape), limit_bytes, run.budget(), best=run.best))
        else:
            shared = None if asked.share is False else program.shared(shape)
            stated = program.instance(shape) if shared is None else shared
            run.settle(tried, free_plan(stated, limit_bytes, run.budget(), best=run.sought))
            if asked.at_once:
                run.take_up()
        run.tell(tried + 1, shape)
    run.take_up()
    run.close()
    bound = min(run.bounds.values())
    if not run.candidates and len(run.over) < len(meshes) and asked.below < math.inf:
        return Found(candidates=(), bound=bound, seconds=time.monotonic() - start, notes=tuple(run.notes))
    if asked.minimise_memory and run.candidates:
        run.hasten()
    if not run.candidates and not asked.explained:
        raise InfeasibleError(f"no plan fits {quantity(limit_bytes, 'B')} per device")
    if not run.candidates:
        raise no_fit([meshes[tried] for tried in sorted(run.over)], program, limit_bytes, run.budget())
    first = run.first
    order = sorted(run.candidates, key=lambda tried: (tried != first, run.candidates[tried].value, tried))
    shared = run.candidates[first].shared
    return Found(
        candidates=tuple(run.candidates[tried] for tried in order),
        bound=bound,
        seconds=time.monotonic() - start,
        notes=(*run.notes, *((shared,) if shared else ())),
        tried=run.tried(),
    )


def _kind(shape: Mapping[str, int]) -> tuple[int, bool]:
    """What meshes have in common that are compared before what they postponed is taken up."""
    return math.prod(shape.values()), len(shape) > SMALL_AXES


class _MeshSearch:
    """What a search knows so far, by the positions of the meshes."""

    def __init__(self, meshes: Sequence[Mapping[str, int]], asked: Asked) -> None:
        self.meshes, self.asked = meshes, asked
        self.start, self.deadline = time.monotonic(), Deadline.after(asked.time_limit_s)
        self.candidates: dict[int, Candidate] = {}
        self.bounds: dict[int, float] = {}
        self.notes: list[str] = []
        self.over: set[int] = set()
        self.postponed: dict[int, Postponed] = {}
        self.open: dict[int, Postponed] = {}
        self.least: dict[int, Least] = {}

    @property
    def best(self) -> float:
        """The least value of a plan, or what plans are to be below of."""
        return min((found.value for found in self.candidates.values()), default=self.asked.below)

    @property
    def sought(self) -> float:
        """What the plans of further meshes are to be below of."""
        return self.best * (1 - self.asked.worth) if self.candidates and self.asked.at_once else self.best

    @property
    def first(self) -> int:
        """The first mesh whose plan is about as good as the best."""
        return min(i for i, found in self.candidates.items() if found.value <= self.best * (1 + WORTHWHILE))

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
        part = 1.0 if len(self.meshes) == 1 else MESH_SHARE
        deadline = Deadline.after(max(part * self.deadline.left(), MESH_SECONDS))
        return Budget(deadline=deadline, gap=self.asked.gap, seed=self.asked.seed, share=self.asked.share)

    def settle(self, tried: int, outcome: Outcome | Postponed) -> None:
        """Takes over what became of a mesh."""
        self.bounds[tried] = outcome.bound
        if isinstance(outcome, Postponed):
            self.postponed[tried] = outcome
            return
        self.notes += [outcome.note] if outcome.note else []
        if outcome.open is not None:
            self.open[tried] = outcome.open
        if outcome.least is not None:
            self.least[tried] = outcome.least
        if outcome.candidate is not None:
            self.candidates[tried] = outcome.candidate
        elif not outcome.fits:
            self.over.add(tried)

    def take_up(self) -> None:
        """Searches the postponed meshes under the memory limit."""
        self._go_on(self.postponed, Postponed.limited)

    def close(self) -> None:
        """Closes the gaps that this left open."""
        self._go_on(self.open, Postponed.closed)

    def _go_on(self, waiting: dict[int, Postponed], searched: Callable[..., Outcome]) -> None:
        """Searches what waits, lowest bound first: a better plan there leaves less to be sought in the others."""
        for tried in sorted(waiting, key=lambda tried: (self.bounds[tried], tried)):
            mesh = waiting.pop(tried)
            # Of plans about as good the one of the first mesh is taken.
            sign = 1 if self.candidates and tried < self.first else -1
            cutoff = self.best * (1 + sign * WORTHWHILE)
            cutoff = min(cutoff, self.sought) if self.asked.at_once else cutoff
            late = self.candidates and self.deadline.passed
            if self.bounds[tried] < cutoff and not late:
                self.tell(tried, self.meshes[tried])
                self.settle(tried, searched(mesh, self.budget(), cutoff=cutoff))

    def hasten(self) -> None:
        """Puts the best plan of the least peak in the place of any such plan."""
        first, spent = self.first, time.monotonic() - self.start
        budget = self.budget().within(max(HASTENING * spent, HASTENING_SECONDS))
        self.candidates[first] = best_of_peak(self.candidates[first], self.least[first], budget)

    def tell(self, tried: int, shape: Mapping[str, int]) -> None:
        """Tells how far the search is."""
        if self.asked.progress is not None:
            self.asked.progress(
                Progress(
                    tried=tried,
                    total=len(self.meshes),
                    mesh=shape,
                    incumbent=self.best,
                    bound=min(self.bounds.values(), default=0.0),
                    seconds=time.monotonic() - self.start,
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
