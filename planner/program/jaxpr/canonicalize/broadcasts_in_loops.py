"""Large broadcasts that loops read in every pass, made within the loops of what they are broadcast from.

JAX takes what does not change from pass to pass out of the loops that it differentiates, also a mask that is broadcast to
batch and heads. There it is an array that every pass reads from memory; within the loop it is fused with what reads it.
Whether it is taken out depends on the checkpoints of the program, so it is put back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.extend.core as jex_core

from planner.program.jaxpr.bodies import (
    body_of,
    closed,
    holds_constants,
    opened,
    structure_of,
    with_bodies,
    with_fields,
)
from planner.program.jaxpr.calls import equations_by, scanned
from planner.program.jaxpr.variables import called, fresh_var, with_own_variables
from planner.program.tracing.arguments import aval_of

VIEWS = ("broadcast_in_dim", "convert_element_type", "reshape", "squeeze", "iota")
CHEAP = frozenset((*VIEWS, "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not", "select_n"))
"""Primitives that compilers fuse with what reads them, and that compute next to nothing."""
LARGE_BYTES = 2**20
"""Smaller arrays stay outside: they are read fast."""
TIMES = 2
"""How many times larger than what it is made of an array is that is made within a loop."""


class _Source(NamedTuple):
    """The least that an array can be made of: its bytes, variables, and the equations that make the array of them."""

    bytes: float
    variables: tuple[Any, ...]
    steps: tuple[Any, ...]


def with_broadcasts_in_loops(jaxpr: Any) -> Any:
    """A program with these broadcasts within its loops, those in loops too; the same object where it has none."""
    body = opened(jaxpr)
    makers: dict[Any, Any] = {}
    eqns: list[Any] = []
    for eqn in body.eqns:
        if eqn.primitive.name in CHEAP and len(eqn.outvars) == 1 and not eqn.effects:
            makers[eqn.outvars[0]] = eqn
        new = with_bodies(eqn, lambda inner, _: with_broadcasts_in_loops(inner))
        eqns += _with_sources(new, makers)
    if len(eqns) == len(body.eqns) and all(new is old for new, old in zip(eqns, body.eqns, strict=True)):
        return jaxpr
    return with_fields(jaxpr, eqns=_read(eqns, body.outvars, makers))


def _with_sources(eqn: Any, makers: Mapping[Any, Any]) -> list[Any]:
    """A loop that makes large broadcasts itself, or any other equation as it is."""
    structure = structure_of(eqn)
    if structure is None or structure.kind != "scan" or eqn.effects or holds_constants(body_of(eqn, ("jaxpr", None))):
        return [eqn]
    body, known = opened(body_of(eqn, ("jaxpr", None))), dict[Any, _Source]()
    names: dict[Any, Any] = {}
    inside: dict[Any, Any] = {}
    steps: dict[Any, Any] = {}
    kept: list[tuple[Any, Any]] = []
    for var, operand in zip(body.invars[: structure.num_consts], eqn.invars, strict=False):
        is_made = not isinstance(operand, jex_core.Literal) and operand in makers
        source = _source(operand, makers, known) if is_made else None
        if source is None or source.bytes * TIMES > (size := aval_of(operand.aval).bytes) or size < LARGE_BYTES:
            kept.append((var, operand))
            continue
        names[var] = operand
        steps |= {step.outvars[0]: step for step in source.steps}
        inside |= {one: inside.get(one) or fresh_var(one) for one in source.variables}
    if not names:
        return [eqn]
    within = dict(inside)
    made = list(with_own_variables(steps.values(), within))
    renamed = {var: within[operand] for var, operand in names.items()}
    later = [step.replace(invars=[called(atom, renamed) for atom in step.invars]) for step in body.eqns]
    consts = [*kept, *((var, operand) for operand, var in inside.items())]
    others = list(zip(body.invars, eqn.invars, strict=True))[structure.num_consts :]
    new = body.replace(
        eqns=[*made, *later],
        invars=[var for var, _ in (*consts, *others)],
        outvars=[called(atom, renamed) for atom in body.outvars],
    )
    run, first = jex_core.jaxpr_as_fun(closed(new)), len(consts)
    last = first + structure.num_carry

    def looped(*operands: Any) -> list[Any]:
        return scanned(eqn.params, run, operands[:first], operands[first:last], operands[last:])

    return equations_by(looped, [operand for _, operand in (*consts, *others)], eqn.outvars, eqn.source_info)[0]


def _source(var: Any, makers: Mapping[Any, Any], known: dict[Any, _Source]) -> _Source:
    """The least that an array can be made of by cheap equations; itself where that is the least."""
    if var not in known:
        itself = _Source(aval_of(var.aval).bytes, (var,), ())
        if var in makers:
            operands = dict.fromkeys(atom for atom in makers[var].invars if not isinstance(atom, jex_core.Literal))
            below = [_source(operand, makers, known) for operand in operands]
            variables = dict.fromkeys(one for source in below for one in source.variables)
            size = sum(aval_of(one.aval).bytes for one in variables)
            if size < itself.bytes:
                steps = dict.fromkeys(id(step) for source in below for step in source.steps)
                by_id = {id(step): step for source in below for step in source.steps}
                itself = _Source(size, tuple(variables), (*(by_id[one] for one in steps), makers[var]))
        known[var] = itself
    return known[var]


def _read(eqns: list[Any], results: Any, makers: Mapping[Any, Any]) -> list[Any]:
    """These equations without cheap ones that nothing reads any more."""
    read = {atom for atom in results if not isinstance(atom, jex_core.Literal)}
    found: list[Any] = []
    for eqn in reversed(eqns):
        if not eqn.outvars or eqn.outvars[0] not in makers or eqn.outvars[0] in read:
            read.update(atom for atom in eqn.invars if not isinstance(atom, jex_core.Literal))
            found.append(eqn)
    return found[::-1]
