"""Search: the best mesh and strategies under a memory limit, with a bound on what any plan could reach.

For every mesh, most devices first:
 0. n devices need at least an n-th of what one device needs for computing; a mesh for which that is no better than the
    best plan so far is done;
 1. its instance's optimum without a memory limit is a lower bound; a mesh whose bound is no better than the best plan so
    far is done (so is one whose computing alone is not);
 2. while the plan's memory peak is above the limit, a row for that point of the schedule is added and it is solved again.
The bound of the whole search is the least of the meshes' bounds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planner.errors import InfeasibleError
from planner.instance import Instance
from planner.memory import MemoryModel
from planner.solve import Solution, solve
from planner.units import quantity

MAX_ROWS = 24
"""Most points of the schedule limited for one mesh before its plan is given up."""
WORTHWHILE = 1e-6
"""A mesh tried later must be better by this share; simpler meshes come first and win ties."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What the search has seen so far: meshes finished of all, the mesh just begun or finished, best value and bound.

    Told before and after every mesh.
    """

    tried: int
    total: int
    mesh: Mapping[str, int]
    incumbent: float
    bound: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A feasible plan: an instance, a choice, its value and peak bytes; `bound` is that of its mesh."""

    instance: Instance
    choice: tuple[int, ...]
    value: float
    bound: float
    peak_bytes: float


@dataclass(frozen=True, kw_only=True)
class Found:
    """All feasible plans by value, the bound over all meshes, and what was not finished."""

    candidates: tuple[Candidate, ...]
    bound: float
    seconds: float
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Failure:
    """A mesh whose plans did not fit: its optimum without a limit, and the point of the schedule that could not be kept."""

    memory: MemoryModel
    free: Solution
    where: str


@dataclass(frozen=True, kw_only=True)
class _Outcome:
    """What became of a mesh; `candidate` is None for one that is no better than the best so far, or does not fit."""

    candidate: Candidate | None
    bound: float
    failure: _Failure | None = None
    note: str = ""


def search(
    meshes: Sequence[Mapping[str, int]],
    make_instance: Callable[[Mapping[str, int]], Instance],
    *,
    limit_bytes: float,
    minimise_memory: bool,
    time_limit_s: float,
    seed: int,
    progress: Callable[[Progress], object] | None = None,
) -> Found:
    """The plans for these meshes, best first.

    Raises: InfeasibleError when no mesh has a plan within `limit_bytes` per device; it names what needs the most and the
    least memory that would do.
    """
    start = time.monotonic()
    candidates: list[Candidate] = []
    bounds: list[float] = []
    notes: list[str] = []
    failures: list[_Failure] = []
    best = math.inf

    def tell(tried: int, shape: Mapping[str, int]) -> None:
        if progress is not None:
            elapsed = time.monotonic() - start
            bound = min(bounds, default=0.0)
            progress(Progress(tried=tried, total=len(meshes), mesh=shape, incumbent=best, bound=bound, seconds=elapsed))

    alone, divisible = _alone(meshes, make_instance) if not minimise_memory else (0.0, True)
    for tried, shape in enumerate(meshes):
        left = time_limit_s - (time.monotonic() - start)
        if left <= 0 and tried:
            notes.append(f"the time limit of {time_limit_s:g} s ended the search after {tried} of {len(meshes)} meshes")
            bounds.append(0.0)
            break
        tell(tried, shape)
        floor = alone / math.prod(shape.values()) if divisible else alone
        if floor >= best:
            bounds.append(floor)
            tell(tried + 1, shape)
            continue
        outcome = _solve_mesh(make_instance(shape), limit_bytes, best, minimise_memory, max(left, 1.0), seed)
        bounds.append(outcome.bound)
        if outcome.note:
            notes.append(outcome.note)
        if outcome.candidate is not None:
            candidates.append(outcome.candidate)
            best = min(best, outcome.candidate.value)
        elif outcome.failure is not None:
            failures.append(outcome.failure)
        tell(tried + 1, shape)
    if not candidates:
        raise _infeasible(failures, limit_bytes, seed)
    order = sorted(range(len(candidates)), key=lambda i: (candidates[i].value, i))
    first = min(i for i in order if candidates[i].value <= candidates[order[0]].value * (1 + WORTHWHILE))
    order.remove(first)
    return Found(
        candidates=tuple(candidates[i] for i in (first, *order)),
        bound=min(bounds),
        seconds=time.monotonic() - start,
        notes=tuple(notes),
    )


def _alone(
    meshes: Sequence[Mapping[str, int]], make_instance: Callable[[Mapping[str, int]], Instance]
) -> tuple[float, bool]:
    """The least value of computing on one device, and whether n devices share it (time) or not (energy).

    (0, True) where no count of devices could be pruned by it.
    """
    if len({math.prod(shape.values()) for shape in meshes}) < 2:
        return 0.0, True
    instance = make_instance(dict.fromkeys(meshes[0], 1))
    value = sum(float(np.min(values)) for values in instance.node_values)
    return value * (1 - WORTHWHILE), instance.objective.name != "energy"


