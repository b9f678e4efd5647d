"""Pairs of loops: a forward loop, the backward loop that reads what it has stacked, and what crosses between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.extend.core as jex_core

from planner.program.jaxpr.bodies import Structure, body_of, holds_constants, opened, structure_of
from planner.program.jaxpr.canonicalize.inlined import inlined
from planner.program.jaxpr.remat.residuals import Between, Made
from planner.program.jaxpr.remat.value_numbering import Numbers, ValueNumbers
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


@dataclass(kw_only=True)
class Pair(Between):
    """A forward and a backward loop of one body, and what crosses between them."""

    forward: Loop
    backward: Loop
    stacked: dict[int, int] = field(default_factory=dict[int, int])
    """By number the position of the stack that the backward loop reads it from, as the program is written."""

    @property
    def length(self) -> int:
        """The number of passes."""
        return self.forward.length

    @property
    def moves(self) -> bool:
        """What the backward loop computes of values of the forward loop, that can compute as well."""
        return True

    def find(self, defined: Mapping[int, int]) -> None:
        """Finds what crosses; `defined` says by number where the body around has made it, arguments at -1."""
        forward, backward = self.forward, self.backward
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
        early = set(self.made) | set(self.free) | set(self.carried)
        own_stacks = set(map(id, forward.eqn.outvars))
        for position, (var, number) in enumerate(zip(backward.body.invars, backward.outer, strict=True)):
            mine = backward.numbers[var]
            if backward.consts <= position < backward.first_slice:
                continue
            operand = backward.eqn.invars[position]
            if id(operand) in own_stacks:
                self.stacked.setdefault(mine, position)
            elif mine not in early and defined.get(number, -1) < forward.position:
                self.free[mine] = operand, position >= backward.first_slice
            early |= {mine} if mine in self.free or id(operand) in own_stacks else set[int]()
        for eqn in backward.body.eqns:
            read = [self.values.read(atom, backward.numbers) for atom in eqn.invars]
            made = [backward.numbers[var] for var in eqn.outvars]
            is_early = all(
                isinstance(atom, jex_core.Literal) or n in early for atom, n in zip(eqn.invars, read, strict=True)
            )
            if is_early and not eqn.effects:
                early.update(made)
                for number in made:
                    if number in self.free and self.free[number][0] not in backward.eqn.invars:
                        # What the forward loop is handed, as JAX has taken it out of the loop, the backward loop makes.
                        del self.free[number]
                        self.made[number] = Made(eqn, backward.numbers, True)
                    elif number not in self.made and number not in self.free and number not in self.carried:
                        self.made[number] = Made(eqn, backward.numbers, False)
                    self.repeated.add(number)
            else:
                self.late.append(eqn)
                self._need(eqn.invars, early)
        self._need(backward.body.outvars, early)
        self.kept = set(self.stacked)

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
    defined = dict.fromkeys(numbers.values(), -1)
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
                pair.find(defined)
                if pair.needed:
                    yield pair
        for var in eqn.outvars:
            defined.setdefault(numbers[var], position)


def _loop(eqn: Any, structure: Structure, position: int, numbers: Numbers, values: ValueNumbers, depth: int) -> Loop:
    body = inlined(opened(body_of(eqn, ("jaxpr", None))), remats=True)
    outer = [values.read(atom, numbers) for atom in eqn.invars]
    inner = values.entering(structure, body, outer, depth)
    values.walk(body.eqns, inner, depth)
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
