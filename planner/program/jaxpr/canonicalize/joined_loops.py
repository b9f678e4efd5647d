"""A loop over groups whose body is one loop over the members of a group, as one loop over all members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.extend.core as jex_core
import jax.numpy as jnp

from planner.program.jaxpr.bodies import body_of, closed, holds_constants, opened, structure_of, with_fields
from planner.program.jaxpr.calls import equations_by, scanned
from planner.program.jaxpr.canonicalize.inlined import inlined


def with_loops_joined(jaxpr: Any) -> Any:
    """A program with such loops as one, where the body of the outer one does nothing else; the same object without any.

    What both loops stack is reshaped, and what one of them reads that another has stacked is not.
    """
    body = opened(jaxpr)
    flat: dict[Any, Any] = {}
    eqns = [new for eqn in body.eqns for new in (_joined(eqn, flat) or [eqn])]
    return with_fields(jaxpr, eqns=eqns) if flat else jaxpr


def _scan_of(eqn: Any) -> tuple[Any, int, int] | None:
    """The body of a loop with all calls opened, how many operands are the same in every pass, and how many are carried."""
    structure = structure_of(eqn)
    if structure is None or structure.kind != "scan" or eqn.effects:
        return None
    body = body_of(eqn, ("jaxpr", None))
    if holds_constants(body):
        return None
    return inlined(opened(body), remats=True), structure.num_consts, structure.num_carry


def _joined(eqn: Any, flat: dict[Any, Any]) -> list[Any] | None:
    """The equations of one loop in the place of two; `flat` are stacks of members by the stacks of groups."""
    outer = _scan_of(eqn)
    if outer is None or len(outer[0].eqns) != 1:
        return None
    body, consts, carry = outer
    member = body.eqns[0]
    inner = _scan_of(member)
    if inner is None or inner[2] != carry or member.params["reverse"] != eqn.params["reverse"]:
        return None
    inner_body, inner_consts, _ = inner
    operand = dict(zip(body.invars, eqn.invars, strict=True))
    same, carried, sliced = _parts(body.invars, consts, carry)
    of_same, of_carried, of_sliced = _parts(member.invars, inner_consts, carry)
    made = {var: i for i, var in enumerate(member.outvars)}
    where = [None if isinstance(atom, jex_core.Literal) else made.get(atom) for atom in body.outvars]
    stays = (
        list(of_carried) == list(carried)
        and where[:carry] == list(range(carry))
        and all(position is not None and position >= carry for position in where[carry:])
        and all(isinstance(atom, jex_core.Literal) or atom in same for atom in of_same)
        and all(not isinstance(atom, jex_core.Literal) and atom in sliced for atom in of_sliced)
    )
    if not stays:
        return None
    groups, members = eqn.params["length"], member.params["length"]
    given: Mapping[str, Any] = {**member.params, "length": groups * members}
    run = jex_core.jaxpr_as_fun(closed(inner_body))
    eqns: list[Any] = []
    stacks = [_flat(operand[atom], groups * members, flat, eqns, eqn) for atom in of_sliced]
    begun = [operand[var] for var in carried]
    unchanging = [atom if isinstance(atom, jex_core.Literal) else operand[atom] for atom in of_same]
    results = [*eqn.outvars[:carry]]
    for var in member.outvars[carry:]:
        results.append(jex_core.Var(var.aval.update(shape=(groups * members, *var.aval.shape[1:]))))
    first, last = len(unchanging), len(unchanging) + carry

    def looped(*operands: Any) -> list[Any]:
        return scanned(given, run, operands[:first], operands[first:last], operands[last:])

    eqns += equations_by(looped, [*unchanging, *begun, *stacks], results, eqn.source_info)[0]
    for var, position in zip(eqn.outvars[carry:], where[carry:], strict=True):
        if not isinstance(var, jex_core.DropVar) and position is not None:
            flat[var] = results[position]
            eqns += _reshaped(results[position], var, eqn)
    flat.setdefault(None, None)
    return eqns


def _parts(atoms: Sequence[Any], consts: int, carry: int) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    return atoms[:consts], atoms[consts : consts + carry], atoms[consts + carry :]


def _flat(stack: Any, length: int, flat: dict[Any, Any], eqns: list[Any], eqn: Any) -> Any:
    """The stack of all members, of which this is the stack by groups."""
    if stack not in flat:
        flat[stack] = jex_core.Var(stack.aval.update(shape=(length, *stack.aval.shape[2:])))
        eqns += _reshaped(stack, flat[stack], eqn)
    return flat[stack]


def _reshaped(stack: Any, result: Any, eqn: Any) -> list[Any]:
    return equations_by(lambda x: [jnp.reshape(x, result.aval.shape)], [stack], [result], eqn.source_info)[0]
