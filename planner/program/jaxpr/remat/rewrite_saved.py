"""Programs whose backward loops read other values of their forward loops: saved, or computed again.

The results are the same: the same operations on the same values. What is computed again stands in the backward loop, where
no compiler merges it with what the forward loop has computed.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import jax
import jax.extend.core as jex_core

from planner.program.jaxpr.bodies import body_of, closed, opened
from planner.program.jaxpr.calls import equations_by, scanned
from planner.program.jaxpr.canonicalize.broadcasts_in_loops import with_broadcasts_in_loops
from planner.program.jaxpr.canonicalize.inlined import unread_dropped
from planner.program.jaxpr.dead_code import without_dead_code
from planner.program.jaxpr.remat.loop_pairs import Loop, Pair, inside
from planner.program.jaxpr.remat.recomputed_layers import recomputed_within
from planner.program.jaxpr.remat.residuals import Between
from planner.program.jaxpr.remat.scopes import Saved, Scope
from planner.program.jaxpr.remat.unrolled_layers import WrittenOut
from planner.program.jaxpr.variables import fresh_var, is_on_host
from planner.program.tracing.traced import Program


def with_saved(
    program: Program, scope: Scope, saved: Saved, offloaded: Saved = MappingProxyType[int, Sequence[int]]({})
) -> Program:
    """The program in which of the crossings of its `scope` just these values are saved; the rest is computed again.

    Of what loops save, those `offloaded` wait in the memory of the host. Raises: NoSuchValues.
    """
    absent = [position for position in saved if position >= sum(1 for _ in scope.between())]
    if absent:
        raise NoSuchValues(absent[0])
    new = _rewritten(scope, saved, offloaded)
    pruned = with_broadcasts_in_loops(unread_dropped(without_dead_code(new)))
    jaxpr = program.jaxpr
    return replace(program, jaxpr=jaxpr.replace(jaxpr=pruned) if jaxpr is not opened(jaxpr) else pruned)


class NoSuchValues(Exception):
    """A program has no such crossing, or the crossing no such values; its text is the crossing's position."""


def _rewritten(scope: Scope, saved: Saved, offloaded: Saved) -> Any:
    """The body of a scope, and those in it, with the chosen values saved."""
    body = scope.body
    chosen = {
        position: _numbers_of(pair, position, saved[position])
        for position, pair in enumerate(scope.crossings, scope.first)
        if position in saved
    }
    if chosen and isinstance(scope.crossings[0], WrittenOut):
        body = recomputed_within(scope.crossings[0], chosen[scope.first])
    elif chosen:
        body = _with_pairs(scope, chosen, offloaded)
    return _with_loops(body, scope, saved, offloaded)


def _with_pairs(scope: Scope, chosen: Mapping[int, frozenset[int]], offloaded: Saved) -> Any:
    """The body of a scope in whose pairs of loops the chosen values, by position of the crossing, are saved."""
    of_loop: dict[int, list[Any]] = {}
    stacks: dict[int, dict[int, tuple[Any, bool]]] = {}
    on_hosts: set[int] = set()
    for position, numbers in chosen.items():
        pair = scope.pairs[position - scope.first]
        away = _numbers_of(pair, position, offloaded.get(position, ())) - pair.once.keys()
        on_hosts |= away
        stacks.setdefault(pair.forward.position, {}).update(_as_written(pair, numbers - away))
    for forward in {p.forward.position: p.forward for p in scope.pairs}.values():
        of_it = [
            (scope.pairs[position - scope.first], numbers)
            for position, numbers in chosen.items()
            if scope.pairs[position - scope.first].forward is forward
        ]
        if of_it:
            of_loop[forward.position] = _with_stacks(forward, of_it, stacks[forward.position], on_hosts)
    for position, numbers in chosen.items():
        pair = scope.pairs[position - scope.first]
        of_loop[pair.backward.position] = _reading(pair, numbers, stacks[pair.forward.position])
    eqns = [of_loop.get(position, [eqn]) for position, eqn in enumerate(scope.body.eqns)]
    return scope.body.replace(eqns=[eqn for some in eqns for eqn in some])


