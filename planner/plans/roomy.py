"""Room: plans are sought with some memory to spare, where a compiler makes programs slower that take nearly all of it."""

from __future__ import annotations

from collections.abc import Sequence

from cost_models.compilers import ROOM
from planner.errors import InfeasibleError
from planner.one_mesh.mesh import Shape
from planner.options import Options
from planner.search.meshes import Found
from planner.session import Session

TOLD = 0.9
"""The share of the limit from which on a plan says that there is a lower one."""


def search_with_room(session: Session, meshes: Sequence[Shape], options: Options) -> tuple[Found, float]:
    """The best plans for these meshes and the bytes that they keep to: less than what was asked for, if any fit that.

    Raises: PinError, InfeasibleError.
    """
    asked = session.request.memory_limit
    limit = roomy_limit(session)
    if limit < asked:
        try:
            return session.search(meshes, limit_bytes=limit, options=options), limit
        except InfeasibleError:
            pass  # perhaps with all of it
    return session.search(meshes, limit_bytes=asked, options=options), asked


def roomy_limit(session: Session) -> float:
    """The bytes per device up to which the compiler leaves a program as it is."""
    chip = session.request.topology.chip
    return min(session.request.memory_limit, ROOM.get(chip.platform, 1.0) * chip.hbm_bytes)


def room_note(session: Session, limit: float, peak: float) -> tuple[str, ...]:
    """Says of a plan whose peak is near a limit lower than what was asked for that it is kept to that."""
    if not TOLD * limit < peak <= limit < session.request.memory_limit:
        return ()
    share = limit / session.request.topology.chip.hbm_bytes
    return (f"the plan keeps to {share:.0%} of the memory: nearer to the limit the compiler computes values again",)
