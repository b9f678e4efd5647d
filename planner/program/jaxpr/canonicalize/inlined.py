"""Calls opened: the equations of `jit` and the like put in the place of the call, so that a body is one list of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax.extend.core as jex_core

from planner.program.jaxpr.bodies import (
    REMATS,
    body_of,
    holds_constants,
    opened,
    structure_of,
    with_bodies,
    with_fields,
)
from planner.program.jaxpr.calls import keeps_all_bits
from planner.program.jaxpr.variables import fresh_var, last_named

CALLS = frozenset(
    (
        "jit",
        "pjit",
        "call",
        "closed_call",
        "core_call",
        "eval_jaxpr",
        "custom_jvp_call",
        "custom_vjp_call",
        "custom_vjp_call_jaxpr",
    )
)
"""Calls that say nothing but their name, or how they are differentiated, which a program with a backward pass has used."""


def inlined(jaxpr: Any, *, remats: bool = False) -> Any:
    """A body (open or closed) with the equations of its calls in their place, and of its `remats` if asked.

    A `remat` of which no derivative was taken is a call like any other; marks of what a policy saves are left out. Every
    result of the equations is a variable, also those that nothing reads. Bodies of loops and branches stay as they are, and
    so do calls that name placements, or that hold constants.
    """
    body = opened(jaxpr)
    renamed: dict[Any, Any] = {}
    eqns = [_all_named(eqn) for eqn in _inlined(body.eqns, renamed, remats)]
    return with_fields(jaxpr, eqns=eqns, outvars=[last_named(atom, renamed) for atom in body.outvars])


def unread_dropped(jaxpr: Any) -> Any:
    """A program, bodies included, in which results that nothing reads are no variables, which `inlined` makes them."""
    body = opened(jaxpr)
    read = {atom for eqn in body.eqns for atom in eqn.invars if not isinstance(atom, jex_core.Literal)}
    read.update(atom for atom in body.outvars if not isinstance(atom, jex_core.Literal))
    eqns: list[Any] = []
    for eqn in body.eqns:
        new = with_bodies(eqn, lambda inner, _: unread_dropped(inner))
        if not all(var in read or isinstance(var, jex_core.DropVar) for var in eqn.outvars):
            outvars = [var if var in read else jex_core.DropVar(var.aval) for var in eqn.outvars]
            new = new.replace(outvars=outvars)
        eqns.append(new)
    if all(new is old for new, old in zip(eqns, body.eqns, strict=True)):
        return jaxpr
    return with_fields(jaxpr, eqns=eqns)


def _inlined(eqns: Iterable[Any], renamed: dict[Any, Any], remats: bool) -> Iterator[Any]:
    """Equations, those of calls opened; `renamed` says what their variables are called now, and learns of more."""
    for eqn in eqns:
        operands = [last_named(atom, renamed) for atom in eqn.invars]
        if keeps_all_bits(eqn):
            renamed[eqn.outvars[0]] = operands[0]
            continue
        inner = _body_of_call(eqn, remats)
        if inner is None:
            yield eqn.replace(invars=operands)
            continue
        body = opened(inner)
        names: dict[Any, Any] = dict(zip(body.invars, operands, strict=True))
        steps = [_renewed(step, names) for step in body.eqns]
        yield from _inlined(_outside(steps, eqn), names, remats)
        renamed.update(zip(eqn.outvars, [last_named(atom, names) for atom in body.outvars], strict=True))


def _all_named(eqn: Any) -> Any:
    """An equation all of whose results are variables: what nothing reads here may be read elsewhere."""
    if not any(isinstance(var, jex_core.DropVar) for var in eqn.outvars):
        return eqn
    return eqn.replace(outvars=[fresh_var(v) if isinstance(v, jex_core.DropVar) else v for v in eqn.outvars])


def _body_of_call(eqn: Any, remats: bool) -> Any:
    """The body that is put in the place of an equation, None where it stays."""
    name = eqn.primitive.name
    if name not in CALLS and not (name in REMATS and (remats or not eqn.params.get("differentiated", True))):
        return None
    structure = structure_of(eqn)
    inner = None if structure is None else body_of(eqn, structure.bodies[0])
    if inner is None or holds_constants(inner) or _names_placements(eqn.params):
        return None
    return inner


def _names_placements(params: Mapping[str, Any]) -> bool:
    """Whether a call says how its operands or results are placed."""
    shardings = (*params.get("in_shardings", ()), *params.get("out_shardings", ()))
    return any(type(sharding).__name__ != "UnspecifiedValue" for sharding in shardings)


def _renewed(eqn: Any, names: dict[Any, Any]) -> Any:
    """An equation of a body, with variables of its own: the same body may be called twice."""
    outvars: list[Any] = []
    for var in eqn.outvars:
        new = var if isinstance(var, jex_core.DropVar) else fresh_var(var)
        if new is not var:
            names[var] = new
        outvars.append(new)
    return eqn.replace(outvars=outvars)


def _outside(eqns: Iterable[Any], call: Any) -> Iterator[Any]:
    """The equations of a call with its names and, where they have none, its source line."""
    outer = call.source_info
    for eqn in eqns:
        source = eqn.source_info
        names = outer.name_stack + source.name_stack
        yield eqn.replace(source_info=source.replace(traceback=source.traceback or outer.traceback, name_stack=names))
