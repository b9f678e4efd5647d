"""One mesh: its best plan under a memory limit, or why it has none that matters.

1. Its optimum without a memory limit bounds every plan on the mesh. Where a plan of another mesh is known, only what is
   better is sought (`narrow`), and mostly there is nothing.
2. Where that plan's memory peak is above the limit, the mesh is `Postponed`: another mesh may have a plan within the limit
   that is better than this bound.
3. If none has, what fits is searched (`under_limit`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from planner.instance import Instance
from planner.least_memory import least_memory
from planner.memory import MemoryModel
from planner.narrow import Narrowed, narrow
from planner.shared_instance import SharedInstance
from planner.shared_layers import Share, solve_shared, words
from planner.solve import Solution
from planner.solve.sharing import Sharing
from planner.under_limit import OVER, within

WORTHWHILE = 1e-6
"""A mesh tried later must be better by this share; simpler meshes come first and win ties."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A feasible plan: an instance, a choice, its value and peak bytes; `bound` is that of its mesh.

    `shared` says of layers that share their decisions how many those are and what it may lose.
    """

    instance: Instance
    choice: tuple[int, ...]
    value: float
    bound: float
    peak_bytes: float
    shared: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is asked of every mesh: bytes per device, the seed of heuristics, whether layers share decisions."""

    limit_bytes: float
    seed: int
    share: Share


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a mesh; `candidate` is None where nothing is better than the best so far, or nothing `fits`."""

    candidate: Candidate | None
    bound: float
    fits: bool = True
    note: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class Postponed:
    """A mesh whose best plan without a memory limit is over the limit; see `limited`."""

    instance: Instance
    narrowed: Narrowed | None
    memory: MemoryModel
    free: Solution
    sharing: Sharing

    @property
    def bound(self) -> float:
        """A lower bound of every plan on the mesh."""
        return self.free.bound

    def limited(self, asked: Asked, *, cutoff: float, end: float) -> Outcome:
        """The best plan within the memory limit that costs less than `cutoff`; `end` is a time of `time.monotonic`."""
        memory, free = self.memory, self.free
        found = within(
            memory,
            free,
            asked.limit_bytes,
            cutoff=cutoff,
            end=end,
            seed=asked.seed,
            sharing=self.sharing,
            share=asked.share,
        )
        if found.choice is None:
            return self._whole(Outcome(candidate=None, bound=found.bound, fits=found.fits))
        return self._whole(_found(memory, found.choice, found.value, found.bound, free, limited=True))

    def _whole(self, outcome: Outcome) -> Outcome:
        return outcome if self.narrowed is None else _lifted(outcome, self.instance, self.narrowed)


def free_plan(instance: Instance, asked: Asked, *, best: float, end: float) -> Outcome | Postponed:
    """The best plan of a mesh that costs less than `best`, by a time of `time.monotonic`."""
    floor = sum(float(np.min(values)) for values in instance.node_values)
    if floor >= best:
        return Outcome(candidate=None, bound=floor)
    cutoff = best * (1 - WORTHWHILE)
    narrowed = None
    if math.isfinite(best):
        narrowed = narrow(instance, cutoff)
        if narrowed.bound >= cutoff:
            return Outcome(candidate=None, bound=cutoff)
    made = instance if narrowed is None else narrowed.instance
    sharing, left = Sharing(), max(end - time.monotonic(), 0.5)
    free = solve_shared(
        made.problem, share=asked.share, time_limit=left, seed=asked.seed, cutoff=cutoff, sharing=sharing
    )
    if free.choice is None:
        return _nothing(free, cutoff, instance.mesh.shape, left)
    memory = MemoryModel(instance=made)
    if float(memory.profile(free.choice).max()) > asked.limit_bytes * OVER:
        return Postponed(instance=instance, narrowed=narrowed, memory=memory, free=free, sharing=sharing)
    outcome = _found(memory, free.choice, free.value, free.bound, free, limited=False)
    return outcome if narrowed is None else _lifted(outcome, instance, narrowed)


def shared_plan(shared: SharedInstance, asked: Asked, *, best: float, end: float) -> Outcome | Postponed:
    """What `free_plan` finds, from one decision for all copies of a layer."""
    if shared.floor >= best:
        return Outcome(candidate=None, bound=shared.floor)
    cutoff = best * (1 - WORTHWHILE)
    sharing, left = Sharing(), max(end - time.monotonic(), 0.5)
    free = shared.solve(cutoff=cutoff, time_limit=left, seed=asked.seed, sharing=sharing)
    if free.choice is None:
        return _nothing(free, cutoff, shared.shape, left)
    instance = shared.whole()
    memory = MemoryModel(instance=instance)
    if float(memory.profile(free.choice).max()) > asked.limit_bytes * OVER:
        return Postponed(instance=instance, narrowed=None, memory=memory, free=free, sharing=sharing)
    return _found(memory, free.choice, free.value, free.bound, free, limited=False)


def _nothing(free: Solution, cutoff: float, shape: Mapping[str, int], seconds: float) -> Outcome:
    """The outcome of a mesh for which no plan below the cutoff was found."""
    note = "" if free.bound >= cutoff else f"mesh {dict(shape)}: nothing found within {seconds:.0f} s"
    return Outcome(candidate=None, bound=min(free.bound, cutoff), note=note)


def least_plan(instance: Instance, asked: Asked, *, best: float, end: float) -> Outcome:
    """The plan of a mesh of the smallest peak memory if that is below `best` bytes, by a time of `time.monotonic`."""
    memory = MemoryModel(instance=instance)
    floor = memory.floor_bytes()
    if floor >= best:
        return Outcome(candidate=None, bound=floor)
    sharing, left = Sharing(), max(end - time.monotonic(), 0.5)
    free = solve_shared(instance.problem, share=asked.share, time_limit=left, seed=asked.seed, sharing=sharing)
    if free.choice is None:
        note = f"mesh {instance.mesh.shape}: nothing found within {left:.0f} s"
        return Outcome(candidate=None, bound=0.0, note=note)
    if memory.profile(free.choice).max() == 0:
        # Of a program without bytes every plan has the least peak; that of the least value is taken.
        return _found(memory, free.choice, 0.0, 0.0, free, limited=False)
    limit = asked.limit_bytes
    least = least_memory(memory, free.choice, min(best, limit), end, asked.seed, share=asked.share)
    if least.peak_bytes > min(best * (1 - WORTHWHILE), limit):
        return Outcome(candidate=None, bound=least.bound, fits=least.peak_bytes <= limit)
    found = within(
        memory,
        free,
        least.peak_bytes,
        cutoff=math.inf,
        end=end,
        seed=asked.seed,
        sharing=sharing,
        share=asked.share,
        least=least,
    )
    choice = least.choice if found.choice is None else found.choice
    return _found(memory, choice, least.peak_bytes, least.bound, free, limited=True)


def _found(
    memory: MemoryModel, choice: tuple[int, ...], value: float, bound: float, free: Solution, *, limited: bool
) -> Outcome:
    candidate = Candidate(
        instance=memory.instance,
        choice=choice,
        value=value,
        bound=bound,
        peak_bytes=float(memory.profile(choice).max()),
        shared=words(free, gap=(value - bound) / value if value > 0 else 0.0, limited=limited),
    )
    return Outcome(candidate=candidate, bound=bound)


def _lifted(outcome: Outcome, instance: Instance, narrowed: Narrowed) -> Outcome:
    """The outcome of a narrowed instance as one of the whole; what was left out costs at least the cutoff."""
    bound, found = min(outcome.bound, narrowed.cutoff), outcome.candidate
    if found is None:
        return replace(outcome, bound=bound)
    lifted = replace(found, instance=instance, choice=narrowed.lift(found.choice), bound=min(found.bound, bound))
    return replace(outcome, candidate=lifted, bound=bound)
