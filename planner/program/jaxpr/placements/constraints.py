"""Equations that lay a sharding on an array: how they are made, and told from others."""

from __future__ import annotations

from typing import Any

import jax

from planner.program.jaxpr.placements.meshless import equations_made


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
