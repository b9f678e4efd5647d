"""A loop over groups whose body is one loop over the members of a group, as one loop over all members.

Besides, the outer body may add what the inner loop has summed to a sum of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.extend.core as jex_core
import jax.numpy as jnp

from planner.program.jaxpr.bodies import body_of, closed, holds_constants, opened, structure_of, with_fields
from planner.program.jaxpr.calls import equations_by, is_zero, scanned
from planner.program.jaxpr.canonicalize.added_stacks import SUMS
from planner.program.jaxpr.canonicalize.inlined import inlined

BESIDE = frozenset((*SUMS, "broadcast_in_dim"))
"""What may stand beside the inner loop: sums of groups, and the zeros that they begin at."""


def with_loops_joined(jaxpr: Any) -> Any:
    """A program with such loops as one, where the body of the outer one does little else; the same object without any.

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
    if outer is None:
        return None
    body, consts, carry = outer
    loops = [one for one in body.eqns if one.primitive.name == "scan"]
    if len(loops) != 1 or any(one.primitive.name not in BESIDE for one in body.eqns if one is not loops[0]):
        return None
    inner = _scan_of(loops[0])
    if inner is None or inner[2] != carry or loops[0].params["reverse"] != eqn.params["reverse"]:
        return None
    inner_body, inner_consts, _ = inner
    body = _with_sums_carried(body, body.invars[consts : consts + carry], loops[0], inner_body, inner_consts)
    if len(body.eqns) != 1:
        return None
    member = body.eqns[0]
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


def _with_sums_carried(body: Any, carried: Sequence[Any], member: Any, inner_body: Any, consts: int) -> Any:
    """The body of a loop over groups whose inner loop, the `member`, adds to what is `carried`, and not to zero.

    The backward pass sums so the gradient of what all layers read, such as a bias by position. `consts` are how many
    operands of the inner loop are the same in every pass.
    """
    operands, outvars, kept = list(member.invars), list(body.outvars), list(body.eqns)
    for position, made in enumerate(member.outvars[: len(carried)]):
        start = inner_body.invars[consts + position]
        zero, added = _zeros_of(body, operands[consts + position]), _only_reader(body, made)
        if zero is None or added is None or not _is_added_to(inner_body, start, inner_body.outvars[position]):
            continue
        other = next((atom for atom in added.invars if atom is not made), made)
        places = [i for i, var in enumerate(carried) if var is other and outvars[i] is added.outvars[0]]
        if places and _is_added_to(body, other, outvars[places[0]]):
            operands[consts + position], outvars[places[0]] = other, made
            kept = [eqn for eqn in kept if eqn is not zero and eqn is not added]
    eqns = [eqn.replace(invars=operands) if eqn is member else eqn for eqn in kept]
    return body if len(kept) == len(body.eqns) else with_fields(body, eqns=eqns, outvars=outvars)


def _is_added_to(body: Any, start: Any, end: Any) -> bool:
    """Whether all that becomes of one variable of a body is that others are added to it, which is then the other."""
    while start is not end:
        added = _only_reader(body, start)
        if added is None or added.primitive.name not in SUMS:
            return False
        start = added.outvars[0]
    read = any(atom is end for eqn in body.eqns for atom in eqn.invars)
    return not read and sum(atom is end for atom in body.outvars) == 1


def _only_reader(body: Any, var: Any) -> Any | None:
    """The equation that reads a variable, if it is one that reads it once, and the body does not return it."""
    readers = [eqn for eqn in body.eqns for atom in eqn.invars if atom is var]
    returned = any(atom is var for atom in body.outvars)
    return readers[0] if len(readers) == 1 and not returned else None


def _zeros_of(body: Any, atom: Any) -> Any | None:
    """The equation that makes an array of zeros that only one equation reads; None where it is no such array."""
    maker = next((eqn for eqn in body.eqns if any(var is atom for var in eqn.outvars)), None)
    if maker is None or maker.primitive.name != "broadcast_in_dim" or _only_reader(body, atom) is None:
        return None
    return maker if is_zero(maker.invars[0]) else None


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
