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
from dataclasses import dataclass, replace

import numpy as np

from planner.errors import InfeasibleError
from planner.instance import Instance
from planner.memory import MemoryModel
from planner.problem import Problem
from planner.solve import Solution, solve
from planner.units import quantity

MAX_ROWS = 24
"""Most points of the schedule limited for one mesh before its plan is given up."""
ROWS_SECONDS = 20.0
"""Time for the exact problem with memory rows of one mesh; then memory is priced instead."""
FASTEST_SECONDS = 5.0
"""Time for the problem at one price of memory."""
PRICES = 14
"""Prices of memory tried."""
GAME_ROUNDS = 40
GAME_GAP = 0.01
GAME_RATE = 4.0
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

    @property
    def splits_anything(self) -> bool:
        """Whether an axis of the mesh splits a factor anywhere."""
        chosen = zip(self.instance.strategies, self.choice, strict=True)
        return any(bool((strategies.assignment[pick] >= 0).any()) for strategies, pick in chosen)


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
    problem = instance.problem
    free = solve(problem, time_limit=time_limit_s, seed=seed)
    if free.choice is None:
        if free.status == "infeasible":
            return _Outcome(candidate=None, bound=math.inf)
        note = f"mesh {instance.mesh.shape}: nothing found within {time_limit_s:.0f} s"
        return _Outcome(candidate=None, bound=0.0 if minimise_memory else free.bound, note=note)
    if minimise_memory:
        least = _least_memory(memory, free.choice, min(best, limit_bytes), time_limit_s, seed)
        if least.peak_bytes > min(best * (1 - WORTHWHILE), limit_bytes):
            failure = _Failure(memory=memory, free=free, where="memory") if least.peak_bytes > limit_bytes else None
            return _Outcome(candidate=None, bound=least.bound, failure=failure)
        fast = _priced(memory, free, least, least.peak_bytes, seed)
        choice = fast.choice if fast is not None else least.choice
        found = Candidate(
            instance=instance, choice=choice, value=least.peak_bytes, bound=least.bound, peak_bytes=least.peak_bytes
        )
        return _Outcome(candidate=found, bound=least.bound)
    if free.bound >= best * (1 - WORTHWHILE):
        return _Outcome(candidate=None, bound=free.bound)
    solution, where = _within(memory, free, limit_bytes, min(time_limit_s, ROWS_SECONDS), seed)
    if solution is not None and solution.choice is not None:
        candidate = Candidate(
            instance=instance,
            choice=tuple(solution.choice[: len(problem.node_costs)]),
            value=solution.value,
            bound=solution.bound,
            peak_bytes=float(memory.profile(solution.choice).max()),
        )
        return _Outcome(candidate=candidate, bound=solution.bound)
    least = _least_memory(memory, free.choice, limit_bytes, time_limit_s, seed)
    priced = _priced(memory, free, least, limit_bytes, seed)
    if priced is None:
        failure = _Failure(memory=memory, free=free, where=where)
        return _Outcome(candidate=None, bound=math.inf if least.bound > limit_bytes else free.bound, failure=failure)
    return _Outcome(candidate=priced, bound=priced.bound)


@dataclass(frozen=True, kw_only=True)
class _Least:
    """A plan of about the least peak memory, a bound of it, and the points of the schedule that decided, weighted."""

    choice: tuple[int, ...]
    peak_bytes: float
    bound: float
    times: tuple[int, ...]
    weights: tuple[float, ...]


