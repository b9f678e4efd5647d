"""Which meshes are searched: the one that a user or the program fixes, or all that the pins and the devices allow."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

from planner.decision import Request
from planner.errors import InfeasibleError, MeshError, PinError
from planner.machine.processes import text_of
from planner.machine.target import Target
from planner.pricing.candidates.pins import axes_named
from planner.pricing.mesh import AXIS_NAMES, Shape, ShapeKey, check_mesh, factorizations, shape_key
from planner.program.tracing.traced import Program


def offered_meshes(
    program: Program,
    target: Target,
    request: Request,
    mesh: Shape | None,
    max_axes: int,
    names: Sequence[str] = AXIS_NAMES,
) -> list[dict[str, int]]:
    """The mesh a user fixed, or all that may be searched, of at most as many axes as have `names`.

    Raises: MeshError, PinError.
    """
    topology = request.topology
    mesh = _demanded_mesh(program, target, mesh, names)
    if mesh is not None:
        shape = check_mesh(mesh, target.count)
        if topology.links(tuple(shape.values())) is None:
            raise MeshError(
                f"the mesh {shape} does not fit the topology {topology.name} of shape {topology.shape}; "
                "make its axes divide the physical dims"
            )
        return [shape]
    max_axes = min(max_axes, len(names))
    found = factorizations(topology, max_axes=max_axes, names=names)
    named = axes_named(request.pins)
    fitting = [shape for shape in found if named <= set(shape) and math.prod(shape.values()) <= target.count]
    if not fitting:
        raise PinError(
            f"the pins name the axes {sorted(named)}, but a searched mesh has up to {max_axes} of {', '.join(names)}; "
            "fix mesh={...} with the axes the pins name, or name those searched with axis_names=(...)"
        )
    return fitting


def _demanded_mesh(program: Program, target: Target, mesh: Shape | None, names: Sequence[str]) -> Shape | None:
    """The mesh that the program allows: its own where it names one, of one device for ordered effects, else any."""
    own, name = program.parallelism, program.function_name
    if program.effects.ordered:
        if mesh is not None and math.prod(mesh.values()) > 1:
            raise MeshError(
                f"{name} has ordered side effects, which run on one device only, but mesh={dict(mesh)} was given; "
                "make its prints and callbacks unordered, or leave mesh out"
            )
        if not target.processes.alone:
            raise MeshError(
                f"{name} has ordered side effects, which run on one device only, but the devices are of "
                f"{text_of(target.processes.members)}; make its prints and callbacks unordered, or give "
                "devices=jax.local_devices() for a plan of each process's own"
            )
        return {names[0]: 1}
    if own is None:
        return mesh
    if mesh is not None and dict(mesh) != dict(own.shape):
        raise MeshError(
            f"{name} names the mesh {dict(own.shape)} itself, but mesh={dict(mesh)} was given; leave mesh out, or "
            "give the same"
        )
    if math.prod(own.shape.values()) > target.count:
        raise MeshError(
            f"{name} names the mesh {dict(own.shape)} itself, but there are {target.count} devices; plan for "
            "as many as it needs, or take its constraints out"
        )
    return own.shape


def fitting_meshes(
    meshes: Sequence[Shape], *, without: Collection[ShapeKey], stated: Callable[[Shape], object] | None
) -> list[Shape]:
    """The meshes on which a problem can be `stated` (None: it can on all), but for those named in `without`.

    Raises: PinError, InfeasibleError where there is none.
    """
    usable: list[Shape] = []
    refused: list[PinError | InfeasibleError] = []
    for shape in meshes:
        if shape_key(shape) in without:
            continue
        try:
            if stated is not None:
                stated(shape)
        except (PinError, InfeasibleError) as error:
            refused.append(error)
            continue
        usable.append(shape)
    if not usable:
        raise refused[0] if refused else InfeasibleError("no other mesh is left; fix another mesh")
    return usable
