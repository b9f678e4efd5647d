"""Attempts: the plans to try one after the other, until one passes its checks.

Compilers reject or miscompile what was not foreseen; then the next best mesh is tried, and at last the best plan without
constraints inside.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace

from planner.decision import Decision
from planner.errors import CompileError, InfeasibleError, PinError
from planner.one_mesh.mesh import mesh_words
from planner.options import Options
from planner.plans.decide import decide
from planner.search.fewer_devices import on_fewer_devices
from planner.search.meshes import Found
from planner.session import Session

FALLBACKS = 3
"""How many next best plans are tried when a check fails."""


def attempts(
    session: Session,
    meshes: Sequence[Mapping[str, int]],
    options: Options,
    *,
    notes: Sequence[str],
) -> Generator[Decision, str | None]:
    """The decisions to try, best first; each is answered (`send`) with why it was dropped, if it was.

    Raises: PinError, InfeasibleError where there is none; CompileError once all were dropped.
    """
    limit = session.request.memory_limit
    start, dropped = time.monotonic(), dict[str, str]()
    first = found = session.search(meshes, limit_bytes=limit, options=options)
    decisions: list[Decision] = []

    def again(candidates: Sequence[Mapping[str, int]]) -> Found | None:
        """The next best plans for these meshes, in the time that is left; None where there are none."""
        left = replace(options, time_limit_s=max(options.time_limit_s - (time.monotonic() - start), 1.0))
        try:
            return session.search(candidates, limit_bytes=limit, options=left, without=dropped)
        except (InfeasibleError, PinError):
            return None

    def attempt(found: Found) -> Generator[Decision, str | None]:
        """The best plan found; the answer to it is recorded."""
        left = [shape for shape in meshes if mesh_words(shape) not in dropped]
        best, told = on_fewer_devices(
            found.candidates[0],
            left or meshes,
            session.instance,
            limit_bytes=limit,
            objective=session.request.objective,
            bound=first.bound,
        )
        decisions.append(
            decide(
                session,
                best,
                bound=first.bound,
                seconds=time.monotonic() - start,
                meshes=len(meshes),
                notes=(*notes, *found.notes, *(() if dropped else told), *dropped.values()),
            )
        )
        why = yield decisions[-1]
        dropped[mesh_words(best.instance.mesh.shape)] = f"the plan on the mesh {best.instance.mesh.shape} failed: {why}"

    while found is not None and len(decisions) <= FALLBACKS:
        yield from attempt(found)
        found = again(meshes)
    # Some programs run on one device only, for no reason that could be read in them.
    alone = again([{"x": 1}]) if {"x": 1} in meshes else None
    if alone is not None:
        yield from attempt(alone)
    # What a compiler gets wrong is mostly one constraint: the best plan's borders alone leave the rest to it.
    note = "emitted without constraints inside: the compiler may place that differently from the prediction"
    why = yield replace(decisions[0], constraints={}, notes=(*notes, *first.notes, *dropped.values(), note))
    raise CompileError(
        f"every plan that was tried was dropped: {'; '.join(dropped.values())}; without constraints inside: {why}. "
        "Fix another mesh, or report this program with the plan's text"
    )
