"""Types with placements: what those of a program traced under Explicit mesh axes say of its arguments and results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.extend.core as jex_core
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from planner.program.jaxpr.bodies import opened
from planner.program.mesh_axes import explicit_axes
from planner.program.tracing.traced import ShardingTypes


def named_mesh(aval: Any) -> Any:
    """The mesh that a type names, None where it names none with Explicit axes."""
    sharding = getattr(aval, "sharding", None)
    return None if sharding is None or not explicit_axes(sharding.mesh) else sharding.mesh


def names_axes(jaxpr: Any) -> bool:
    """Whether what a program takes, closes over or returns has types that name mesh axes."""
    body = opened(jaxpr)
    return any(named_mesh(atom.aval) is not None for atom in (*body.invars, *body.constvars, *body.outvars))


def sharding_types(jaxpr: Any, arguments: Sequence[Any], mesh: Mesh | AbstractMesh) -> ShardingTypes:
    """What the types of a program say of its arguments, the leaves it was traced for, and of its results.

    JAX takes an argument without a placement for a whole one; here that leaves it open, and with it the results whose
    types name no axes. So is what a mesh with Auto axes leaves to the compiler.
    """
    placed = [getattr(leaf, "sharding", None) for leaf in arguments]
    specs = [None if sharding is None else PartitionSpec(*sharding.spec.partitions) for sharding in placed]
    is_open = any(spec is None and np.ndim(leaf) for spec, leaf in zip(specs, arguments, strict=True))
    made = _placed_by_calls(jaxpr)
    results = [
        None if isinstance(atom, jex_core.Literal) else made.get(atom) or _whole_spec(atom.aval)
        for atom in opened(jaxpr).outvars
    ]
    return ShardingTypes(
        mesh=mesh,
        arguments=tuple(specs),
        results=tuple(None if spec is None or (is_open and not any(spec)) else spec for spec in results),
    )


def _placed_by_calls(jaxpr: Any) -> dict[Any, PartitionSpec]:
    """The results of calls with `out_shardings`, which say more than the types of those results."""
    return {
        var: PartitionSpec(*sharding.spec.partitions)
        for eqn in opened(jaxpr).eqns
        for var, sharding in zip(eqn.outvars, eqn.params.get("out_shardings", ()), strict=False)
        if isinstance(sharding, NamedSharding)
    }


def left_unreduced(jaxpr: Any) -> list[int]:
    """The positions of results that are sums which the program leaves unreduced."""
    avals = [atom.aval for atom in opened(jaxpr).outvars]
    return [i for i, aval in enumerate(avals) if named_mesh(aval) is not None and aval.sharding.spec.unreduced]


def _whole_spec(aval: Any) -> PartitionSpec | None:
    """The placement that a type says, None where it says it in part or not at all."""
    mesh = named_mesh(aval)
    if mesh is None or len(explicit_axes(mesh)) < len(mesh.axis_names) or not aval.ndim:
        return None
    return PartitionSpec(*aval.sharding.spec.partitions)
