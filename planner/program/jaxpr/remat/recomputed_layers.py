"""Layers written out in which just some values are saved, and what else the backward pass needs is computed again.

What is computed again reads the forward pass through a barrier, together with what the first equation that reads it has of
the backward pass: so the compiler neither merges it with what it repeats, nor computes it before the backward pass has come
so far. What a checkpoint computes and the forward pass does not, such as factors of derivatives, needs no barrier where
what it reads is saved.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.extend.core as jex_core
from jax import lax

from planner.program.jaxpr.calls import equations_by
from planner.program.jaxpr.remat.unrolled_layers import WrittenOut, is_var
from planner.program.jaxpr.variables import fresh_var


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
        # Operands that both passes have anyway count too: the forward pass may make them behind all others.
        by = crossing.made[number]
        made[number] = max((made.get(by.numbers[atom], 0) for atom in by.eqn.invars if is_var(atom)), default=0)
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
        operands = [names[made.numbers[atom]] if is_var(atom) else atom for atom in made.eqn.invars]
        outvars = list(map(fresh_var, made.eqn.outvars))
        self.eqns.append(made.eqn.replace(invars=operands, outvars=outvars))
        self.moved |= zip((made.numbers[var] for var in made.eqn.outvars), outvars, strict=True)
        if number in self.saved:
            self.names[number] = self.moved[number]

    def returned(self, atom: Any) -> Any:
        """The variable of a result: that of the forward pass where it is there."""
        atom = self.crossing.named(atom)
        if not is_var(atom) or atom in self.crossing.late_vars:
            return atom
        return self.crossing.names.get(self.crossing.numbers[atom], atom)

    def late(self, eqn: Any) -> None:
        """Takes an equation of the backward pass, and before it what it is the first to read of what is computed again."""
        crossing = self.crossing
        operands = [crossing.named(atom) for atom in eqn.invars]
        early = [is_var(atom) and atom not in crossing.late_vars for atom in operands]
        read = [crossing.numbers[atom] for atom, is_early in zip(operands, early, strict=True) if is_early]
        missing = crossing.in_order([n for n in reversed(read) if n not in self.names], self.names)
        if missing:
            order = next((i for i, atom in enumerate(operands) if is_var(atom) and not early[i]), None)
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
            raw |= dict.fromkeys(made.numbers[atom] for atom in made.eqn.invars if is_var(atom))
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
        operands = [self._again_of(made.numbers[atom]) if is_var(atom) else atom for atom in made.eqn.invars]
        outvars = [var if isinstance(var, jex_core.DropVar) else fresh_var(var) for var in made.eqn.outvars]
        for old, new in zip(made.eqn.outvars, outvars, strict=True):
            if not isinstance(old, jex_core.DropVar) and made.numbers[old] not in self.names:
                self.names[made.numbers[old]] = self.barred[made.numbers[old]] = new
        self.eqns.append(made.eqn.replace(invars=operands, outvars=outvars))

    def _again_of(self, number: int) -> Any:
        return self.barred.get(number) or self.names[number]