def _solve_mesh(
    instance: Instance, limit_bytes: float, best: float, minimise_memory: bool, time_limit_s: float, seed: int
) -> _Outcome:
    memory = MemoryModel(instance=instance)
    if minimise_memory:
        floor = memory.floor_bytes()
    else:
        floor = sum(float(np.min(values)) for values in instance.node_values)
    if floor >= best:
        return _Outcome(candidate=None, bound=floor)
    problem = instance.problem()
    free = solve(problem, time_limit=time_limit_s, seed=seed)
    if free.choice is None:
        if free.status == "infeasible":
            return _Outcome(candidate=None, bound=math.inf)
        note = f"mesh {instance.mesh.shape}: nothing found within {time_limit_s:.0f} s"
        return _Outcome(candidate=None, bound=0.0 if minimise_memory else free.bound, note=note)
    if minimise_memory:
        choice, peak = _least_memory(memory, free, min(best, limit_bytes), time_limit_s, seed)
        if peak > min(best * (1 - WORTHWHILE), limit_bytes):
            failure = _Failure(memory=memory, free=free, where="memory") if peak > limit_bytes else None
            return _Outcome(candidate=None, bound=floor, failure=failure)
        found = Candidate(instance=instance, choice=choice, value=peak, bound=floor, peak_bytes=peak)
        return _Outcome(candidate=found, bound=found.bound)
    if free.bound >= best * (1 - WORTHWHILE):
        return _Outcome(candidate=None, bound=free.bound)
    solution, where = _within(memory, free, limit_bytes, time_limit_s, seed)
    if solution is None or solution.choice is None:
        failure = _Failure(memory=memory, free=free, where=where)
        return _Outcome(candidate=None, bound=math.inf, failure=failure)
    candidate = Candidate(
        instance=instance,
        choice=tuple(solution.choice[: len(problem.node_costs)]),
        value=solution.value,
        bound=solution.bound,
        peak_bytes=float(memory.profile(solution.choice).max()),
    )
    return _Outcome(candidate=candidate, bound=solution.bound)


def _within(
    memory: MemoryModel, free: Solution, limit_bytes: float, time_limit_s: float, seed: int
) -> tuple[Solution | None, str]:
    """A solution whose peak is within the limit, or None and the point of the schedule that could not be kept."""
    solution, times = free, list[int]()
    problem = memory.instance.problem()
    end = time.monotonic() + time_limit_s
    for _ in range(MAX_ROWS):
        if solution.choice is None:
            break
        profile = memory.profile(solution.choice)
        peak = int(profile.argmax())
        if profile[peak] <= limit_bytes * (1 + 1e-9):
            return solution, ""
        if peak in times or time.monotonic() > end:
            break
        times.append(peak)
        limited = memory.limited(problem, times, limit_bytes)
        solution = solve(limited, time_limit=max(end - time.monotonic(), 1.0), seed=seed)
    return None, memory.describe(times[-1]) if times else "memory"


def _least_memory(
    memory: MemoryModel, free: Solution, good_bytes: float, time_limit_s: float, seed: int
) -> tuple[tuple[int, ...], float]:
    """(choice, peak) of the plan with about the smallest peak, found by lowering a limit by bisection.

    Ends once nothing more than 2 % smaller is left, or once the mesh cannot go below `good_bytes`.
    """
    end = time.monotonic() + time_limit_s
    best = free.choice or ()
    high, low = float(memory.profile(best).max()), memory.floor_bytes()
    while high - low > 0.02 * high and low < good_bytes and time.monotonic() < end:
        middle = (low + high) / 2
        found, _ = _within(memory, free, middle, max(end - time.monotonic(), 1.0), seed)
        if found is None or found.choice is None:
            low = middle
        else:
            best, high = found.choice, float(memory.profile(found.choice).max())
    return tuple(best[: len(memory.instance.strategies)]), high


LEAST_MEMORY_SECONDS = 20.0


def _infeasible(failures: Sequence[_Failure], limit_bytes: float, seed: int) -> InfeasibleError:
    """The error for a limit that nothing fits: the least memory that would do, where, and for what."""
    if not failures:
        return InfeasibleError("no mesh has any plan: the pins conflict; relax them or fix another mesh")
    end = time.monotonic() + LEAST_MEMORY_SECONDS
    least, words = math.inf, ""
    for failure in sorted(failures, key=lambda f: f.memory.floor_bytes()):
        if failure.memory.floor_bytes() >= least:
            break
        left = max(end - time.monotonic(), 0.5)
        choice, peak = _least_memory(failure.memory, failure.free, least, left, seed)
        if peak < least:
            profile = failure.memory.profile(choice)
            sizes = failure.memory.alive(int(profile.argmax()), choice)
            largest = ", ".join(f"{name} takes {quantity(size, 'B')}" for name, size in sizes[:3])
            least, words = peak, f"{failure.where}, where {largest}"
    return InfeasibleError(
        f"no plan fits {quantity(limit_bytes, 'B')} per device; the least memory that would do is about "
        f"{quantity(least, 'B')} ({words}). Raise memory_limit, use more devices, or recompute more (jax.checkpoint)",
        least_bytes=least,
    )
