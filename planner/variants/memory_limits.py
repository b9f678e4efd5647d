"""Memory limits: what plans keep to, of what they may take.

Some memory is left free where a compiler makes programs slower that take nearly all of it. Where nothing is predicted to
fit, plans above the limit are sought for a compiler to judge: to save memory it may compute values again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from planner.compiler.targets.table import compiler_of
from planner.errors import InfeasibleError
from planner.options import Options
from planner.pricing.mesh import Shape
from planner.problem import PlanningProblem
from planner.search.mesh_search import SearchOptions, SearchResult, search

NOTED_SHARE = 0.9
"""The share of the limit from which on a plan says that there is a lower one."""
BEYOND = (1.1, 1.5, 2.5)
"""The limits, as multiples of the one given, of plans that a compiler shall judge where nothing is predicted to fit."""


def search_with_room(
    problem: PlanningProblem, meshes: Sequence[Shape], options: Options, *, explained: bool = True, room: bool = True
) -> tuple[SearchResult, float]:
    """The best plans for these meshes and the bytes that they keep to: less than what was asked for, if any fit that.

    Without `room` it is known that none does. Raises: PinError, InfeasibleError, which says why if `explained`.
    """
    most = problem.request.memory_limit
    limit = roomy_limit(problem)
    if limit < most and room:
        with suppress(InfeasibleError):  # perhaps with all of it
            return search(meshes, problem, SearchOptions(limit_bytes=limit, options=options, explained=False)), limit
    return search(meshes, problem, SearchOptions(limit_bytes=most, options=options, explained=explained)), most


def search_beyond(
    problem: PlanningProblem, meshes: Sequence[Shape], options: Options, none_fits: InfeasibleError
) -> tuple[SearchResult, float]:
    """The best plans within the least limit that any keep to, and that limit.

    Raises: none_fits, where the least memory that would do is not known or is far above the limit.
    """
    least = none_fits.least_bytes
    for factor in BEYOND:
        limit = factor * problem.request.memory_limit
        if least is not None and least <= limit:
            with suppress(InfeasibleError):
                return search(
                    meshes, problem, SearchOptions(limit_bytes=limit, options=options, explained=False)
                ), limit
    raise none_fits


def roomy_limit(problem: PlanningProblem) -> float:
    """The bytes per device up to which the compiler leaves a program as it is."""
    chip = problem.request.topology.chip
    return min(problem.request.memory_limit, compiler_of(chip).room * chip.hbm_bytes)


def takes_all(problem: PlanningProblem, limit: float) -> bool:
    """Whether plans that keep to so many bytes may take all of the memory there is, as nothing fits that leaves room."""
    request = problem.request
    return request.memory_limit <= request.topology.chip.hbm_bytes and limit > roomy_limit(problem)


def room_note(problem: PlanningProblem, limit: float, peak: float) -> tuple[str, ...]:
    """Says of a plan whose peak is near a limit lower than what was asked for that it is kept to that."""
    if not NOTED_SHARE * limit < peak <= limit < problem.request.memory_limit:
        return ()
    share = limit / problem.request.topology.chip.hbm_bytes
    return (f"the plan keeps to {share:.0%} of the memory: nearer to the limit the compiler computes values again",)
