"""The placements that a program demands itself: those of inner `jit`s and `device_put` written as constraints, those of
constraints and `shard_map`s as params of their ops.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from jax.sharding import NamedSharding

from planner.program.graph import Aval
from planner.program.jaxpr.bodies import (
    equations_of,
    free_axes,
    opened,
    with_bodies,
    with_fields,
)
from planner.program.jaxpr.builder import Builder
from planner.program.jaxpr.placements.meshless import constraint_equation, unspecified
from planner.program.jaxpr.rewrite import Rewriter
from planner.program.slots import Slot
from planner.program.spec_entries import axes_of_entry, parts_over


def demanded_specs(b: Builder, eqn: Any, avals: Sequence[Aval], source: str) -> dict[str, Any]:
    """What a constraint or a `shard_map` demands of its operands and results: params of its op.

    `operand_specs` and `result_specs` hold, for each array, the axes of every dim (None where a dim is free), or None
    where nothing is demanded; `mesh` is the shape of the mesh they name.
    """
    params = eqn.params
    if eqn.primitive.name == "shard_map":
        spec_of: list[tuple[Any, Collection[int]]] = [(s, ()) for s in (*params["in_specs"], *params["out_specs"])]
        mesh, arrays = params["mesh"], [*(b.aval(v.aval) for v in eqn.invars), *avals]
        free = free_axes(eqn)
        if free:
            b.notes.append(
                f"{source}: the shard_map leaves the axes {free} to the compiler; its operands are whole along them, and "
                "every device along them is taken to do all of its work"
            )
    elif isinstance(params["sharding"], NamedSharding):
        mesh, arrays = params["sharding"].mesh, list(avals)
        spec_of = [(params["sharding"].spec, params["unconstrained_dims"])]
    else:
        b.notes.append(f"{source}: the constraint {params['sharding']} names no mesh and is left to the compiler")
        return {"operand_specs": (None,), "result_specs": (None,)}
    shape = dict(mesh.shape)
    found: list[tuple[tuple[str, ...] | None, ...] | None] = []
    for (spec, free), aval in zip(spec_of, arrays, strict=True):
        entries = [*spec, *[None] * (len(aval.shape) - len(spec))]
        # Axes of one device split nothing, in whatever order they are named.
        axes = [tuple(axis for axis in axes_of_entry(entry) if shape.get(axis) != 1) for entry in entries]
        parts = [parts_over(names, shape) for names in axes]
        ordered = all(list(names) == sorted(names, key=list(shape).index) for names in axes)
        even = all(extent % n == 0 for extent, n in zip(aval.shape, parts, strict=True))
        if not (ordered and even):
            b.notes.append(
                f"{source}: {spec} is left to the compiler: it splits {list(aval.shape)} unevenly, or by axes in another "
                f"order than the mesh's, {tuple(shape)}"
            )
            found.append(None)
        else:
            found.append(tuple(None if dim in free else names for dim, names in enumerate(axes)))
    count = len(eqn.invars) if eqn.primitive.name == "shard_map" else 0
    return {
        "operand_specs": tuple(found[:count]) if count else (None,) * len(eqn.invars),
        "result_specs": tuple(found[count:]),
        "mesh": shape,
    }


def with_plain_constraints(jaxpr: Any) -> Any:
    """The program with the placements of inner `jit`s and `device_put`s written as constraints, as it demands them.

    The program itself where it demands none.
    """
    if not any(map(_demands_placement, equations_of(jaxpr))):
        return jaxpr
    eqns: list[Any] = []
    for eqn in opened(jaxpr).eqns:
        eqn = with_bodies(eqn, lambda inner, _: with_plain_constraints(inner))
        params = dict(eqn.params)
        if eqn.primitive.name == "device_put" and _demands_placement(eqn):
            for operand, result, place in zip(eqn.invars, eqn.outvars, params["devices"], strict=True):
                sharding = place if isinstance(place, NamedSharding) else None
                eqns.append(constraint_equation(operand.aval, sharding).replace(invars=[operand], outvars=[result]))
            continue
        if _demands_placement(eqn):
            sides = ("in_shardings", "out_shardings")
            params["jaxpr"] = _constrained_body(params["jaxpr"], *(params[side] for side in sides))
            params |= {side: tuple(unspecified() for _ in params[side]) for side in sides}
        eqns.append(eqn.replace(params=params))
    return with_fields(jaxpr, eqns=eqns)


def _demands_placement(eqn: Any) -> bool:
    """Whether an equation is a `device_put` onto a mesh, or a `jit` with shardings of its operands or results."""
    name, params = eqn.primitive.name, eqn.params
    if name == "device_put":
        return any(isinstance(place, NamedSharding) for place in params["devices"])
    if name in ("jit", "pjit"):
        return any(isinstance(place, NamedSharding) for place in (*params["in_shardings"], *params["out_shardings"]))
    return False


def _constrained_body(jaxpr: Any, entering: Sequence[Any], leaving: Sequence[Any]) -> Any:
    """A body whose operands and results are constrained, where a sharding is given for them."""

    def edits(slot: Slot) -> Sequence[Any]:
        side = {"invar": entering, "outvar": leaving}.get(slot[0]) if not slot[1] else None
        return [] if side is None or not isinstance(side[slot[2]], NamedSharding) else [side[slot[2]]]

    return Rewriter(edits=edits, keep_placements=True).rewrite(jaxpr, ())
