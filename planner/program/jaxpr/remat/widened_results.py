"""Equations of a forward pass that return all that the same equation returns where the backward pass computes it again.

JAX takes out of the forward pass what it does not read there: of a loop, a branch or a `shard_map` the results that only
the backward pass reads. So the two differ, and what the backward pass reads beside could not be saved without computing all
of it again. The forward pass can as well run the equation of the backward pass in the place of its own; results that are
not saved are taken out again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import jax.extend.core as jex_core

from planner.program.jaxpr.bodies import body_of, counted_body, opened, structure_of
from planner.program.jaxpr.remat.value_numbering import Numbers
from planner.program.jaxpr.variables import fresh_var

HEAVY = ("dot_general", "conv_general", "gather", "scatter", "ragged", "fft", "sort", "random", "rng", "custom", "ffi")
"""How the names of primitives begin that make something of the data."""


def is_light(eqn: Any) -> bool:
    """Whether an equation makes little of the data, and runs once."""
    structure = structure_of(eqn)
    if structure is not None and structure.kind == "inline":
        return all(map(is_light, opened(body_of(eqn, structure.bodies[0])).eqns))
    leaf = structure is None and counted_body(eqn) is None
    return leaf and not eqn.effects and not eqn.primitive.name.startswith(HEAVY)


def widened(
    eqns: Sequence[Any],
    numbers: Numbers,
    again: Iterable[Any],
    numbers_again: Numbers,
    given: Iterable[Any],
    outside: Mapping[int, Any] = MappingProxyType({}),
) -> list[list[Any]]:
    """For each equation of a forward pass those that take its place, as `again`, a backward pass, has them.

    `given` are the variables that the forward pass begins with, `outside` by number those that it may take beside;
    `numbers` learns of what is made and taken.
    """
    wider: dict[int, Any] = {}
    makers: dict[int, Any] = {}
    for eqn in again:
        makers |= {numbers_again[var]: eqn for var in eqn.outvars}
        if len(eqn.outvars) > 1 and (structure_of(eqn) is not None or counted_body(eqn) is not None):
            wider |= {numbers_again[var]: eqn for var in eqn.outvars}
    if not wider:
        return [[eqn] for eqn in eqns]
    widening = _Widening(makers=makers, numbers=numbers, numbers_again=numbers_again, outside=outside)
    for var in given:
        widening.names.setdefault(numbers[var], var)
    made = {numbers[var] for eqn in eqns for var in eqn.outvars}
    return [list(widening.of(eqn, wider, made)) for eqn in eqns]


@dataclass(kw_only=True)
class _Widening:
    """A forward pass in the making: `names` are its variables by number, `makers` the equations of the backward pass."""

    makers: dict[int, Any]
    numbers: Numbers
    numbers_again: Numbers
    outside: Mapping[int, Any]
    names: dict[int, Any] = field(default_factory=dict[int, Any])

    def of(self, eqn: Any, wider: dict[int, Any], made: set[int]) -> Iterator[Any]:
        """What takes the place of an equation."""
        own: dict[int, list[Any]] = {}
        for var in eqn.outvars:
            own.setdefault(self.numbers[var], []).append(var)
        found = wider.get(next(iter(own), 0))
        if found is not None and found.primitive is eqn.primitive and not found.effects:
            results = [self.numbers_again[var] for var in found.outvars]
            before = self._missing(found)
            returns_all = all(len(of) <= results.count(number) for number, of in own.items())
            if returns_all and not made.issuperset(results) and before is not None:
                for step in before:
                    yield self._made(step, {})
                eqn = self._made(found, own).replace(source_info=eqn.source_info)
        for var in eqn.outvars:
            self.names.setdefault(self.numbers[var], var)
        yield eqn

    def _missing(self, eqn: Any) -> list[Any] | None:
        """Light equations that make what an equation reads and is not there, in order; None where one is not light."""
        found: dict[int, Any] = {}
        waiting = [(eqn, False)]
        while waiting:
            step, ready = waiting.pop()
            if ready:
                found[id(step)] = step
                continue
            if step is not eqn:
                waiting.append((step, True))
            for number in self._read(step):
                maker = self.makers.get(number)
                if number in self.names or number in self.outside or (maker is not None and id(maker) in found):
                    continue
                if maker is None or not is_light(maker):
                    return None
                waiting.append((maker, False))
        return list(found.values())

    def _read(self, eqn: Any) -> list[int]:
        return [self.numbers_again[atom] for atom in eqn.invars if not isinstance(atom, jex_core.Literal)]

    def _made(self, eqn: Any, own: dict[int, list[Any]]) -> Any:
        """An equation of the backward pass in the forward pass; its results have their `own` variables, or new ones."""
        operands = [
            atom if isinstance(atom, jex_core.Literal) else self._there(self.numbers_again[atom]) for atom in eqn.invars
        ]
        results: list[Any] = []
        for var in eqn.outvars:
            number = self.numbers_again[var]
            results.append(own[number].pop() if own.get(number) else fresh_var(var))
            self.numbers[results[-1]] = number
            self.names.setdefault(number, results[-1])
        return eqn.replace(invars=operands, outvars=results)

    def _there(self, number: int) -> Any:
        """The variable of a value that is there, or can be taken from outside."""
        if number not in self.names:
            self.names[number] = self.outside[number]
            self.numbers[self.outside[number]] = number
        return self.names[number]
