"""Pairs of loops: a forward loop, the backward loop that reads what it has stacked, and what crosses between them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import jax.extend.core as jex_core

from planner.program.jaxpr.bodies import Structure, body_of, holds_constants, opened, structure_of
from planner.program.jaxpr.canonicalize.inlined import inlined
from planner.program.jaxpr.remat.residuals import Between, Made
from planner.program.jaxpr.remat.value_numbering import Numbers, ValueNumbers
from planner.program.jaxpr.remat.widened_results import widened
from planner.program.jaxpr.variables import fresh_var
from planner.program.tracing.arguments import aval_of


@dataclass
class Loop:
    """A scan with its calls opened, and the value numbers of its body."""

    eqn: Any
    structure: Structure
    position: int
    body: Any
    numbers: Numbers
    outer: list[int]
    """The numbers of its operands."""
    made: list[int]
    beside: list[tuple[Any, Any, bool]] = field(default_factory=list[tuple[Any, Any, bool]])
    """What it takes since it was widened: a variable of the body, the operand outside, and whether it is sliced."""

    @property
    def consts(self) -> int:
        """How many of its operands are the same in every pass."""
        return self.structure.num_consts

    @property
    def first_slice(self) -> int:
        """The position of its first operand that is taken slice by slice."""
        return self.structure.num_consts + self.structure.num_carry

    @property
    def carries(self) -> int:
        """How many values go from pass to pass."""
        return self.structure.num_carry

    @property
    def length(self) -> int:
        """The number of passes."""
        return self.eqn.params["length"]

    @property
    def kind(self) -> Hashable:
        """What loops have in common that compute alike: how often, and on what types."""
        return self.length, tuple(aval_of(atom.aval) for atom in self.eqn.invars)

    def widen(self, other: Loop, outside: Mapping[int, tuple[Any, bool]]) -> None:
        """Takes the equations of another loop in the place of equal ones that return less.

        What these read beside can be had from `outside`, by number with what it is there and whether it is sliced.
        """
        offered = {number: inside(*found) for number, found in outside.items()}
        given = [*self.body.invars, *(var for var, _, _ in self.beside)]
        eqns = widened(self.body.eqns, self.numbers, other.body.eqns, other.numbers, given, offered)
        self.body = self.body.replace(eqns=[eqn for some in eqns for eqn in some])
        self.beside += [(var, *outside[number]) for number, var in offered.items() if self.numbers.get(var) == number]


class _Taken(NamedTuple):
    """What a loop takes: where among its operands, its number inside, what it is outside and where that is made."""

    position: int
    number: int
    operand: Any
    sliced: bool
    made_at: int


def inside(operand: Any, sliced: bool) -> Any:
    """A variable for what a loop takes."""
    return jex_core.Var(operand.aval.update(shape=operand.aval.shape[1:])) if sliced else fresh_var(operand)


@dataclass(kw_only=True)
class Pair(Between):
    """A forward and a backward loop of one body, and what crosses between them."""

    forward: Loop
    backward: Loop
    stacked: dict[int, int] = field(default_factory=dict[int, int])
    """By number the position of the stack that the backward loop reads it from, as the program is written."""
    handed: dict[int, Any] = field(default_factory=dict[int, Any])
    """By number what the forward loop is handed from outside and the backward loop makes."""

    @property
    def length(self) -> int:
        """The number of passes."""
        return self.forward.length

    def number_of(self, atom: Any) -> int | None:
        """The number of what an equation of the backward loop reads, where it has one."""
        return self.backward.numbers.get(atom)

    @property
    def forward_eqns(self) -> Sequence[Any]:
        """Those of the forward loop's body."""
        return self.forward.body.eqns

    @cached_property
    def once(self) -> Mapping[int, Any]:
        """Those that are computed of what both loops take whole."""
        found: dict[int, Any] = {
            number: operand for number, (operand, sliced) in self.free.items() if not sliced
        } | self.handed
        for number in self.order:
            made = self.made.get(number)
            if made is not None and not made.eqn.effects:
                read = [made.numbers[atom] for atom in made.eqn.invars if not isinstance(atom, jex_core.Literal)]
                if found.keys() >= set(read):
                    found.setdefault(number, None)
        return found

    def find(self, defined: Mapping[Any, int], first: Mapping[int, Any]) -> None:
        """Finds what crosses; `defined` says where the body around makes a variable, `first` is the first of a number."""
        forward, backward = self.forward, self.backward
        # What a loop carries is its own, though it be equal to what the other makes.
        own = {backward.numbers[var] for var in backward.body.invars[backward.consts : backward.first_slice]}
        taken = [found for found in self._taken(defined, first) if found.number not in own]
        outside = {of.number: (of.operand, of.sliced) for of in taken if of.made_at < forward.position}
        forward.widen(backward, outside)
        self.free |= {forward.numbers[var]: (operand, sliced) for var, operand, sliced in forward.beside}
        for position, var in enumerate(forward.body.invars):
            if forward.consts <= position < forward.first_slice:
                self.carried[forward.numbers[var]] = var
            else:
                self.free.setdefault(
                    forward.numbers[var], (forward.eqn.invars[position], position >= forward.first_slice)
                )
        for eqn in forward.body.eqns:
            for var in eqn.outvars:
                if forward.numbers[var] not in self.free:
                    self.made.setdefault(forward.numbers[var], Made(eqn, forward.numbers, True))
        early = (set(self.made) | set(self.free) | set(self.carried)) - own
        own_stacks = set(map(id, forward.eqn.outvars[forward.carries :]))
        for position, number, operand, sliced, made_at in taken:
            if id(operand) in own_stacks:
                self.stacked.setdefault(number, position)
                early.add(number)
            elif number not in early and made_at < forward.position:
                self.free[number] = operand, sliced
                early.add(number)
        for eqn in backward.body.eqns:
            read = [self.values.read(atom, backward.numbers) for atom in eqn.invars]
            made = [backward.numbers[var] for var in eqn.outvars]
            is_early = all(
                isinstance(atom, jex_core.Literal) or n in early for atom, n in zip(eqn.invars, read, strict=True)
            )
            if is_early and not eqn.effects and own.isdisjoint(made):
                early.update(made)
                for number in made:
                    if number in self.free and self.free[number][0] not in backward.eqn.invars:
                        # What the forward loop is handed, as JAX has taken it out of the loop, the backward loop makes.
                        operand, sliced = self.free.pop(number)
                        if not sliced:
                            self.handed[number] = operand
                        self.made[number] = Made(eqn, backward.numbers, True)
                    elif number not in self.made and number not in self.free and number not in self.carried:
                        self.made[number] = Made(eqn, backward.numbers, False)
                    self.repeated.add(number)
            else:
                self.late.append(eqn)
                self._need(eqn.invars, early)
        self._need(backward.body.outvars, early)
        self.kept = set(self.stacked)

    def _taken(self, defined: Mapping[Any, int], first: Mapping[int, Any]) -> Iterator[_Taken]:
        """What the backward loop takes beside its carry; of equal values the first, where it is made late."""
        loop = self.backward
        for position, (var, number) in enumerate(zip(loop.body.invars, loop.outer, strict=True)):
            if loop.consts <= position < loop.first_slice:
                continue
            operand = loop.eqn.invars[position]
            made_at = -1 if isinstance(operand, jex_core.Literal) else defined.get(operand, -1)
            if made_at > self.forward.position and number in first:
                operand = first[number]
                made_at = defined.get(operand, -1)
            yield _Taken(position, loop.numbers[var], operand, position >= loop.first_slice, made_at)

    def _need(self, atoms: Sequence[Any], early: set[int]) -> None:
        for atom in atoms:
            if not isinstance(atom, jex_core.Literal):
                number = self.backward.numbers[atom]
                if number in early and number not in self.free:
                    self.needed[number] = None


