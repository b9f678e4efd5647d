"""One mesh: its best plan under a memory limit, or why it has none that matters.

1. Its optimum without a memory limit bounds every plan on the mesh. Where a plan of another mesh is known, only what is
   better is sought (`look`, which narrows), and mostly there is nothing.
2. Where that plan's memory peak is above the limit, the mesh is `Postponed`: another mesh may have a plan within the limit
   that is better than this bound.
3. If none has, what fits is searched by prices (`within_limit`). A gap that they leave stays `Open` until all meshes are
   known, and is closed where a better plan may be in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from pbqp.compiled import is_compiled, is_large
from pbqp.network.table_cache import TableCache
from pbqp.options import SolveOptions
from pbqp.smaller.quotient import describe_sharing, solve_shared
from pbqp.smaller.smaller import Chain, floor_of
from pbqp.solution import RELATIVE_TOLERANCE, Solution
from planner.pricing.instance import Instance
from planner.pricing.memory.memory_model import MemoryModel
from planner.search.least_memory import GAP, Aim, Least, least_memory
from planner.search.narrow import narrow
from planner.search.shared_layers import SharedInstance
from planner.search.within_limit import LARGE_LEFT, OVER, LimitSearch, Within

LARGE_SECONDS = 10.0
"""Time for closing the gap of a mesh whose problem is large: little comes of more."""
WORTHWHILE = 1e-6
"""A mesh tried later must be better by this share; simpler meshes come first and win ties."""
FREE_SHARE = 0.3
"""Part of the time for the best plan of least memory that the best plan of any may take."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A feasible plan: a choice for what `state` states, its value and peak bytes; `bound` is that of its mesh.

    `shared` says of layers that share their decisions how many those are and what it may lose; `per_byte` is about what a
    plan on the mesh could gain of one more byte of the memory limit.
    """

    state: Callable[[], Instance]
    choice: tuple[int, ...]
    value: float
    bound: float
    peak_bytes: float
    shared: str = ""
    per_byte: float = 0.0

    @cached_property
    def instance(self) -> Instance:
        """The problem of its mesh, with all strategies: stated anew where that was done in another process."""
        return self.state()

    def of_kernels(self, instance: Instance) -> float:
        """The value of the kernels of its choice, as an instance of its mesh prices them."""
        return float(np.sum([values[pick] for values, pick in zip(instance.node_values, self.choice, strict=True)]))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a mesh; `candidate` is None where nothing is better than the best so far, or nothing `fits`.

    `open` is what is left to be searched under a memory limit, `least` how the least peak was found, where that was sought.
    """

    candidate: Candidate | None
    bound: float
    fits: bool = True
    note: str = ""
    open: Postponed | None = None
    least: Least | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Posed:
    """The problem of a mesh as it is solved: the memory of an instance of all nodes, and its optimum without a limit.

    `steps` lead from that instance back to the `whole` one, with all strategies.
    """

    whole: Instance
    memory: MemoryModel
    free: Solution
    steps: Chain

    def nothing(self, bound: float, *, fits: bool) -> Outcome:
        """The outcome where no plan is below what was asked."""
        return Outcome(candidate=None, bound=min(bound, self.steps.bound), fits=fits)

    def within(self, found: Within) -> Outcome:
        """The outcome of a search under a limit."""
        if found.choice is None:
            return self.nothing(found.bound, fits=found.fits)
        return self.plan(found.choice, found.value, found.bound, limited=True, per_byte=found.per_byte)

    def plan(
        self, choice: Sequence[int], value: float, bound: float, *, limited: bool, per_byte: float = 0.0
    ) -> Outcome:
        """The outcome that is this plan; `bound` is that of all plans of the instance."""
        bound_of_all = min(bound, self.steps.bound)
        candidate = Candidate(
            state=lambda: self.whole,
            choice=tuple(self.steps.lift(choice).tolist()),
            value=value,
            bound=bound_of_all,
            peak_bytes=float(self.memory.profile(choice).max()),
            shared=describe_sharing(self.free, gap=(value - bound) / value if value > 0 else 0.0, limited=limited),
            per_byte=per_byte,
        )
        return Outcome(candidate=candidate, bound=bound_of_all)


