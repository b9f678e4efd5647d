"""What a program takes and gives: large arrays that it closes over made arguments, and results left out."""

from __future__ import annotations

from typing import Any

import jax
import jax.extend.core as jex_core

from planner.program.jaxpr.bodies import consts_of, opened, with_constants, with_fields
from planner.program.jaxpr.variables import all_named, fresh_var, with_own_variables
from planner.program.tracing.arguments import aval_of

HOISTED_BYTES = 64 * 1024
"""Least size of an array that a function closes over for it to be planned as an argument is."""


def hoisted(jaxpr: Any) -> tuple[Any, tuple[Any, ...]]:
    """The program with its large constants as trailing arguments, and their values.

    JAX bakes what a function closes over into the program, whole on every device. Constants of functions jitted on
    their own are found where they are called from outside of any loop; what a loop reads, JAX passes in from outside.
    """
    if not _holds_large(jaxpr):
        return jaxpr, ()
    body = opened(jaxpr)
    held = {id(value): (var, value) for var, value in zip(body.constvars, consts_of(jaxpr), strict=True)}
    eqns, outvars = _spliced(body, held)
    large = [(var, value) for var, value in held.values() if _is_large(value)]
    small = [(var, value) for var, value in held.values() if not _is_large(value)]
    invars = [*body.invars, *(var for var, _ in large)]
    closed = with_constants(jaxpr, small, eqns=eqns, outvars=outvars, invars=invars)
    return closed, tuple(value for _, value in large)


def _is_large(value: Any) -> bool:
    return hasattr(value, "dtype") and aval_of(jax.typeof(value)).bytes >= HOISTED_BYTES


def _spliced(body: Any, held: dict[int, tuple[Any, Any]]) -> tuple[list[Any], list[Any]]:
    """The equations and results of a body with calls of jitted functions that hold large constants expanded.

    `held` are (variable, value) of all constants so far, by identity of the value; those of expanded calls join it.
    """
    found: list[Any] = []
    renamed: dict[Any, Any] = {}
    for eqn in body.eqns:
        inner = eqn.params["jaxpr"] if eqn.primitive.name in ("jit", "pjit") else None
        if inner is None or not _holds_large(inner):
            found.append(eqn.replace(invars=all_named(eqn.invars, renamed)))
            continue
        called = opened(inner)
        local: dict[Any, Any] = dict(zip(called.invars, all_named(eqn.invars, renamed), strict=True))
        for var, value in zip(called.constvars, consts_of(inner), strict=True):
            local[var] = held.setdefault(id(value), (fresh_var(var), value))[0]
        steps, results = _spliced(called, held)
        found += with_own_variables(steps, local)
        renamed.update(zip(eqn.outvars, all_named(results, local), strict=True))
    return found, all_named(body.outvars, renamed)


def _holds_large(jaxpr: Any) -> bool:
    inner = [e.params["jaxpr"] for e in opened(jaxpr).eqns if e.primitive.name in ("jit", "pjit")]
    return any(map(_is_large, consts_of(jaxpr))) or any(map(_holds_large, inner))


def without_last(jaxpr: Any, count: int) -> tuple[Any, list[bool]]:
    """The program without its last results, and which of them were computed for nothing else."""
    if not count:
        return jaxpr, []
    body = opened(jaxpr)
    kept, cut = body.outvars[:-count], body.outvars[-count:]
    needed: set[Any] = {atom for atom in kept if not isinstance(atom, jex_core.Literal)}
    computed: set[Any] = set()
    for eqn in reversed(body.eqns):
        computed.update(eqn.outvars)
        if eqn.effects or not needed.isdisjoint(eqn.outvars):
            needed.update(atom for atom in eqn.invars if not isinstance(atom, jex_core.Literal))
    useless = [not isinstance(atom, jex_core.Literal) and atom in computed and atom not in needed for atom in cut]
    return with_fields(jaxpr, outvars=kept), useless


def result_avals(jaxpr: Any) -> list[Any]:
    """The types of what a program returns."""
    return [var.aval for var in opened(jaxpr).outvars]