def pairs_in(body: Any, numbers: Numbers, values: ValueNumbers, depth: int) -> Iterator[Pair]:
    """The pairs of loops of a body, in the order of their backward loops; the numbers of what the body makes are added.

    Loops that hold constants are in none.
    """
    loops: dict[Any, Loop] = {}
    defined: dict[Any, int] = {}
    first: dict[int, Any] = {}
    for var, number in numbers.items():
        first.setdefault(number, var)
    for position, eqn in enumerate(body.eqns):
        structure = structure_of(eqn)
        scanned = structure is not None and structure.kind == "scan" and not eqn.effects
        if structure is None or not scanned or holds_constants(body_of(eqn, ("jaxpr", None))):
            values.add(eqn, numbers, depth)
        else:
            loop = _loop(eqn, structure, position, numbers, values, depth + 1)
            numbers.update(zip(eqn.outvars, loop.made, strict=True))
            for var in eqn.outvars:
                loops[var] = loop
            forward = _forward_of(loop, loops)
            if forward is not None:
                pair = Pair(forward=forward, backward=loop, values=values)
                pair.find(defined, first)
                if pair.needed:
                    yield pair
        for var in eqn.outvars:
            defined[var] = position
            first.setdefault(numbers[var], var)


def _loop(eqn: Any, structure: Structure, position: int, numbers: Numbers, values: ValueNumbers, depth: int) -> Loop:
    body = inlined(opened(body_of(eqn, ("jaxpr", None))), remats=True)
    outer = [values.read(atom, numbers) for atom in eqn.invars]
    inner = values.within(eqn, structure, body, outer, depth)
    made = values.leaving(structure, body, inner, depth)
    return Loop(eqn=eqn, structure=structure, position=position, body=body, numbers=inner, outer=outer, made=made)


def _forward_of(loop: Loop, loops: Mapping[Any, Loop]) -> Loop | None:
    """The loop that has stacked the most of what a loop takes slice by slice."""
    read: dict[int, float] = {}
    found: dict[int, Loop] = {}
    for atom in loop.eqn.invars[loop.first_slice :]:
        made = None if isinstance(atom, jex_core.Literal) else loops.get(atom)
        if made is not None and made.length == loop.length and atom in made.eqn.outvars[made.carries :]:
            read[id(made)] = read.get(id(made), 0.0) + aval_of(atom.aval).bytes
            found[id(made)] = made
    return found[max(read, key=lambda key: read[key])] if read else None