@dataclass(frozen=True, kw_only=True, eq=False)
class Postponed:
    """A mesh whose best plan without a memory limit is over the limit: searched by prices first, and then by rows."""

    posed: Posed
    limit_bytes: float
    table_cache: TableCache

    @cached_property
    def search(self) -> LimitSearch:
        """What is known of plans within the limit."""
        return LimitSearch(self.posed.memory, self.posed.free, self.limit_bytes)

    @property
    def bound(self) -> float:
        """A lower bound of every plan on the mesh."""
        return self.posed.free.bound

    def limited(self, solving: SolveOptions, *, cutoff: float) -> Outcome:
        """The best plan within the limit that costs less than `cutoff` and that prices lead to; `open` if a gap is left."""
        found = self.search.by_prices(replace(solving, table_cache=self.table_cache), cutoff=cutoff)
        return replace(self.posed.within(found), open=None if found.finished else self)

    def closed(self, solving: SolveOptions, *, cutoff: float) -> Outcome:
        """The best plan within the limit that costs less than `cutoff`, of one that `limited` left open."""
        if is_large(self.posed.whole.node_values):
            solving = solving.within(LARGE_SECONDS)
        return self.posed.within(self.search.by_rows(replace(solving, table_cache=self.table_cache), cutoff=cutoff))


@dataclass(frozen=True, kw_only=True, eq=False)
class Looked:
    """A mesh's problem as far as it may have a plan of a value below `cutoff`: `stated` is narrowed to `narrowed`.

    `steps` lead back; `bound` is a lower bound of every plan on the mesh, or the cutoff where that is less.
    """

    stated: Instance | SharedInstance
    narrowed: Instance | SharedInstance
    steps: Chain
    bound: float
    cutoff: float

    @property
    def large(self) -> bool:
        """Whether the problem is so large that more of a gap may stay."""
        return is_large(self.stated.node_values)

    def below(self, cutoff: float) -> Looked:
        """The same for a lower cutoff."""
        if cutoff >= self.cutoff:
            return self
        found = narrow(self.narrowed, cutoff)
        return replace(
            self,
            narrowed=found.stated,
            steps=Chain((*self.steps.steps, found)),
            bound=max(self.bound, min(found.floor, cutoff)),
            cutoff=cutoff,
        )


def look(stated: Instance | SharedInstance, solving: SolveOptions, *, best: float) -> Looked:
    """What of a mesh's problem may cost less than `best`, from one decision per node or one per class of nodes."""
    floor = floor_of(stated.node_values)
    looked = Looked(stated=stated, narrowed=stated, steps=Chain(()), bound=min(floor, best), cutoff=math.inf)
    return looked if floor >= best else looked.below(_cutoff(looked, solving, best))


def _cutoff(looked: Looked, solving: SolveOptions, best: float) -> float:
    """What plans must be below of where one of a value `best` is known."""
    return best * (1 - max(solving.large_gap if looked.large else 0.0, WORTHWHILE))


