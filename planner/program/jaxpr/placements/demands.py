"""The placements that a program demands itself (inner `jit`s, `device_put`), written as constraints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.sharding import NamedSharding

from planner.program.jaxpr.bodies import body_of, equations_of, opened, put_body, structure_of
from planner.program.jaxpr.placements.constraints import constraint_equation, unspecified
from planner.program.jaxpr.rewrite import Rewriter
from planner.program.slots import Slot


def with_plain_constraints(jaxpr: Any) -> Any:
    """The program with the placements of inner `jit`s and `device_put`s written as constraints, as it demands them.

    The program itself where it demands none.
    """
    if not any(map(_demands_placement, equations_of(jaxpr))):
        return jaxpr
    body = opened(jaxpr)
    eqns: list[Any] = []
    for eqn in body.eqns:
        structure, params = structure_of(eqn), dict(eqn.params)
        for place in structure.bodies if structure else ():
            put_body(params, place, with_plain_constraints(body_of(eqn, place)))
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
    new = body.replace(eqns=eqns)
    return new if jaxpr is body else jaxpr.replace(jaxpr=new)


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
