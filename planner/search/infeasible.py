"""No fit: why no plan keeps a memory limit, in the user's names, and the least memory that would do.

The conflict is a set of points of the schedule that cannot all be within the limit, and of which none can be left out. A
point cannot be if its least bytes over all plans are above the limit; several cannot be if, for some weights that sum to 1,
the least of their weighted bytes is (see `least_memory`), or if the problem with a row for each has no choice. Points are
left out in turn for as long as what is left cannot be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from pbqp.deadline import Deadline
from pbqp.methods import solve
from pbqp.options import SolveOptions
from pbqp.problem import Problem
from pbqp.smaller.quotient import solve_shared
from pbqp.solution import Solution
from planner.errors import InfeasibleError, MeshError, Offer, PinError
from planner.pricing.assignment import Chosen
from planner.pricing.memory.donation import donations
from planner.pricing.memory.memory_model import MemoryModel, whole_bytes
from planner.search.least_memory import Aim, Least, charged, least_memory
from planner.search.problem import PlanningProblem
from planner.units import quantity

SECONDS = 4.0
"""Time for the least memory that would do: a mesh is not begun after it, nor a round of searching one."""
LEAST_OFFER_SECONDS, OFFER_SECONDS = 0.5, 2.0
"""Time for what could be done about it: as long as finding out so far took, between these."""
CONFLICT_SECONDS = 2.0
"""Time for finding the conflict."""
ROWS_SECONDS = 0.5
"""Time for one problem with rows for several points."""
DEAR_BYTES = 3.0
"""Price of the whole peak of the free plan, in units of its value, where a plan to start from is sought."""
MOST_POINTS = 8
"""Points of the schedule that a conflict is sought among: those that decided about the least memory."""
NAMED = 3
"""How many tensors are named at a point."""


class Unexplained(InfeasibleError):
    """No plan fits; `explained` finds out why, which takes seconds."""

    def __init__(self, message: str, explained: Callable[[], InfeasibleError]) -> None:
        super().__init__(message)
        self.explained = explained


def with_reason(error: InfeasibleError) -> InfeasibleError:
    """The error with why no plan fits."""
    return error.explained() if isinstance(error, Unexplained) else error


def no_fit(
    meshes: Sequence[Mapping[str, int]],
    problem: PlanningProblem,
    limit_bytes: float,
    solving: SolveOptions,
) -> InfeasibleError:
    """The error for a limit that nothing on these meshes fits: the conflict, the least memory that would do, and why."""
    if not meshes:
        return InfeasibleError("no mesh has any plan: the pins conflict; relax them or fix another mesh")
    clock = Deadline.after(SECONDS)
    solving = solving.until(clock)
    most = max(math.prod(shape.values()) for shape in meshes)
    best: tuple[MemoryModel, Least] | None = None
    # The more evenly a mesh is divided over its axes, the more of its splits fit the program's dims.
    for shape in sorted(meshes, key=lambda shape: max(shape.values())):
        if math.prod(shape.values()) < most or (best is not None and solving.deadline.passed):
            continue
        memory = MemoryModel(instance=problem.instance(shape), apart_above=0.0)
        least = math.inf if best is None else best[1].peak_bytes
        if memory.floor_bytes() >= least:
            continue
        half = 0.5 * solving.deadline.left()
        free = solve_shared(memory.instance.problem, solving.within(half).afresh())
        if free.choice is not None:
            start = _lighter(memory, free, solving.until(Deadline.after(half)))
            found = least_memory(memory, start, Aim(good_bytes=least), solving)
            best = (memory, found) if found.peak_bytes < least else best
    if best is None:
        return InfeasibleError(
            f"no plan fits {quantity(limit_bytes, 'B')} per device, and none was found at all in {SECONDS:g} s; "
            "raise memory_limit, use more devices, or relax the pins"
        )
    memory, found = best
    solving = replace(solving.until(Deadline.after(CONFLICT_SECONDS)), share="auto")
    points = conflict(memory, found, limit_bytes, solving)
    spent = min(max(clock.elapsed, LEAST_OFFER_SECONDS), OFFER_SECONDS)
    names = tuple(memory.describe(point) for point in points)
    top = int(memory.profile(found.choice).argmax())
    chosen = Chosen(instance=memory.instance, choice=tuple(found.choice), apart_above=0.0)
    more = more_devices(problem, memory, limit_bytes, solving.until(Deadline.after(spent)))
    offers = (*((more,) if more is not None else ()), *_donations(problem, chosen, found))
    largest = ", ".join(f"{name} takes {quantity(size, 'B')}" for name, size in memory.alive(top, found.choice)[:NAMED])
    return InfeasibleError(
        f"no plan fits {quantity(limit_bytes, 'B')} per device{_conflict_text(names)}; the least memory that would do is "
        f"about {quantity(found.peak_bytes, 'B')} ({memory.describe(top)}, where {largest}), and no plan on the mesh "
        f"{dict(memory.instance.mesh.shape)} needs less than {quantity(found.bound, 'B')}. Raise memory_limit, "
        f"{''.join(f'{offer.text}, ' for offer in offers)}or recompute more (jax.checkpoint)",
        least_bytes=found.peak_bytes,
        conflict=names,
        offers=offers,
    )


def _donations(problem: PlanningProblem, chosen: Chosen, least: Least) -> tuple[Offer, ...]:
    """What donating arguments would save, each with its bytes."""
    return tuple(
        Offer(text=str(donation), saves_bytes=min(donation.bytes, least.peak_bytes))
        for donation in donations(problem.program, chosen)
    )


def _lighter(memory: MemoryModel, free: Solution, solving: SolveOptions) -> Sequence[int]:
    """The best plan where the free plan's fullest point is dear, or the free plan where that needs no less memory."""
    choice = free.choice or ()
    profile = memory.profile(choice)
    top = int(profile.argmax())
    dear = {top: DEAR_BYTES * abs(free.value) / float(profile[top])}
    priced = memory.priced(memory.instance.problem, dear)
    found = solve_shared(priced, solving.afresh()).choice
    return choice if found is None or memory.profile(found).max() > profile[top] else found


