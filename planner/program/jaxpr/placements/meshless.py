"""Outside of any mesh: equations and functions of plain programs are made and run where no mesh is set.

`jax.set_mesh` makes a mesh part of every trace below it. Under Explicit axes JAX reads a constraint as an assertion on the
type of its operand, and an operand whose type names axes does not meet one whose type names none. A plain program knows
its placements by constraints alone, so what is made of it here means the same wherever its caller stands.

Equations that lay a sharding on an array are made here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.extend.core as jex_core
from jax.sharding import NamedSharding, PartitionSpec

from planner.program.jaxpr.bodies import closed, opened
from planner.program.mesh_axes import NO_MESH, explicit_axes, with_auto_axes
from planner.program.spec_entries import axes_of_entry


def outside_of_meshes() -> AbstractContextManager[object]:
    """A context in which traces see no mesh."""
    return jax.sharding.use_abstract_mesh(NO_MESH)


def equations_made(function: Callable[..., Any], *avals: Any, axis_env: Sequence[tuple[str, int]] = ()) -> Any:
    """The open jaxpr of a function of operands like `avals`, traced where no mesh is set, under these named axes."""
    with outside_of_meshes():
        return opened(jax.make_jaxpr(function, axis_env=list(axis_env))(*avals))


def as_function(jaxpr: Any) -> Callable[..., list[Any]]:
    """A plain program (open or closed) as a function of its operands, which may have types that name axes."""
    run: Callable[..., list[Any]] = jex_core.jaxpr_as_fun(closed(jaxpr))

    def plain(*operands: Any) -> list[Any]:
        untyped = [without_axes(operand) for operand in operands]
        with outside_of_meshes():
            return run(*untyped)

    return plain


def with_axes(value: Any, sharding: NamedSharding) -> Any:
    """An array whose type names the Explicit axes that split it by `sharding`; what is Auto stays as it lies."""
    named = set(explicit_axes(sharding.mesh))
    entries = [tuple(axis for axis in axes_of_entry(entry) if axis in named) for entry in sharding.spec]
    spec = PartitionSpec(*(axes or None for axes in entries))
    return jax.sharding.reshard(value, NamedSharding(sharding.mesh, spec))


def without_axes(value: Any) -> Any:
    """An array whose type names no axes: the same, where it lies."""
    sharding = getattr(jax.typeof(value), "sharding", None)
    if sharding is None or not explicit_axes(sharding.mesh):
        return value
    auto = with_auto_axes(sharding.mesh)
    with jax.sharding.use_abstract_mesh(auto):
        return jax.sharding.reshard(value, NamedSharding(auto, PartitionSpec()))


def constraint_equation(aval: Any, sharding: Any) -> Any:
    """An equation that lays a sharding on an array, or copies it where there is none; its variables are to be replaced."""
    spec = jax.ShapeDtypeStruct(aval.shape, aval.dtype)
    if sharding is None:
        return equations_made(jax.numpy.copy, spec).eqns[0]
    return equations_made(lambda x: jax.lax.with_sharding_constraint(x, sharding), spec).eqns[0]


def unspecified() -> Any:
    """What stands in a `jit` equation for a sharding that is not given."""
    return equations_made(jax.jit(lambda x: x), 1.0).eqns[0].params["in_shardings"][0]


def is_placement(eqn: Any) -> bool:
    """Whether an equation only says on which devices its operand lies."""
    if eqn.primitive.name != "sharding_constraint":
        return False
    return getattr(eqn.params["sharding"], "memory_kind", None) not in ("pinned_host", "unpinned_host")