def _within(
    memory: MemoryModel, free: Solution, limit_bytes: float, time_limit_s: float, seed: int
) -> tuple[Solution | None, str]:
    """A solution whose peak is within the limit, or None and the point of the schedule that could not be kept."""
    solution, times = free, list[int]()
    problem = memory.instance.problem
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
    memory: MemoryModel, start: Sequence[int], good_bytes: float, time_limit_s: float, seed: int
) -> _Least:
    """The plan of about the smallest peak memory.

        minimise over choices x   max over points t   usage_t(x)

    by multiplicative weights: for weights w over the points met so far, summing to 1, the least of sum_t w_t usage_t(x)
    is a lower bound of the smallest peak, and its x is tried; points that it uses much gain weight (Arora, Hazan & Kale
    2012, https://doi.org/10.4086/toc.2012.v008a006). Ends at a gap of 1 %, or once the bound passes `good_bytes`.
    """
    end = time.monotonic() + time_limit_s
    count = len(memory.instance.strategies)
    best, peak, bound = tuple(start[:count]), float(memory.profile(start).max()), memory.floor_bytes()
    bare = Problem(
        name="least memory",
        node_costs=tuple(np.zeros(len(strategies)) for strategies in memory.instance.strategies),
        edges=(),
        node_names=tuple(node.name for node in memory.instance.model.flow.nodes),
    )
    times: list[int] = []
    gains: dict[int, float] = {}
    choice: Sequence[int] = best
    for _ in range(GAME_ROUNDS):
        profile = memory.profile(choice)
        top = int(profile.argmax())
        if top not in times:
            times.append(top)
            gains[top] = max(gains.values(), default=0.0)
        for point in times:
            gains[point] += GAME_RATE * (float(profile[point]) / float(profile[top]) - 1.0)
        if profile[top] < peak:
            best, peak = tuple(choice[:count]), float(profile[top])
        if peak - bound <= GAME_GAP * peak or bound >= good_bytes or time.monotonic() > end:
            break
        limited = memory.limited(bare, times, peak)
        highest = max(gains.values())
        weights = np.exp([gains[point] - highest for point in times])
        costs = [np.array(values) for values in limited.node_costs]
        for weight, row in zip(weights / weights.sum(), limited.rows, strict=True):
            for node, usage in zip(row.nodes, row.usages, strict=True):
                costs[node] = costs[node] + weight * usage
        weighted = replace(limited, node_costs=tuple(costs), rows=())
        solution = solve(weighted, time_limit=max(end - time.monotonic(), 0.5), seed=seed)
        if solution.choice is None:
            break
        bound, choice = max(bound, solution.bound), solution.choice
    highest = max(gains.values())
    weights = np.exp([gains[point] - highest for point in times])
    return _Least(
        choice=best,
        peak_bytes=peak,
        bound=min(bound, peak),
        times=tuple(times),
        weights=tuple(float(w) for w in weights / weights.sum()),
    )


def _priced(memory: MemoryModel, free: Solution, least: _Least, limit_bytes: float, seed: int) -> Candidate | None:
    """The fastest plan within the limit that one price of memory finds, starting from a plan of least memory.

    With the weights w of that plan's game, time + price * sum_t w_t usage_t is minimised for prices that close in on the
    smallest one whose plan fits; less price * limit, each minimum is a lower bound.
    """
    if least.peak_bytes > limit_bytes:
        return None
    problem = memory.instance.problem
    limited = memory.limited(problem, least.times, limit_bytes)
    count = len(problem.node_costs)
    best, value, bound = least.choice, problem.evaluate(least.choice), free.bound
    price, low, high = free.value / limit_bytes, 0.0, math.inf
    for _ in range(PRICES):
        costs = [np.array(values) for values in limited.node_costs]
        for weight, row in zip(least.weights, limited.rows, strict=True):
            for node, usage in zip(row.nodes, row.usages, strict=True):
                costs[node] = costs[node] + price * weight * usage
        priced = replace(limited, node_costs=tuple(costs), rows=())
        solution = solve(priced, time_limit=FASTEST_SECONDS, seed=seed)
        if solution.choice is None:
            break
        bound = max(bound, solution.bound - price * limit_bytes)
        choice = tuple(solution.choice[:count])
        if float(memory.profile(choice).max()) <= limit_bytes:
            high = price
            if (found := problem.evaluate(choice)) < value:
                best, value = choice, found
        else:
            low = price
        price = 4 * low if math.isinf(high) else math.sqrt(max(low, high / 256) * high)
    peak = float(memory.profile(best).max())
    return Candidate(instance=memory.instance, choice=best, value=value, bound=min(bound, value), peak_bytes=peak)


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
        found = _least_memory(failure.memory, failure.free.choice or (), least, left, seed)
        if found.peak_bytes < least:
            profile = failure.memory.profile(found.choice)
            sizes = failure.memory.alive(int(profile.argmax()), found.choice)
            largest = ", ".join(f"{name} takes {quantity(size, 'B')}" for name, size in sizes[:3])
            least, words = found.peak_bytes, f"{failure.where}, where {largest}"
    return InfeasibleError(
        f"no plan fits {quantity(limit_bytes, 'B')} per device; the least memory that would do is about "
        f"{quantity(least, 'B')} ({words}). Raise memory_limit, use more devices, or recompute more (jax.checkpoint)",
        least_bytes=least,
    )