def _with_loops(body: Any, scope: Scope, saved: Saved, offloaded: Saved) -> Any:
    """A body with the chosen values saved in the bodies of the scope's loops that are looked into."""
    new: dict[Any, tuple[Any, Any]] = {}
    for loop, within in scope.inner:
        inner = body_of(loop, ("jaxpr", None))
        new[loop.outvars[0]] = inner, inner.replace(jaxpr=_rewritten(within, saved, offloaded))
    eqns: list[Any] = []
    for eqn in body.eqns:
        old, rewritten = new.get(eqn.outvars[0], (None, None)) if eqn.outvars else (None, None)
        # One that was widened has another body by now.
        same = old is not None and eqn.params.get("jaxpr") is old
        eqns.append(eqn.replace(params={**eqn.params, "jaxpr": rewritten}) if same else eqn)
    return body.replace(eqns=eqns)


def _numbers_of(pair: Between, crossing: int, positions: Sequence[int]) -> frozenset[int]:
    """The numbers of values of a crossing. Raises: NoSuchValues."""
    order = pair.order
    if not all(0 <= position < len(order) for position in positions):
        raise NoSuchValues(crossing)
    return frozenset(order[position] for position in positions)


def _as_written(pair: Pair, numbers: frozenset[int]) -> dict[int, tuple[Any, bool]]:
    """By number the stack that holds a saved value already, and that it is sliced."""
    invars, stacked = pair.backward.eqn.invars, numbers - pair.once.keys()
    return {number: (invars[at], True) for number, at in pair.stacked.items() if number in stacked}


@dataclass
class _Body:
    """A body of a loop in the making: what it takes beside its carry, its equations, and by number its variables."""

    pair: Pair
    names: dict[int, Any]
    eqns: list[Any] = field(default_factory=list[Any])
    consts: list[tuple[Any, Any]] = field(default_factory=list[tuple[Any, Any]])
    slices: list[tuple[Any, Any]] = field(default_factory=list[tuple[Any, Any]])
    """(variable of the body, operand outside) of what is the same in every pass, and of what is taken slice by slice."""

    def take(self, number: int, operand: Any, var: Any, *, sliced: bool) -> None:
        """Takes a value from outside, and to the device from the host."""
        (self.slices if sliced else self.consts).append((var, operand))
        self.names[number] = self.put(var, jax.memory.Space.Device) if is_on_host(var) else var

    def put(self, var: Any, where: jax.memory.Space) -> Any:
        """A value in another memory."""
        moved = jex_core.Var(var.aval.update(memory_space=where))
        source = self.pair.backward.eqn.source_info
        self.eqns += equations_by(partial(jax.device_put, device=where), [var], [moved], source)[0]
        return moved

    def have(self, number: int) -> Any:
        """The variable of a value, which is taken from outside or computed of others if it is not there."""
        waiting = [number]
        while waiting:
            wanted = waiting[-1]
            if wanted in self.names:
                waiting.pop()
                continue
            if wanted in self.pair.free:
                operand, sliced = self.pair.free[wanted]
                self.take(wanted, operand, inside(operand, sliced), sliced=sliced)
                continue
            eqn, numbers, _ = self.pair.made[wanted]
            read = [None if isinstance(atom, jex_core.Literal) else numbers[atom] for atom in eqn.invars]
            left = [n for n in read if n is not None and n not in self.names]
            if left:
                waiting += left
                continue
            operands = [atom if n is None else self.names[n] for atom, n in zip(eqn.invars, read, strict=True)]
            outvars = list(map(fresh_var, eqn.outvars))
            for old, new in zip(eqn.outvars, outvars, strict=True):
                self.names.setdefault(numbers[old], new)
            self.eqns.append(eqn.replace(invars=operands, outvars=outvars))
        return self.names[number]


