"""Layers written out: a forward and a backward pass in one list of equations, and what crosses between them.

The backward pass is what JAX's transposition has written, and all that follows from it. Between what is saved for good,
the borders of layers, values may be computed again: for a program with `jax.checkpoint` these are what the checkpoints
take, for others the values through which alone a layer goes on to the next, where layers repeat. Factors of derivatives JAX
computes again in checkpoints, and beside the forward pass without them: these are known by that only the backward pass
reads them, and are computed where it does, or saved, like any other value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import jax.extend.core as jex_core

from planner.program.jaxpr.bodies import REMATS
from planner.program.jaxpr.canonicalize.inlined import inlined
from planner.program.jaxpr.remat.loop_pairs import Pair
from planner.program.jaxpr.remat.residuals import Between, Made
from planner.program.jaxpr.remat.value_numbering import Numbers, ValueNumbers
from planner.program.jaxpr.remat.widened_results import is_light, widened
from planner.program.tracing.arguments import aval_of

TRANSPOSED, REMATTED = "transpose(", "rematted_computation"
"""What JAX writes into the names of what it has transposed, and of what its checkpoints compute again there."""
SMALL = 0.01
"""Values of less than this part of the bytes of most are no matter."""
FEWEST_BORDERS = 2
"""Layers that repeat."""


@dataclass(kw_only=True)
class WrittenOut(Between):
    """A body with a forward and a backward pass.

    `steps` are its equations, those of checkpoints opened, each with whether it is of the backward pass; what checkpoints
    compute again is not among them. `names` are the variables of values in the forward pass, `returned` what those that
    checkpoints return are called within.
    """

    body: Any
    numbers: Numbers
    steps: list[tuple[Any, bool]] = field(default_factory=list[tuple[Any, bool]])
    recomputed: list[Any] = field(default_factory=list[Any])
    """What the checkpoints compute of forward values alone."""
    names: dict[int, Any] = field(default_factory=dict[int, Any])
    late_vars: set[Any] = field(default_factory=set[Any])
    returned: dict[Any, Any] = field(default_factory=dict[Any, Any])

    def find(self) -> None:
        """Finds what crosses."""
        numbers, body = self.numbers, self.body
        for var in (*body.constvars, *body.invars):
            self.free.setdefault(numbers[var], (var, False))
            self.names.setdefault(numbers[var], var)
        taken: list[set[int]] = []
        for eqn in body.eqns:
            if is_checkpoint(eqn):
                taken.append(self._checkpoint(eqn))
            else:
                names = str(eqn.source_info.name_stack)
                self._equation(eqn, transposed=TRANSPOSED in names and REMATTED not in names)
        self._widen()
        steps = self.steps
        self._sink()
        self.fixed = set(self._begun_with([own - set(self.free) for own in taken])) or set(self._borders())
        for number, var in list(self._at_the_turn()):
            self.free[number] = var, False
            self.made.pop(number, None)
        self._rise(steps)
        for eqn in self.late:
            self._need(eqn.invars)
        self._need(body.outvars)
        self.kept |= set(self.needed) - self.repeated

    def _equation(self, eqn: Any, *, transposed: bool) -> None:
        """Takes an equation of the body."""
        reads_late = any(not isinstance(atom, jex_core.Literal) and atom in self.late_vars for atom in eqn.invars)
        constant = not any(map(is_var, eqn.invars))
        if (transposed and not constant) or reads_late or eqn.effects:
            self._late(eqn)
            return
        self.steps.append((eqn, False))
        for var in eqn.outvars:
            if not isinstance(var, jex_core.DropVar):
                number = self.numbers[var]
                self.names.setdefault(number, var)
                if number not in self.free:
                    self.made.setdefault(number, Made(eqn, self.numbers, True))

    def _widen(self) -> None:
        """Takes the equations of checkpoints in the place of equal ones of the forward pass that return less."""
        early = [eqn for eqn, is_late in self.steps if not is_late]
        given = (*self.body.constvars, *self.body.invars)
        taking = dict(
            zip(map(id, early), widened(early, self.numbers, self.recomputed, self.numbers, given), strict=True)
        )
        steps: list[tuple[Any, bool]] = []
        for eqn, is_late in self.steps:
            instead = [eqn] if is_late else taking[id(eqn)]
            steps += [(one, is_late) for one in instead]
            for one in (one for one in instead if one is not eqn):
                for number, var in ((self.numbers[var], var) for var in one.outvars):
                    self.names.setdefault(number, var)
                    if number not in self.free:
                        self.made[number] = Made(one, self.numbers, True)
        self.steps = steps

    def _sink(self) -> None:
        """Takes out of the forward pass what makes little of its data and only the backward pass reads."""
        data = self._data([eqn for eqn, is_late in self.steps if not is_late])
        read = {self.numbers[atom] for atom in map(self.named, self.body.outvars) if is_var(atom)}
        steps: list[tuple[Any, bool]] = []
        for eqn, is_late in reversed(self.steps):
            made = self._made_by(eqn)
            if is_late or not is_light(eqn) or data.isdisjoint(made) or not read.isdisjoint(made):
                read.update(() if is_late else self._read(eqn))
                steps.append((eqn, is_late))
                continue
            for number in made:
                self.names.pop(number, None)
                if number in self.made:
                    self.made[number] = self.made[number]._replace(forward=False)
        self.steps = steps[::-1]

    def _rise(self, steps: Sequence[tuple[Any, bool]]) -> None:
        """Puts back what is made of what is there when the backward pass begins: that is no value of layers."""
        kept = {id(eqn) for eqn, _ in self.steps}
        for eqn, _ in steps:
            if id(eqn) not in kept and self.free.keys() >= set(self._read(eqn)):
                kept.add(id(eqn))
                for var in eqn.outvars:
                    if not is_dropped(var) and self.numbers[var] not in self.free:
                        self.free[self.numbers[var]] = var, False
                        self.names[self.numbers[var]] = var
                        self.made.pop(self.numbers[var], None)
        self.steps = [step for step in steps if id(step[0]) in kept]

    def _late(self, eqn: Any) -> None:
        self.late.append(eqn)
        self.steps.append((eqn, True))
        self.late_vars.update(eqn.outvars)

    def _checkpoint(self, eqn: Any) -> set[int]:
        """Takes what a checkpoint computes, of which that is repeated which depends on forward values; what it takes."""
        taken = {self.numbers[atom] for atom in eqn.invars if is_var(atom) and atom not in self.late_vars}
        self.kept |= taken
        alone = self.body.replace(eqns=[eqn], outvars=list(eqn.outvars))
        opened = inlined(alone, remats=True)
        self.values.walk(opened.eqns, self.numbers, 0)
        for step in opened.eqns:
            if step.effects or any(not isinstance(a, jex_core.Literal) and a in self.late_vars for a in step.invars):
                self._late(step)
                continue
            self.recomputed.append(step)
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
        return taken

    def _begun_with(self, taken: Sequence[set[int]]) -> Iterator[int]:
        """What checkpoints begin with, of all that each takes: not what a policy saves, which is computed of that.

        What several checkpoints take, such as a mask, is of no layer.
        """
        times = Counter(number for own in taken for number in own)
        bit = {number: 1 << at for at, number in enumerate(times)}
        # By number the bits of what is taken that it is computed of without anything taken between.
        read: dict[int, int] = {}
        for number in self.in_order(times):
            of = 0
            for operand in self.operands_of(number):
                of |= bit.get(operand) or read[operand]
            read[number] = of
        for own in taken:
            alone = {number for number in own if times[number] == 1}
            yield from own - alone
            every = sum(map(bit.__getitem__, alone))
            yield from (number for number in alone if not read[number] & (every - bit[number]))

    def _need(self, atoms: Sequence[Any]) -> None:
        for atom in atoms:
            atom = self.named(atom)
            if not isinstance(atom, jex_core.Literal) and atom not in self.late_vars:
                number = self.numbers[atom]
                if number not in self.free:
                    self.needed[number] = None

    def number_of(self, atom: Any) -> int | None:
        """The number of what an equation of the backward pass reads, where it has one."""
        return self.numbers.get(self.named(atom))

    def is_within(self, loops: Pair) -> bool:
        """Whether a pair of loops is of a layer: layers begin before its forward loop and behind it."""
        position = {id(eqn): at for at, eqn in enumerate(self.body.eqns)}
        makers = (id(self.made[number].eqn) for number in self.fixed if number in self.made)
        borders = [position[made] for made in makers if made in position]
        return bool(borders) and min(borders) < loops.forward.position < max(borders)

    def named(self, atom: Any) -> Any:
        """What a variable is called: those that checkpoints return are called as within."""
        while not isinstance(atom, jex_core.Literal) and atom in self.returned:
            atom = self.returned[atom]
        return atom

    def _at_the_turn(self) -> Iterator[tuple[int, Any]]:
        """What the forward pass makes behind the last layer, as a loss: the backward pass begins with it, so it is there.

        But for what layers are computed again of.
        """
        layers = self.repeated | self.fixed
        read = set(self.in_order(layers))
        early = [eqn for eqn, is_late in self.steps if not is_late]
        made = [[(self.numbers[v], v) for v in eqn.outvars if not isinstance(v, jex_core.DropVar)] for eqn in early]
        last = max((at for at, own in enumerate(made) if any(n in layers for n, _ in own)), default=len(made))
        for own in made[last + 1 :]:
            yield from ((number, var) for number, var in own if number not in read)

    def _borders(self) -> Iterator[int]:
        """The values through which alone one layer goes on to the next, of the kind that repeats most often."""
        last: dict[int, int] = {}
        early = [eqn for eqn, is_late in self.steps if not is_late]
        light = self._light(early)
        for position, eqn in enumerate(early):
            for atom in eqn.invars:
                if not isinstance(atom, jex_core.Literal) and self.numbers[atom] not in light:
                    last[self.numbers[atom]] = position
        read_last: dict[int, list[int]] = {}
        for number, position in last.items():
            read_last.setdefault(position, []).append(number)
        alive: set[int] = set()
        found: dict[int, Hashable] = {}
        for position, eqn in enumerate(early):
            alive.difference_update(read_last.get(position, ()))
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
        repeated = [(number, kind) for number, kind in reversed(found.items()) if kinds[kind] == most]
        # They are saved for good: the smallest of them.
        kind = min(repeated, key=lambda of: aval_of(self.names[of[0]].aval).bytes)[1]
        yield from (number for number, own in found.items() if own == kind)

    def _kind(self, number: int) -> Hashable:
        """What values of one kind have in common: what makes them, and what makes the operands of that."""
        made = self.made[number].eqn
        aval = aval_of(made.outvars[0].aval)
        before = [self.made[n].eqn.primitive.name for n in self.operands_of(number) if n in self.made]
        return made.primitive.name, aval, tuple(sorted(before))

    def _light(self, early: Sequence[Any]) -> set[int]:
        """Values that go along with the layers: masks, positions, casts of parameters, keys; and those that are small."""
        data = self._data(early)
        made = [(self.numbers[v], aval_of(v.aval).bytes) for eqn in early for v in eqn.outvars if not is_dropped(v)]
        usual = median([size for number, size in made if number in data] or [0.0])
        along = set(self.free) | {number for number, size in made if number not in data or size < SMALL * usual}
        for eqn in early:
            if is_light(eqn) and along.issuperset(self._read(eqn)):
                along.update(self._made_by(eqn))
        return along

    def _data(self, early: Sequence[Any]) -> set[int]:
        """The numbers of what is made of the data, not just of what the body takes by operations that make little of it."""
        found: set[int] = set()
        for eqn in early:
            if not is_light(eqn) or not found.isdisjoint(self._read(eqn)):
                found.update(self._made_by(eqn))
        return found

    def _read(self, eqn: Any) -> list[int]:
        return [self.numbers[atom] for atom in eqn.invars if is_var(atom)]

    def _made_by(self, eqn: Any) -> list[int]:
        return [self.numbers[var] for var in eqn.outvars if not is_dropped(var)]


def is_checkpoint(eqn: Any) -> bool:
    """Whether an equation computes again what a checkpoint has not saved, and differentiates it."""
    return eqn.primitive.name in REMATS and bool(eqn.params.get("differentiated"))


def written_out_in(
    body: Any, numbers: Numbers, values: ValueNumbers, *, fewest: int = FEWEST_BORDERS
) -> WrittenOut | None:
    """What crosses in a body, whose values are numbered; None where fewer borders of layers are known."""
    found = WrittenOut(values=values, body=body, numbers=numbers)
    found.find()
    return found if found.late and found.needed and len(found.fixed) >= fewest else None


def is_var(atom: Any) -> bool:
    return not isinstance(atom, jex_core.Literal)


def is_dropped(var: Any) -> bool:
    return isinstance(var, jex_core.DropVar)
