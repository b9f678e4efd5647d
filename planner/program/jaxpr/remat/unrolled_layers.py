"""Layers written out: a forward and a backward pass in one list of equations, and what crosses between them.

The backward pass is what JAX's transposition has written, and all that follows from it. Between what is saved for good,
the borders of layers, values may be computed again: for a program with `jax.checkpoint` these are what the checkpoints
take, for others the values through which alone a layer goes on to the next, where layers repeat. What is computed again
reads the forward pass through a barrier, together with what the first equation that reads it has of the backward pass: so
the compiler neither merges it with what it repeats, nor computes it before the backward pass has come so far. What a
checkpoint computes and the forward pass does not, such as factors of derivatives, needs no barrier where what it reads is
saved.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.extend.core as jex_core
from jax import lax

from planner.program.jaxpr.bodies import REMATS, counted_body, structure_of
from planner.program.jaxpr.calls import equations_by
from planner.program.jaxpr.canonicalize.inlined import inlined
from planner.program.jaxpr.remat.loop_pairs import Pair
from planner.program.jaxpr.remat.residuals import Between, Made
from planner.program.jaxpr.remat.value_numbering import Numbers, ValueNumbers
from planner.program.jaxpr.remat.widened_results import HEAVY, widened
from planner.program.jaxpr.variables import fresh_var
from planner.program.tracing.arguments import aval_of

TRANSPOSED = "transpose("
"""What JAX writes into the names of what it has transposed."""
SMALL = 0.01
"""Values of less than this part of the bytes of the largest are no matter."""
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
            if eqn.primitive.name in REMATS and eqn.params.get("differentiated"):
                taken.append(self._checkpoint(eqn))
            else:
                self._equation(eqn, transposed=TRANSPOSED in str(eqn.source_info.name_stack))
        self._widen()
        self.fixed = set(self._begun_with([own - set(self.free) for own in taken])) or set(self._borders())
        for number, var in list(self._at_the_turn()):
            self.free[number] = var, False
            self.made.pop(number, None)
        for eqn in self.late:
            self._need(eqn.invars)
        self._need(body.outvars)
        self.kept |= set(self.needed) - self.repeated

    def _equation(self, eqn: Any, *, transposed: bool) -> None:
        """Takes an equation of the body."""
        reads_late = any(not isinstance(atom, jex_core.Literal) and atom in self.late_vars for atom in eqn.invars)
        constant = not any(map(_is_var, eqn.invars))
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

    def _late(self, eqn: Any) -> None:
        self.late.append(eqn)
        self.steps.append((eqn, True))
        self.late_vars.update(eqn.outvars)

    def _checkpoint(self, eqn: Any) -> set[int]:
        """Takes what a checkpoint computes, of which that is repeated which depends on forward values; what it takes."""
        taken = {self.numbers[atom] for atom in eqn.invars if _is_var(atom) and atom not in self.late_vars}
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
        there = set(times)
        for own in taken:
            alone = {number for number in own if times[number] == 1}
            for number in own:
                there.remove(number)
                read = {n for made in self.in_order([number], there) for n in self.operands_of(made)}
                there.add(number)
                if number not in alone or alone.isdisjoint(read - {number}):
                    yield number

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
            leaf = structure_of(eqn) is None and counted_body(eqn) is None
            light = leaf and not eqn.primitive.name.startswith(HEAVY)
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
    again = _Again(crossing, saved)
    moved = _moved(crossing, saved)
    for position, (eqn, is_late) in enumerate(crossing.steps):
        if is_late:
            again.late(eqn)
        else:
            again.eqns.append(eqn)
        for number in moved.get(position, ()):
            again.move(number)
    outvars = [again.returned(atom) for atom in crossing.body.outvars]
    return crossing.body.replace(eqns=again.eqns, outvars=outvars)


def _moved(crossing: WrittenOut, saved: frozenset[int]) -> dict[int, list[int]]:
    """By position of a step the saved values that only checkpoints compute as written, and the forward pass behind it."""
    order = crossing.in_order([number for number in saved if number not in crossing.names], crossing.names)
    if not order:
        return {}
    made: dict[int, int] = {}
    for position, (eqn, is_late) in enumerate(crossing.steps):
        if not is_late:
            made |= {crossing.numbers[var]: position for var in eqn.outvars}
    found: dict[int, list[int]] = {}
    for number in order:
        made[number] = max((made.get(operand, 0) for operand in crossing.operands_of(number)), default=0)
        found.setdefault(made[number], []).append(number)
    return found


@dataclass
class _Again:
    """A body in the making: `names` are the variables of what the backward pass has, `barred` those behind a barrier.

    `moved` are the variables of what the forward pass computes that only checkpoints do as the program is written.
    """

    crossing: WrittenOut
    saved: frozenset[int]
    names: dict[int, Any] = field(default_factory=dict[int, Any])
    barred: dict[int, Any] = field(default_factory=dict[int, Any])
    moved: dict[int, Any] = field(default_factory=dict[int, Any])
    eqns: list[Any] = field(default_factory=list[Any])

    def __post_init__(self) -> None:
        made = self.crossing.names
        self.names = {number: made[number] for number in (*self.saved, *self.crossing.free) if number in made}

    def move(self, number: int) -> None:
        """Computes a value in the forward pass that only checkpoints compute as the program is written."""
        made, names = self.crossing.made[number], ChainMap(self.moved, self.crossing.names)
        operands = [names[made.numbers[atom]] if _is_var(atom) else atom for atom in made.eqn.invars]
        outvars = list(map(fresh_var, made.eqn.outvars))
        self.eqns.append(made.eqn.replace(invars=operands, outvars=outvars))
        self.moved |= zip((made.numbers[var] for var in made.eqn.outvars), outvars, strict=True)
        if number in self.saved:
            self.names[number] = self.moved[number]

    def returned(self, atom: Any) -> Any:
        """The variable of a result: that of the forward pass where it is there."""
        atom = self.crossing.named(atom)
        if not _is_var(atom) or atom in self.crossing.late_vars:
            return atom
        return self.crossing.names.get(self.crossing.numbers[atom], atom)

    def late(self, eqn: Any) -> None:
        """Takes an equation of the backward pass, and before it what it is the first to read of what is computed again."""
        crossing = self.crossing
        operands = [crossing.named(atom) for atom in eqn.invars]
        early = [_is_var(atom) and atom not in crossing.late_vars for atom in operands]
        read = [crossing.numbers[atom] for atom, is_early in zip(operands, early, strict=True) if is_early]
        missing = crossing.in_order([n for n in reversed(read) if n not in self.names], self.names)
        if missing:
            order = next((i for i, atom in enumerate(operands) if _is_var(atom) and not early[i]), None)
            barred = self._bar(missing, None if order is None else operands[order], eqn.source_info)
            if order is not None and barred is not None:
                operands[order] = barred
        for number in missing:
            if number not in self.names:
                self._compute(number)
        for i, is_early in enumerate(early):
            if is_early:
                operands[i] = self.names[crossing.numbers[operands[i]]]
        self.eqns.append(eqn.replace(invars=operands))

    def _bar(self, missing: Sequence[int], late: Any, source: Any) -> Any:
        """Bars what is read of the forward pass to compute values again until `late` is there; its new variable."""
        raw: dict[int, None] = {}
        for made in map(self.crossing.made.__getitem__, missing):
            # What only the backward pass computes repeats nothing that it could be merged with.
            if not made.forward:
                continue
            raw |= dict.fromkeys(made.numbers[atom] for atom in made.eqn.invars if _is_var(atom))
        wanted = [n for n in raw if n in self.names and n not in self.barred]
        if not wanted:
            return None
        operands = [*(self.names[n] for n in wanted), *(() if late is None else (late,))]
        results = [fresh_var(operand) for operand in operands]
        self.eqns += equations_by(lambda *xs: lax.optimization_barrier(xs), operands, results, source)[0]
        self.barred.update(zip(wanted, results, strict=False))
        return None if late is None else results[-1]

    def _compute(self, number: int) -> None:
        """Computes a value again."""
        made = self.crossing.made[number]
        operands = [self._again_of(made.numbers[atom]) if _is_var(atom) else atom for atom in made.eqn.invars]
        outvars = [var if isinstance(var, jex_core.DropVar) else fresh_var(var) for var in made.eqn.outvars]
        for old, new in zip(made.eqn.outvars, outvars, strict=True):
            if not isinstance(old, jex_core.DropVar) and made.numbers[old] not in self.names:
                self.names[made.numbers[old]] = self.barred[made.numbers[old]] = new
        self.eqns.append(made.eqn.replace(invars=operands, outvars=outvars))

    def _again_of(self, number: int) -> Any:
        return self.barred.get(number) or self.names[number]


def _is_var(atom: Any) -> bool:
    return not isinstance(atom, jex_core.Literal)
