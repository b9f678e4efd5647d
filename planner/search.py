"""Search: the best mesh and strategies under a memory limit, with a bound on what any plan could reach.

For every mesh, most devices first:
 0. n devices need at least an n-th of what one device needs, for computing and for memory; a mesh for which that is no
    better than the best plan so far, or does not fit, is done;
 1. its instance's optimum without a memory limit is a lower bound; a mesh whose bound is no better than the best plan so
    far is done (so is one whose computing alone is not);
 2. where that plan's memory peak is above the limit, the plan of least memory says whether anything fits (`least_memory`),
    and what fits is searched (`under_limit`).
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
from planner.least_memory import least_memory
from planner.memory import MemoryModel
from planner.solve import solve
from planner.solve.sharing import Sharing
from planner.under_limit import OVER, within
from planner.units import quantity

WORTHWHILE = 1e-6
"""A mesh tried later must be better by this share; simpler meshes come first and win ties."""
MESH_SHARE = 0.4
"""Part of the time left that one mesh may take: another may be better."""
LEAST_MEMORY_SECONDS = 20.0
"""Time for saying how much memory would do where nothing fits."""


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
class _Outcome:
    """What became of a mesh; `candidate` is None where nothing is better than the best so far, or nothing `fits`."""

    candidate: Candidate | None
    bound: float
    fits: bool = True
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
    end = start + time_limit_s
    candidates: list[Candidate] = []
    bounds: list[float] = []
    notes: list[str] = []
    over: list[Mapping[str, int]] = []
    best, stopped = math.inf, False

    def tell(tried: int, shape: Mapping[str, int]) -> None:
        if progress is not None:
            elapsed = time.monotonic() - start
            bound = min(bounds, default=0.0)
            progress(Progress(tried=tried, total=len(meshes), mesh=shape, incumbent=best, bound=bound, seconds=elapsed))

    alone = _alone(meshes, make_instance)
    for tried, shape in enumerate(meshes):
        left = end - time.monotonic()
        floor, needed = alone.floor(shape, minimise_memory), alone.bytes / math.prod(shape.values())
        if left <= 0 and tried:
            bounds.append(floor)
            late = f"the time limit of {time_limit_s:g} s ended the search after {tried} of {len(meshes)} meshes"
            notes += [late] if not stopped else []
            stopped = True
            continue
        tell(tried, shape)
        if needed > limit_bytes or floor >= best:
            bounds.append(math.inf if needed > limit_bytes else floor)
            over += [shape] if needed > limit_bytes else []
            tell(tried + 1, shape)
            continue
        share = left if len(meshes) == 1 else MESH_SHARE * left
        outcome = _solve_mesh(make_instance(shape), limit_bytes, best, minimise_memory, max(share, 1.0), seed)
        bounds.append(outcome.bound)
        if outcome.note:
            notes.append(outcome.note)
        if outcome.candidate is not None:
            candidates.append(outcome.candidate)
            best = min(best, outcome.candidate.value)
        elif not outcome.fits:
            over.append(shape)
        tell(tried + 1, shape)
    if not candidates:
        raise _infeasible(over, make_instance, limit_bytes, seed)
    order = sorted(range(len(candidates)), key=lambda i: (candidates[i].value, i))
    first = min(i for i in order if candidates[i].value <= candidates[order[0]].value * (1 + WORTHWHILE))
    order.remove(first)
    return Found(
        candidates=tuple(candidates[i] for i in (first, *order)),
        bound=min(bounds),
        seconds=time.monotonic() - start,
        notes=tuple(notes),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Alone:
    """What one device needs: the least `value` of computing, which n devices share if it is `divisible`, and `bytes`."""

    value: float
    divisible: bool
    bytes: float

    def floor(self, shape: Mapping[str, int], minimise_memory: bool) -> float:
        """A lower bound of what is minimised on a mesh."""
        count = math.prod(shape.values())
        if minimise_memory:
            return self.bytes / count
        return self.value / count if self.divisible else self.value


def _alone(meshes: Sequence[Mapping[str, int]], make_instance: Callable[[Mapping[str, int]], Instance]) -> _Alone:
    """What one device needs; nothing where there is one mesh only, and so nothing to be saved."""
    if len(meshes) < 2:
        return _Alone(value=0.0, divisible=True, bytes=0.0)
    instance = make_instance(dict.fromkeys(meshes[0], 1))
    value = sum(float(np.min(values)) for values in instance.node_values)
    return _Alone(
        value=value * (1 - WORTHWHILE),
        divisible=instance.objective.name != "energy",
        bytes=MemoryModel(instance=instance).whole_bytes() * (1 - WORTHWHILE),
    )


def _solve_mesh(
    instance: Instance, limit_bytes: float, best: float, minimise_memory: bool, time_limit_s: float, seed: int
) -> _Outcome:
    end = time.monotonic() + time_limit_s
    memory = MemoryModel(instance=instance)
    if minimise_memory:
        floor = memory.floor_bytes()
    else:
        floor = sum(float(np.min(values)) for values in instance.node_values)
    if floor >= best:
        return _Outcome(candidate=None, bound=floor)
    better = best * (1 - WORTHWHILE)
    cutoff = math.inf if minimise_memory else better
    sharing = Sharing()
    free = solve(instance.problem, time_limit=time_limit_s, seed=seed, cutoff=cutoff, sharing=sharing)
    if free.choice is None:
        if free.bound >= cutoff:
            return _Outcome(candidate=None, bound=free.bound)
        note = f"mesh {instance.mesh.shape}: nothing found within {time_limit_s:.0f} s"
        return _Outcome(candidate=None, bound=0.0 if minimise_memory else free.bound, note=note)
    if minimise_memory:
        good = min(best, limit_bytes)
        least = least_memory(memory, free.choice, good, end, seed)
        if least.peak_bytes > min(better, limit_bytes):
            return _Outcome(candidate=None, bound=least.bound, fits=least.peak_bytes <= limit_bytes)
        found = within(memory, free, least, least.peak_bytes, cutoff=math.inf, end=end, seed=seed, sharing=sharing)
        choice = least.choice if found.choice is None else found.choice
        return _found(memory, choice, least.peak_bytes, least.bound)
    if float(memory.profile(free.choice).max()) <= limit_bytes * OVER:
        return _found(memory, free.choice, free.value, free.bound)
    least = least_memory(memory, free.choice, limit_bytes, end, seed)
    if least.peak_bytes > limit_bytes:
        bound = math.inf if least.bound > limit_bytes else free.bound
        return _Outcome(candidate=None, bound=bound, fits=False)
    found = within(memory, free, least, limit_bytes, cutoff=cutoff, end=end, seed=seed, sharing=sharing)
    if found.choice is None:
        return _Outcome(candidate=None, bound=found.bound)
    return _found(memory, found.choice, found.value, found.bound)


def _found(memory: MemoryModel, choice: tuple[int, ...], value: float, bound: float) -> _Outcome:
    peak = float(memory.profile(choice).max())
    candidate = Candidate(instance=memory.instance, choice=choice, value=value, bound=bound, peak_bytes=peak)
    return _Outcome(candidate=candidate, bound=bound)


def _infeasible(
    meshes: Sequence[Mapping[str, int]],
    make_instance: Callable[[Mapping[str, int]], Instance],
    limit_bytes: float,
    seed: int,
) -> InfeasibleError:
    """The error for a limit that nothing fits: the least memory that would do, where, and for what."""
    if not meshes:
        return InfeasibleError("no mesh has any plan: the pins conflict; relax them or fix another mesh")
    end = time.monotonic() + LEAST_MEMORY_SECONDS
    most = max(math.prod(shape.values()) for shape in meshes)
    least, words = math.inf, ""
    for shape in meshes:
        if math.prod(shape.values()) < most or (words and time.monotonic() > end):
            continue
        memory = MemoryModel(instance=make_instance(shape))
        if memory.floor_bytes() >= least:
            continue
        free = solve(memory.instance.problem, time_limit=max(0.5 * (end - time.monotonic()), 0.5), seed=seed)
        if free.choice is None:
            continue
        found = least_memory(memory, free.choice, least, end, seed)
        if found.peak_bytes < least:
            top = int(memory.profile(found.choice).argmax())
            largest = ", ".join(
                f"{name} takes {quantity(size, 'B')}" for name, size in memory.alive(top, found.choice)[:3]
            )
            least, words = found.peak_bytes, f"{memory.describe(top)}, where {largest}"
    return InfeasibleError(
        f"no plan fits {quantity(limit_bytes, 'B')} per device; the least memory that would do is about "
        f"{quantity(least, 'B')} ({words}). Raise memory_limit, use more devices, or recompute more (jax.checkpoint)",
        least_bytes=least,
    )