def free_plan(
    stated: Instance | SharedInstance | Looked, limit_bytes: float, solving: SolveOptions, *, best: float
) -> Outcome | Postponed:
    """The best plan of a mesh that costs less than `best`, of all that is stated or that was looked at already."""
    looked = stated if isinstance(stated, Looked) else look(stated, solving, best=best)
    gap, cutoff = solving.large_gap if looked.large else 0.0, _cutoff(looked, solving, best)
    looked = looked.below(cutoff)
    if looked.bound >= min(best, cutoff):
        return Outcome(candidate=None, bound=looked.bound)
    made, steps = looked.narrowed, looked.steps
    seconds = solving.seconds
    if isinstance(looked.stated, SharedInstance):
        # Nodes share already. Memory tells them apart, so from here on every node has all of its strategies.
        found = solve_shared(
            made.problem, replace(solving, share=False), cutoff, compiled=is_compiled(looked.stated.node_values)
        )
        free, steps = _of_all_nodes(found, looked.stated, steps), Chain(())
    else:
        free = solve_shared(made.problem, solving, cutoff, gap, compiled=is_compiled(looked.stated.node_values))
    if free.choice is None:
        left = cutoff * (1 - max(gap, RELATIVE_TOLERANCE))
        mesh = dict(looked.stated.mesh.shape)
        note = "" if free.bound >= left else f"mesh {mesh}: nothing found within {seconds:.0f} s"
        return Outcome(candidate=None, bound=min(free.bound, cutoff), note=note)
    whole = looked.stated.whole()
    memory = MemoryModel(instance=made.whole() if steps.steps else whole, apart_above=limit_bytes * OVER)
    posed = Posed(whole=whole, memory=memory, free=free, steps=steps)
    postponed = Postponed(posed=posed, limit_bytes=limit_bytes, table_cache=solving.table_cache)
    if float(memory.profile(free.choice).max()) > limit_bytes * OVER:
        return postponed
    found = posed.plan(free.choice, free.value, free.bound, limited=False)
    left = solving.gap * (LARGE_LEFT if looked.large else 1.0)
    return replace(found, open=postponed) if free.value - free.bound > left * abs(free.value) else found


def _of_all_nodes(found: Solution, shared: SharedInstance, steps: Chain) -> Solution:
    """A solution for the problem of all nodes from one for some strategies of one node per class."""
    back = Chain((shared, *steps.steps))
    classes = shared.members.classes
    decisions = {"decisions": int(classes.of.size), "shared_decisions": classes.count, "lost_at_most": 0.0}
    return replace(
        found,
        choice=None if found.choice is None else tuple(back.lift(found.choice).tolist()),
        bound=min(found.bound, back.bound),
        detail={**found.detail, **decisions},
    )


def least_plan(instance: Instance, limit_bytes: float, solving: SolveOptions, *, best: float) -> Outcome:
    """The plan of a mesh of the smallest peak memory if that is below `best` bytes."""
    memory = MemoryModel(instance=instance, apart_above=0.0)
    floor = memory.floor_bytes()
    if floor >= best:
        return Outcome(candidate=None, bound=floor)
    start = [int(sizes.argmin()) for sizes in memory.average_bytes()]
    # What could be better by less than the gap of a least peak is not sought.
    good = min(best * (1 - GAP), limit_bytes)
    least = least_memory(memory, start, Aim(good_bytes=good), solving)
    if least.peak_bytes > min(best * (1 - WORTHWHILE), limit_bytes):
        return Outcome(candidate=None, bound=least.bound, fits=least.peak_bytes <= limit_bytes)
    found = Candidate(
        state=lambda: instance,
        choice=least.choice,
        value=least.peak_bytes,
        bound=least.bound,
        peak_bytes=least.peak_bytes,
    )
    return Outcome(candidate=found, bound=least.bound, least=least)


def best_of_peak(candidate: Candidate, least: Least, solving: SolveOptions) -> Candidate:
    """The best plan found in time of those that need no more than the least memory, as `least_plan` found it."""
    memory = MemoryModel(instance=candidate.instance, apart_above=0.0)
    free = solve_shared(candidate.instance.problem, solving.within(FREE_SHARE * solving.seconds))
    peak = least.peak_bytes
    if free.choice is None or peak <= 0:  # as of arrays without elements, which no plan can move
        return candidate
    while True:
        search = LimitSearch(memory, free, peak)
        search.by_prices(solving, cutoff=math.inf, least=least)
        lowest = min(search.met, key=lambda plan: float(plan.profile.max()))
        if float(lowest.profile.max()) >= peak * (1 - WORTHWHILE):
            break
        # Prices have met a plan of still less memory.
        peak = float(lowest.profile.max())
        least = replace(least, choice=lowest.choice, peak_bytes=peak)
    found = search.by_rows(solving, cutoff=math.inf)
    choice = least.choice if found.choice is None else found.choice
    shared = describe_sharing(free, gap=1 - least.bound / max(peak, 1.0), limited=True)
    return replace(candidate, choice=choice, value=peak, peak_bytes=peak, shared=shared)