def _conflict_text(names: Sequence[str]) -> str:
    if not names:
        return ""
    if len(names) == 1:
        return f": {names[0]} is above it in every plan"
    return f": no plan is within it at all of these: {'; '.join(names)}"


def conflict(memory: MemoryModel, least: Least, limit_bytes: float, solving: SolveOptions) -> tuple[int, ...]:
    """Points of the schedule that cannot all be within the limit, none of which can be left out, as far as is proven.

    Nothing where no conflict is proven in time.
    """
    points = sorted(least.weights, key=lambda point: (-least.weights[point], point))[:MOST_POINTS]
    for point in points:
        if _impossible(memory, (point,), limit_bytes, solving):
            return (point,)
    if len(points) < 2 or not _impossible(memory, points, limit_bytes, solving):
        return ()
    for point in reversed(points.copy()):
        rest = [other for other in points if other != point]
        if len(rest) > 1 and _impossible(memory, rest, limit_bytes, solving):
            points = rest
    return tuple(sorted(points))


def _impossible(memory: MemoryModel, points: Sequence[int], limit_bytes: float, solving: SolveOptions) -> bool:
    """Whether it is proven in time that these points cannot all be within the limit."""
    if solving.deadline.passed:
        return False
    solving = solving.within(ROWS_SECONDS).afresh()
    bare = Problem(
        name="memory",
        node_costs=tuple(np.zeros(len(strategies)) for strategies in memory.instance.strategies),
        edges=(),
        node_names=tuple(node.name for node in memory.instance.model.flow.nodes),
    )
    limited = memory.limited(bare, points, limit_bytes)
    even = solve_shared(charged(limited, [1 / len(points)] * len(points)), solving)
    if even.bound > limit_bytes:
        return True
    return len(points) > 1 and solve(limited, time_limit=ROWS_SECONDS, seed=solving.seed).status == "infeasible"


# ---------------------------------------------------------------- more devices


MOST_TIMES = 64
"""So many times as many devices are thought of at most."""
MESHES = 2
"""Meshes tried for one number of devices."""


def more_devices(
    problem: PlanningProblem, memory: MemoryModel, limit_bytes: float, solving: SolveOptions
) -> Offer | None:
    """The offer of the fewest devices, of powers of two times those there are, on which a plan was found to fit.

    `memory` is that of the best mesh there is. Where time ends before, or they are very many: of the fewest that could do.
    None where the program fixes its devices, or no number tried does.
    """
    if problem.program.effects.ordered or problem.program.parallelism is not None:
        return None
    instance = memory.instance
    shape, devices = instance.mesh.shape, instance.mesh.num_devices
    fewest = math.ceil(whole_bytes(instance.model, devices * instance.mesh.on_chip_bytes) / limit_bytes)
    if fewest > MOST_TIMES * devices:
        return Offer(text=f"use at least {fewest} devices")
    for times in (1 << i for i in range(1, MOST_TIMES.bit_length())):
        if solving.deadline.passed:
            many = f"at least {fewest}" if fewest > devices else "more"
            return Offer(text=f"use {many} devices")
        if times * devices < fewest:
            continue
        found = _fitting(problem, shape, times, limit_bytes, solving)
        if found is not None:
            mesh, peak = found
            text = f"use {times * devices} devices: a plan on the mesh {dict(mesh)} needs {quantity(peak, 'B')} of each"
            return Offer(text=text, needs_bytes=peak)
    return None


def _fitting(
    problem: PlanningProblem, shape: Mapping[str, int], times: int, limit_bytes: float, solving: SolveOptions
) -> tuple[Mapping[str, int], float] | None:
    """A mesh of so many times as many devices on which a plan fits, and its peak; None where none was found."""
    longer = [{**shape, axis: times * size} for axis, size in shape.items()]
    for mesh in sorted(longer, key=lambda mesh: max(mesh.values()))[:MESHES]:
        with suppress(InfeasibleError, MeshError, PinError):
            memory = MemoryModel(instance=problem.on_more_devices(times).instance(mesh))
            if memory.floor_bytes() <= limit_bytes:
                start = [int(sizes.argmin()) for sizes in memory.average_bytes()]
                aim = Aim(good_bytes=limit_bytes, enough_bytes=limit_bytes)
                peak = least_memory(memory, start, aim, solving).peak_bytes
                if peak <= limit_bytes:
                    return mesh, peak
    return None
