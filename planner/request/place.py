"""Where a plan is to lie: the devices, the topology and the mesh that a user asks for, in whatever way they are said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from cost_models import Topology
from planner.errors import ArgumentError, MeshError, PinError
from planner.machine.target import Target, check_devices, checked_topology, resolve
from planner.plans.loaded import LoadedPlan
from planner.plans.plan import Plan
from planner.pricing.mesh import AXIS_NAMES, Shape, mesh_text, shape_key
from planner.request.pins import is_pin

RequestedMesh = Mapping[str, int] | Mesh | AbstractMesh
"""A mesh as a user says it: names and sizes, with devices or without."""
Like = Plan | LoadedPlan
"""A plan whose layout another is to have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A target, the mesh on it where that is fixed, and the names that the axes of a searched one have.

    `of_devices`: the topology is that of the devices, not one that the user names.
    """

    target: Target
    mesh: Shape | None
    axis_names: tuple[str, ...] = AXIS_NAMES
    of_devices: bool = False


def requested_place(
    *,
    devices: Sequence[jax.Device] | None,
    topology: str | Topology | None,
    mesh: RequestedMesh | None,
    pins: Any,
    like: Like | None,
    axis_names: Sequence[str] | None = None,
) -> Place:
    """Where a plan is to lie; shardings among the pins say their mesh. Raises: ArgumentError, MeshError, PinError."""
    requested = requested_mesh(mesh, pins)
    names = checked_names(axis_names, fixed=requested is not None or like is not None)
    if like is not None:
        return _as_other(like, devices=devices, topology=topology, requested=requested)
    concrete = requested if isinstance(requested, Mesh) else None
    target = resolve(devices, topology, concrete)
    return Place(target=target, mesh=_shape(requested), axis_names=names, of_devices=topology is None)


def checked_names(names: Any, *, fixed: bool) -> tuple[str, ...]:
    """The names for the axes of a mesh that is not `fixed`, the default ones for None. Raises: MeshError."""
    if names is None:
        return AXIS_NAMES
    if fixed:
        raise MeshError(
            f"axis_names={names!r:.200} names the axes of a mesh that is searched, but mesh=, like= or the pins give one; "
            "leave axis_names out"
        )
    wanted = f"give one to {len(AXIS_NAMES)} different names, such as ('data', 'model')"
    if not isinstance(names, (tuple, list)) or not all(isinstance(name, str) and name for name in names):
        raise MeshError(f"axis_names is {names!r:.200}, not a tuple of names; {wanted}")
    if not 1 <= len(names) <= len(AXIS_NAMES):
        raise MeshError(
            f"axis_names has {len(names)} names, but a searched mesh has 1 to {len(AXIS_NAMES)} axes, at most as many as "
            f"have names; {wanted}"
        )
    if twice := [name for name in names if names.count(name) > 1]:
        raise MeshError(f"axis_names {tuple(names)!r} has {twice[0]!r} twice; {wanted}")
    return tuple(names)


def requested_shape(mesh: RequestedMesh | None, pins: Any) -> Shape | None:
    """The shape of the mesh that is asked for, whatever devices it has. Raises: MeshError, PinError."""
    return _shape(requested_mesh(mesh, pins))


def _shape(mesh: RequestedMesh | None) -> Shape | None:
    return dict(mesh.shape) if isinstance(mesh, (Mesh, AbstractMesh)) else mesh


def requested_mesh(mesh: RequestedMesh | None, pins: Any) -> RequestedMesh | None:
    """The mesh that is asked for, with its devices where the pins say them.

    Raises: MeshError where it is none, PinError where the pins are of another.
    """
    of_pins = _mesh_of(pins)
    if mesh is not None and not isinstance(mesh, (Mapping, Mesh, AbstractMesh)):
        raise MeshError(
            f"mesh must map axis names to sizes, or be a jax.sharding.Mesh, got {mesh!r:.200}; write e.g. "
            "{'data': 4, 'model': 2}"
        )
    if mesh is None or of_pins is None:
        return of_pins if mesh is None else mesh
    if not _alike(mesh, of_pins):
        raise PinError(
            f"the pins are shardings on {_text(of_pins)}, but the plan is asked for on {_text(mesh)}; give "
            "PartitionSpecs, or shardings on the same mesh"
        )
    return mesh if isinstance(mesh, Mesh) else of_pins


def _mesh_of(pins: Any) -> Mesh | AbstractMesh | None:
    """The mesh of the shardings among the pins. Raises: PinError where they are on several."""
    values = pins.values() if isinstance(pins, Mapping) else ()
    leaves = jax.tree.leaves(list(values), is_leaf=is_pin)
    found: Mesh | AbstractMesh | None = None
    for sharding in leaves:
        if not isinstance(sharding, NamedSharding) or sharding.mesh is found:
            continue
        mesh = sharding.mesh
        if found is not None and not _alike(found, mesh):
            raise PinError(
                f"the pins are shardings on several meshes, {_text(found)} and {_text(mesh)}; a plan has one mesh: use "
                "one for all"
            )
        found = mesh if found is None or isinstance(mesh, Mesh) else found
    return found


def _as_other(
    like: Like,
    *,
    devices: Sequence[jax.Device] | None,
    topology: str | Topology | None,
    requested: RequestedMesh | None,
) -> Place:
    """Where another plan lies. Raises: ArgumentError, MeshError where something else is asked for as well."""
    if not isinstance(like, (Plan, LoadedPlan)):
        raise ArgumentError(f"like is {like!r:.200}; give a plan, or what planner.load returns")
    shape, request = like.decision.mesh_shape, like.decision.request
    if isinstance(like, Plan):
        mesh = like.mesh
        target = replace(like.target, mesh=mesh) if isinstance(mesh, Mesh) else like.target
    else:
        target = like.target(devices)
        mesh = target.jax_mesh(shape)
    if requested is not None and not _alike(requested, mesh):
        raise MeshError(
            f"like= is a plan on {_text(mesh)}, but mesh= or the pins say {_text(requested)}; leave one of them out"
        )
    if checked_topology(topology) not in (None, request.topology):
        raise MeshError(
            f"like= is a plan for the topology {request.topology.name}, but topology is {topology!r}; leave one of them out"
        )
    own = set(mesh.devices.flat) if isinstance(mesh, Mesh) else None
    if devices is not None and own != set(check_devices(devices)) and isinstance(like, Plan):
        raise MeshError(f"like= is a plan on {_text(mesh)}, and devices={devices!r:.200} are others; leave devices out")
    return Place(target=target, mesh=dict(shape))


def _alike(one: RequestedMesh, other: RequestedMesh) -> bool:
    """Whether two meshes have the same axes, and the same devices in the same order where both have devices."""
    if shape_key(_shape(one) or {}) != shape_key(_shape(other) or {}):
        return False
    if not (isinstance(one, Mesh) and isinstance(other, Mesh)):
        return True
    return list(one.devices.flat) == list(other.devices.flat)


def _text(mesh: RequestedMesh) -> str:
    shape = _shape(mesh) or {}
    if isinstance(mesh, Mesh):
        ids = ", ".join(str(device.id) for device in mesh.devices.flat)
        return f"the mesh {mesh_text(shape)} of the devices {ids}"
    return f"the mesh {mesh_text(shape)}"
