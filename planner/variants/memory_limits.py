"""Memory limits: what plans keep to, of what they may take.

Some memory is left free where a compiler makes programs slower that take nearly all of it. Where nothing is predicted to
fit, plans above the limit are sought for a compiler to judge: to save memory it may compute values again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from planner.compiler.targets.table import compiler_of
from planner.errors import InfeasibleError
from planner.options import Options
from planner.pricing.mesh import Shape
from planner.problem import Session
from planner.search.mesh_search import Found

TOLD = 0.9
"""The share of the limit from which on a plan says that there is a lower one."""
BEYOND = (1.1, 1.5, 2.5)
"""The limits, as multiples of the one given, of plans that a compiler shall judge where nothing is predicted to fit."""


def search_with_room(
    session: Session, meshes: Sequence[Shape], options: Options, *, explained: bool = True, room: bool = True
) -> tuple[Found, float]:
    """The best plans for these meshes and the bytes that they keep to: less than what was asked for, if any fit that.

    Without `room` it is known that none does. Raises: PinError, InfeasibleError, which says why if `explained`.
    """
    asked = session.request.memory_limit
    limit = roomy_limit(session)
    if limit < asked and room:
        with suppress(InfeasibleError):  # perhaps with all of it
            return session.search(meshes, limit_bytes=limit, options=options, explained=False), limit
    return session.search(meshes, limit_bytes=asked, options=options, explained=explained), asked


def search_judged(
    session: Session,
    meshes: Sequence[Shape],
    options: Options,
    *,
    judged: Callable[[], bool],
    explained: bool = True,
    room: bool = True,
) -> tuple[Found, float, InfeasibleError | None]:
    """The best plans, the bytes that they keep to, and why none is predicted to fit, if that is so.

    Where a compiler has the last word (`judged`), plans then are of those that are predicted to need little more. `room` is
    as in `search_with_room`. Raises: PinError, InfeasibleError, which says why if `explained`.
    """
    try:
        return *search_with_room(session, meshes, options, explained=explained, room=room), None
    except InfeasibleError as none_fits:
        if not judged():
            raise
        return *_search_beyond(session, meshes, options, none_fits), none_fits


def _search_beyond(
    session: Session, meshes: Sequence[Shape], options: Options, none_fits: InfeasibleError
) -> tuple[Found, float]:
    """The best plans within the least limit that any keep to, and that limit.

    Raises: none_fits, where the least memory that would do is not known or is far above the limit.
    """
    asked, least = session.request.memory_limit, none_fits.least_bytes
    for factor in BEYOND:
        if least is not None and least <= factor * asked:
            with suppress(InfeasibleError):
                found = session.search(meshes, limit_bytes=factor * asked, options=options, explained=False)
                return found, factor * asked
    raise none_fits


def roomy_limit(session: Session) -> float:
    """The bytes per device up to which the compiler leaves a program as it is."""
    chip = session.request.topology.chip
    return min(session.request.memory_limit, compiler_of(chip).room * chip.hbm_bytes)


def takes_all(session: Session, limit: float) -> bool:
    """Whether plans that keep to so many bytes may take all of the memory there is, as nothing fits that leaves room."""
    request = session.request
    return request.memory_limit <= request.topology.chip.hbm_bytes and limit > roomy_limit(session)


def room_note(session: Session, limit: float, peak: float) -> tuple[str, ...]:
    """Says of a plan whose peak is near a limit lower than what was asked for that it is kept to that."""
    if not TOLD * limit < peak <= limit < session.request.memory_limit:
        return ()
    share = limit / session.request.topology.chip.hbm_bytes
    return (f"the plan keeps to {share:.0%} of the memory: nearer to the limit the compiler computes values again",)
