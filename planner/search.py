"""Search: the best mesh and strategies under a memory limit, with a bound on what any plan could reach.

For every mesh, most devices first:
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
class _Outcome:
    candidate: Candidate | None
    bound: float
    least_bytes: float
    where: str
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
    failures: list[_Outcome] = []
    best = math.inf

    def tell(tried: int, shape: Mapping[str, int]) -> None:
        if progress is not None:
            elapsed = time.monotonic() - start
            bound = min(bounds, default=0.0)
            progress(
                Progress(tried=tried, total=len(meshes), mesh=shape, incumbent=best, bound=bound, seconds=elapsed)
            )

    for tried, shape in enumerate(meshes):
        left = time_limit_s - (time.monotonic() - start)
        if left <= 0 and tried:
            notes.append(f"the time limit of {time_limit_s:g} s ended the search after {tried} of {len(meshes)} meshes")
            bounds.append(0.0)
            break
        tell(tried, shape)
        outcome = _solve_mesh(make_instance(shape), limit_bytes, best, minimise_memory, max(left, 1.0), seed)
        bounds.append(outcome.bound)
        if outcome.note:
            notes.append(outcome.note)
        if outcome.candidate is not None:
            candidates.append(outcome.candidate)
            best = min(best, outcome.candidate.value)
        elif outcome.where:
            failures.append(outcome)
        tell(tried + 1, shape)
    if not candidates:
        raise _infeasible(failures, limit_bytes)
    order = sorted(range(len(candidates)), key=lambda i: (candidates[i].value, i))
    first = min(i for i in order if candidates[i].value <= candidates[order[0]].value * (1 + WORTHWHILE))
    order.remove(first)
    return Found(
        candidates=tuple(candidates[i] for i in (first, *order)),
        bound=min(bounds),
        seconds=time.monotonic() - start,
        notes=tuple(notes),
    )


def _solve_mesh(
    instance: Instance, limit_bytes: float, best: float, minimise_memory: bool, time_limit_s: float, seed: int
) -> _Outcome:
    nothing = _Outcome(candidate=None, bound=math.inf, least_bytes=math.inf, where="")
    floor = sum(float(np.min(values)) for values in instance.node_values)
    if floor >= best and not minimise_memory:
        return _Outcome(candidate=None, bound=floor, least_bytes=math.inf, where="")
    problem, memory = instance.problem(), MemoryModel(instance=instance)
    free = solve(problem, time_limit=time_limit_s, seed=seed)
    if free.choice is None:
        if free.status == "infeasible":
            return nothing
        note = f"mesh {instance.mesh.shape}: nothing found within {time_limit_s:.0f} s"
        return _Outcome(candidate=None, bound=free.bound, least_bytes=math.inf, where="", note=note)
    if free.bound >= best * (1 - WORTHWHILE) and not minimise_memory:
        return _Outcome(candidate=None, bound=free.bound, least_bytes=math.inf, where="")
    if minimise_memory:
        return _least_memory(memory, free, limit_bytes, time_limit_s, seed)
    solution, where = _within(memory, free, limit_bytes, time_limit_s, seed)
    if solution is not None and solution.choice is not None:
        candidate = Candidate(
            instance=instance,
            choice=tuple(solution.choice[: len(problem.node_costs)]),
            value=solution.value,
            bound=solution.bound,
            peak_bytes=float(memory.profile(solution.choice).max()),
        )
        return _Outcome(candidate=candidate, bound=solution.bound, least_bytes=math.inf, where="")
    least = _least_memory(memory, free, math.inf, time_limit_s, seed).candidate
    return _Outcome(
        candidate=None,
        bound=math.inf,
        least_bytes=least.peak_bytes if least else math.inf,
        where=f"{where}, where {_largest(memory, least)}" if least else where,
    )


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


def _least_memory(memory: MemoryModel, free: Solution, limit_bytes: float, time_limit_s: float, seed: int) -> _Outcome:
    """The plan with about the smallest peak: the limit is lowered by bisection until nothing is found (to 2 %)."""
    end = time.monotonic() + time_limit_s
    best, low = free, 0.0
    high = float(memory.profile(free.choice or ()).max())
    while high - low > 0.02 * high and time.monotonic() < end:
        middle = (low + high) / 2
        found, _ = _within(memory, free, middle, max(end - time.monotonic(), 1.0), seed)
        if found is None or found.choice is None:
            low = middle
        else:
            best, high = found, float(memory.profile(found.choice).max())
    if best.choice is None or high > limit_bytes:
        return _Outcome(candidate=None, bound=math.inf, least_bytes=high, where="memory")
    count = len(memory.instance.strategies)
    candidate = Candidate(
        instance=memory.instance, choice=tuple(best.choice[:count]), value=high, bound=low, peak_bytes=high
    )
    return _Outcome(candidate=candidate, bound=low, least_bytes=high, where="")


def _largest(memory: MemoryModel, candidate: Candidate) -> str:
    """The largest tensors alive at the peak of a plan, in words."""
    profile = memory.profile(candidate.choice)
    sizes = memory.alive(int(profile.argmax()), candidate.choice)
    words = [f"{name} takes {size / 1e9:.3g} GB" for name, size in sizes[:3]]
    return ", ".join(words)


def _infeasible(failures: Sequence[_Outcome], limit_bytes: float) -> InfeasibleError:
    if not failures:
        return InfeasibleError("no mesh has any plan: the pins conflict; relax them or fix another mesh")
    least = min(failures, key=lambda outcome: outcome.least_bytes)
    return InfeasibleError(
        f"no plan fits {limit_bytes / 1e9:.3g} GB per device; the least memory that would do is about "
        f"{least.least_bytes / 1e9:.3g} GB ({least.where}). Raise memory_limit, use more devices, or recompute more "
        "(jax.checkpoint)"
    )