def _with_stacks(
    loop: Loop,
    of_pairs: Sequence[tuple[Pair, frozenset[int]]],
    stacks: dict[int, tuple[Any, bool]],
    offloaded: Container[int],
) -> list[Any]:
    """A forward loop that stacks what is saved, behind what is saved of values that are the same in every pass.

    `stacks` learns of what is made: by number where the backward loop reads it, and whether that is sliced.
    """
    names: dict[int, Any] = {}
    for var in (*loop.body.invars, *(var for var, _, _ in loop.beside)):
        names.setdefault(loop.numbers[var], var)
    for eqn in loop.body.eqns:
        for var in eqn.outvars:
            names.setdefault(loop.numbers[var], var)
    body = _Body(pair=of_pairs[0][0], names=names, eqns=list(loop.body.eqns))
    added: list[tuple[Any, Any]] = []
    outside = _Body(pair=of_pairs[0][0], names={})
    for pair, numbers in of_pairs:
        body.pair = outside.pair = pair
        outside.names.update((number, operand) for number, operand in pair.once.items() if operand is not None)
        for number in sorted(numbers):
            if number in stacks:
                continue
            if number in pair.once:
                stacks[number] = outside.have(number), False
            else:
                var = body.have(number)
                var = body.put(var, jax.memory.Space.Host) if number in offloaded else var
                stack = jex_core.Var(var.aval.update(shape=(loop.length, *var.aval.shape)))
                stacks[number] = stack, True
                added.append((var, stack))
    beside = {
        want: [(var, operand) for var, operand, sliced in loop.beside if sliced is want] for want in (False, True)
    }
    for eqn in body.eqns:
        # What is computed before the loop is not computed in it.
        if eqn.outvars and all(loop.numbers.get(var) in outside.names for var in eqn.outvars):
            body.consts += [(var, outside.names[loop.numbers[var]]) for var in eqn.outvars]
    taken = {var for var, _ in body.consts}
    looped = _scan(
        loop,
        consts=[*zip(loop.body.invars, loop.eqn.invars, strict=True)][: loop.consts] + body.consts + beside[False],
        slices=[*zip(loop.body.invars, loop.eqn.invars, strict=True)][loop.first_slice :] + body.slices + beside[True],
        eqns=[eqn for eqn in body.eqns if taken.isdisjoint(eqn.outvars)],
        outvars=[*loop.body.outvars, *(var for var, _ in added)],
        results=[*loop.eqn.outvars, *(stack for _, stack in added)],
    )
    return [*outside.eqns, *looped]


def _reading(pair: Pair, saved: frozenset[int], stacks: Mapping[int, tuple[Any, bool]]) -> list[Any]:
    """A backward loop that reads what is saved, and computes again what else it needs."""
    loop = pair.backward
    body = _Body(pair=pair, names={})
    for position, (var, operand) in enumerate(zip(loop.body.invars, loop.eqn.invars, strict=True)):
        number = loop.numbers[var]
        if loop.consts <= position < loop.first_slice or number in pair.stacked or number in body.names:
            continue
        body.take(number, operand, var, sliced=position >= loop.first_slice)
    for number in sorted(saved):
        operand, sliced = stacks[number]
        body.take(number, operand, inside(operand, sliced), sliced=sliced)
    again = pair.again(body.names)
    for eqn in (*loop.body.eqns, *pair.forward.body.eqns):
        # What is computed again stands first, in the order of the program, as in a checkpoint.
        numbers = loop.numbers if eqn.outvars and eqn.outvars[0] in loop.numbers else pair.forward.numbers
        for var in eqn.outvars:
            if numbers[var] in again:
                body.have(numbers[var])
    late = {var for eqn in pair.late for var in eqn.outvars}
    late |= set(loop.body.invars[loop.consts : loop.first_slice])

    def read(atom: Any) -> Any:
        return atom if isinstance(atom, jex_core.Literal) or atom in late else body.have(loop.numbers[atom])

    for eqn in pair.late:
        operands = [read(atom) for atom in eqn.invars]
        body.eqns.append(eqn.replace(invars=operands))
    outvars = [read(atom) for atom in loop.body.outvars]
    return _scan(
        loop, consts=body.consts, slices=body.slices, eqns=body.eqns, outvars=outvars, results=loop.eqn.outvars
    )


def _scan(
    loop: Loop,
    *,
    consts: Sequence[tuple[Any, Any]],
    slices: Sequence[tuple[Any, Any]],
    eqns: Sequence[Any],
    outvars: Sequence[Any],
    results: Sequence[Any],
) -> list[Any]:
    """The equations of a loop like another that takes, computes and returns something else beside its carry."""
    carry = [*zip(loop.body.invars, loop.eqn.invars, strict=True)][loop.consts : loop.first_slice]
    taken = [*consts, *carry, *slices]
    new = loop.body.replace(eqns=list(eqns), invars=[var for var, _ in taken], outvars=list(outvars))
    run: Callable[..., list[Any]] = jex_core.jaxpr_as_fun(closed(new))
    first, last = len(consts), len(consts) + len(carry)

    def looped(*operands: Any) -> list[Any]:
        return scanned(loop.eqn.params, run, operands[:first], operands[first:last], operands[last:])

    outside = [operand for _, operand in taken]
    return equations_by(looped, outside, results, loop.eqn.source_info)[0]
