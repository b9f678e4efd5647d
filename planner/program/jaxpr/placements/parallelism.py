"""What a program says of the world it runs in: the mesh it names itself, and its side effects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jax.sharding import Mesh, NamedSharding

from planner.errors import TraceError
from planner.program.jaxpr.bodies import equations_of
from planner.program.mesh_axes import with_auto_axes
from planner.program.tracing.traced import Effects, Parallelism, ShardingTypes


def parallelism_of(jaxpr: Any, types: ShardingTypes | None = None) -> Parallelism | None:
    """The mesh that constraints and `shard_map`s of a program name, or types.

    Raises: TraceError where they name several.
    """
    is_typed = types is not None and any(spec is not None for spec in (*types.arguments, *types.results))
    meshes = [*([types.mesh] if types is not None and is_typed else []), *_meshes(jaxpr)]
    shapes = {tuple(mesh.shape.items()) for mesh in meshes}
    if len(shapes) > 1:
        named = " and ".join(str(dict(shape)) for shape in sorted(shapes))
        raise TraceError(f"the function names several meshes itself, {named}; a plan has one mesh: use one throughout")
    if not shapes:
        return None
    concrete = next((with_auto_axes(mesh) for mesh in meshes if isinstance(mesh, Mesh)), None)
    return Parallelism(shape=dict(shapes.pop()), mesh=concrete)


def named_devices(jaxpr: Any) -> Mesh | None:
    """The first mesh of devices that a program names."""
    return next((mesh for mesh in _meshes(jaxpr) if isinstance(mesh, Mesh)), None)


def _meshes(jaxpr: Any) -> Iterator[Any]:
    for eqn in equations_of(jaxpr):
        if eqn.primitive.name == "shard_map":
            yield eqn.params["mesh"]
        elif eqn.primitive.name == "sharding_constraint" and isinstance(eqn.params["sharding"], NamedSharding):
            yield eqn.params["sharding"].mesh


def effects_of(jaxpr: Any) -> Effects:
    names = {type(effect).__name__ for effect in jaxpr.effects}
    return Effects(
        ordered=any(name.startswith("Ordered") for name in names),
        io=any("IOEffect" in name for name in names),
        prints=any("DebugEffect" in name for name in names),
    )
