"""Layers written out: a forward and a backward pass in one list of equations, and what crosses between them.

The backward pass is what JAX's transposition has written, and all that follows from it. Between what is saved for good,
the borders of layers, values may be computed again: for a program with `jax.checkpoint` these are what the checkpoints
take, for others the values through which alone a layer goes on to the next, where layers repeat. What is computed again
stands in a `remat` with the first equation that reads it: its barrier keeps the compiler from merging it with what it
repeats, and from computing it before the backward pass has come so far.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.extend.core as jex_core

from planner.program.arguments import aval_of
from planner.program.jaxpr.bodies import closed, fresh_var, structure_of
from planner.program.jaxpr.calls import equations_by
from planner.program.jaxpr.crossings import Between, Made
from planner.program.jaxpr.inlined import REMATS, inlined
from planner.program.jaxpr.value_numbers import Numbers, ValueNumbers

TRANSPOSED = "transpose("
"""What JAX writes into the names of what it has transposed."""
HEAVY = ("dot_general", "conv", "gather", "scatter", "ragged", "fft", "sort", "random", "rng", "custom", "ffi")
"""How the names of primitives begin that make something of the data."""
SMALL = 0.01
"""Values of less than this part of the bytes of the largest are no matter."""
FEWEST_BORDERS = 2
"""Layers that repeat."""


@dataclass(kw_only=True)
class WrittenOut(Between):
    """A body with a forward and a backward pass.

    `steps` are its equations, those of checkpoints opened, each with whether it is of the backward pass; what checkpoints
    compute again is not among them. `names` are the variables of values in the forward pass.
    """

    body: Any
    numbers: Numbers
    steps: list[tuple[Any, bool]] = field(default_factory=list[tuple[Any, bool]])
    names: dict[int, Any] = field(default_factory=dict[int, Any])
    late_vars: set[Any] = field(default_factory=set[Any])

    def find(self) -> None:
        """Finds what crosses."""
        numbers, body = self.numbers, self.body
        for var in (*body.constvars, *body.invars):
            self.free.setdefault(numbers[var], (var, False))
            self.names.setdefault(numbers[var], var)
        borders: set[int] = set()
        for eqn in body.eqns:
            if eqn.primitive.name in REMATS and eqn.params.get("differentiated"):
                self._checkpoint(eqn, borders)
            else:
                self._equation(eqn, transposed=TRANSPOSED in str(eqn.source_info.name_stack))
        for eqn in self.late:
            self._need(eqn.invars)
        self._need(body.outvars)
        self.kept |= set(self.needed) - self.repeated
        self.fixed = borders - set(self.free) or set(self._borders())

    def _equation(self, eqn: Any, *, transposed: bool) -> None:
        """Takes an equation of the body."""
        reads_late = any(not isinstance(atom, jex_core.Literal) and atom in self.late_vars for atom in eqn.invars)
        if transposed or reads_late or eqn.effects:
            self._late(eqn)
            return
        self.steps.append((eqn, False))
        for var in eqn.outvars:
            if not isinstance(var, jex_core.DropVar):
                number = self.numbers[var]
                self.names.setdefault(number, var)
                if number not in self.free:
                    self.made.setdefault(number, Made(eqn, self.numbers, True))

    def _late(self, eqn: Any) -> None:
        self.late.append(eqn)
        self.steps.append((eqn, True))
        self.late_vars.update(eqn.outvars)

    def _checkpoint(self, eqn: Any, borders: set[int]) -> None:
        """Takes what a checkpoint computes: what it takes is a border, what depends on forward values is repeated."""
        for atom in eqn.invars:
            if not isinstance(atom, jex_core.Literal) and atom not in self.late_vars:
                borders.add(self.numbers[atom])
                self.kept.add(self.numbers[atom])
        alone = self.body.replace(eqns=[eqn], outvars=list(eqn.outvars))
        opened = inlined(alone, remats=True)
        self.values.walk(opened.eqns, self.numbers, 0)
        for step in opened.eqns:
            if step.effects or any(not isinstance(a, jex_core.Literal) and a in self.late_vars for a in step.invars):
                self._late(step)
                continue
            for var in step.outvars:
                if not isinstance(var, jex_core.DropVar) and (number := self.numbers[var]) not in self.free:
                    self.made.setdefault(number, Made(step, self.numbers, False))
                    self.repeated.add(number)
        for var, atom in zip(eqn.outvars, opened.outvars, strict=True):
            # What the checkpoint returns is called as it was.
            if not isinstance(var, jex_core.DropVar):
                self.returned[var] = atom
                if atom in self.late_vars:
                    self.late_vars.add(var)

    returned: dict[Any, Any] = field(default_factory=dict[Any, Any])

    def _need(self, atoms: Sequence[Any]) -> None:
        for atom in atoms:
            atom = self.named(atom)
            if not isinstance(atom, jex_core.Literal) and atom not in self.late_vars:
                number = self.numbers[atom]
                if number not in self.free:
                    self.needed[number] = None

    def named(self, atom: Any) -> Any:
        """What a variable is called: those that checkpoints return are called as within."""
        while not isinstance(atom, jex_core.Literal) and atom in self.returned:
            atom = self.returned[atom]
        return atom

    def _borders(self) -> Iterator[int]:
        """The values through which alone one layer goes on to the next, of the kind that repeats most often."""
        last: dict[int, int] = {}
        early = [eqn for eqn, is_late in self.steps if not is_late]
        light = self._light(early)
        for position, eqn in enumerate(early):
            for atom in eqn.invars:
                if not isinstance(atom, jex_core.Literal) and self.numbers[atom] not in light:
                    last[self.numbers[atom]] = position
        alive: set[int] = set()
        found: dict[int, Hashable] = {}
        for position, eqn in enumerate(early):
            alive = {number for number in alive if last[number] > position}
            for var in eqn.outvars:
                number = None if isinstance(var, jex_core.DropVar) else self.numbers[var]
                if number is not None and last.get(number, -1) > position:
                    alive.add(number)
            if len(alive) == 1 and position + 1 < len(early):
                (number,) = alive
                found.setdefault(number, self._kind(number))
        kinds = Counter(found.values())
        if not kinds or max(kinds.values()) < FEWEST_BORDERS:
            return
        most = max(kinds.values())
        kind = [kind for kind in found.values() if kinds[kind] == most][-1]
        yield from (number for number, own in found.items() if own == kind)

    def _kind(self, number: int) -> Hashable:
        """What values of one kind have in common: what makes them, and what makes the operands of that."""
        made = self.made[number].eqn
        aval = aval_of(made.outvars[0].aval)
        before = [self.made[n].eqn.primitive.name for n in self.operands_of(number) if n in self.made]
        return made.primitive.name, aval, tuple(sorted(before))

    def _light(self, early: Sequence[Any]) -> set[int]:
        """Values that go along with the layers: masks, positions, casts of parameters, keys."""
        found, most = set(self.free), max((aval_of(v.aval).bytes for eqn in early for v in eqn.outvars), default=0.0)
        for eqn in early:
            read = [self.numbers[atom] for atom in eqn.invars if not isinstance(atom, jex_core.Literal)]
            light = structure_of(eqn) is None and not eqn.primitive.name.startswith(HEAVY)
            for var in eqn.outvars:
                small = aval_of(var.aval).bytes < SMALL * most
                if not isinstance(var, jex_core.DropVar) and (small or (light and found.issuperset(read))):
                    found.add(self.numbers[var])
        return found


def written_out_in(body: Any, numbers: Numbers, values: ValueNumbers) -> WrittenOut | None:
    """What crosses in a body, whose values are numbered; None where no border of layers is known."""
    found = WrittenOut(values=values, body=body, numbers=numbers)
    found.find()
    return found if found.late and found.needed and len(found.fixed) >= FEWEST_BORDERS else None


def recomputed_within(crossing: WrittenOut, saved: frozenset[int]) -> Any:
    """The body in which just these values are saved, and what else the backward pass needs is computed again."""
    names = {number: crossing.names[number] for number in saved}
    names |= {number: crossing.names[number] for number in crossing.free}
    eqns: list[Any] = []
    for eqn, is_late in crossing.steps:
        if not is_late:
            eqns.append(eqn)
            continue
        own = eqn.replace(invars=[crossing.named(atom) for atom in eqn.invars])
        early = {
            atom: crossing.numbers[atom]
            for atom in own.invars
            if not isinstance(atom, jex_core.Literal) and atom not in crossing.late_vars
        }
        again = _in_order(crossing, [number for number in early.values() if number not in names], names)
        if again:
            eqns += _group(crossing, own, early, again, names)
        else:
            eqns.append(own.replace(invars=[names[early[a]] if _is_var(a) and a in early else a for a in own.invars]))
    outvars = [crossing.named(atom) for atom in crossing.body.outvars]
    outvars = [
        atom
        if isinstance(atom, jex_core.Literal) or atom in crossing.late_vars
        else crossing.names.get(crossing.numbers[atom], atom)
        for atom in outvars
    ]
    return crossing.body.replace(eqns=eqns, outvars=outvars)


def _is_var(atom: Any) -> bool:
    return not isinstance(atom, jex_core.Literal)


def _in_order(crossing: WrittenOut, wanted: Sequence[int], there: dict[int, Any]) -> list[int]:
    """What is to be computed again for these values, operands first."""
    found: dict[int, None] = {}
    waiting = list(wanted)
    while waiting:
        number = waiting[-1]
        left = [n for n in crossing.operands_of(number) if n not in found and n not in there]
        if number in found or not left:
            found[waiting.pop()] = None
        else:
            waiting += left
    return list(found)


def _group(
    crossing: WrittenOut, eqn: Any, early: dict[Any, int], again: Sequence[int], names: dict[int, Any]
) -> list[Any]:
    """A `remat` of what is computed again and of the equation that reads it first; `names` learns of what it makes."""
    inside: dict[int, Any] = {}
    taken: dict[Any, Any] = {}
    steps: list[Any] = []

    def have(number: int) -> Any:
        if number not in inside:
            outside = names[number]
            inside[number] = taken.setdefault(outside, fresh_var(outside))
        return inside[number]

    for number in again:
        if number in inside:
            continue
        made = crossing.made[number]
        operands = [atom if not _is_var(atom) else have(made.numbers[atom]) for atom in made.eqn.invars]
        outvars = [var if isinstance(var, jex_core.DropVar) else fresh_var(var) for var in made.eqn.outvars]
        for old, new in zip(made.eqn.outvars, outvars, strict=True):
            if not isinstance(old, jex_core.DropVar):
                inside.setdefault(made.numbers[old], new)
        steps.append(made.eqn.replace(invars=operands, outvars=outvars))
    repeated = [number for number in inside if number not in names]
    operands = []
    for atom in eqn.invars:
        if not _is_var(atom):
            operands.append(atom)
        elif atom in early:
            operands.append(have(early[atom]))
        else:
            operands.append(taken.setdefault(atom, fresh_var(atom)))
    kept = [var for var in eqn.outvars if not isinstance(var, jex_core.DropVar)]
    renewed = {var: fresh_var(var) for var in kept}
    steps.append(eqn.replace(invars=operands, outvars=[renewed.get(var, var) for var in eqn.outvars]))
    left = [fresh_var(inside[number]) for number in repeated]
    names.update(zip(repeated, left, strict=True))
    body = crossing.body.replace(
        constvars=(),
        invars=list(taken.values()),
        eqns=steps,
        outvars=[*renewed.values(), *(inside[number] for number in repeated)],
    )
    run = jex_core.jaxpr_as_fun(closed(body))
    made, _ = equations_by(jax.checkpoint(lambda *xs: run(*xs)), list(taken), [*kept, *left], eqn.source_info)
    return [step.replace(params={**step.params, "differentiated": True}) if _is_remat(step) else step for step in made]


def _is_remat(eqn: Any) -> bool:
    return eqn.primitive.name in REMATS
