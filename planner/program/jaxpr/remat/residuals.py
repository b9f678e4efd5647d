"""Crossings: what a backward loop needs of a forward loop, value by value, and how each of them can be had.

A forward loop stacks what its backward loop reads (a residual); what stands in a `jax.checkpoint` the backward loop
computes again instead. Either way it is the same values that cross from one loop to the other. They are found by value
numbers, not by how the program was written: a value of the forward loop, and everything in the backward loop that depends
on such values alone, can be saved, which stacks it, or computed again of others that are there.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import jax.extend.core as jex_core

from planner.program.graph import Aval
from planner.program.jaxpr.bodies import body_of, counted_body, opened, structure_of
from planner.program.jaxpr.origins import origin_of
from planner.program.jaxpr.remat.value_numbering import Numbers, ValueNumbers
from planner.program.tracing.arguments import aval_of


class Step(NamedTuple):
    """An equation that makes a value, as costs are asked of it; those of nested loops are listed one by one."""

    kind: str
    operands: tuple[Aval, ...]
    results: tuple[Aval, ...]
    params: Mapping[str, Any]
    runs: float
    eqn: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A value that a backward loop reads of its forward loop, or that such a value is computed of.

    `aval` is that of one pass; `operands` are the values that it is computed of, as positions in the crossing, but for what
    is there anyway; `steps` compute it, together with the other values of the crossing that have its `run`. `needed`: the
    backward pass reads it as such. `forward`: the forward loop makes it. `repeatable`: it may be computed again. `saved`,
    `repeated`: how the program is written. `once`: it is the same in every pass, so that it is saved once for all of them.
    """

    name: str
    aval: Aval
    operands: tuple[int, ...]
    steps: tuple[Step, ...]
    needed: bool
    forward: bool
    repeatable: bool
    saved: bool
    repeated: bool
    once: bool
    run: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """The values that cross from a forward to a backward pass, in an order in which they can be computed.

    The passes run `length` times. What only the backward pass computes of them, the forward pass can compute too. `steps`
    are those of one run of a forward loop's body; layers written out have none.
    """

    values: tuple[Value, ...]
    length: int
    steps: tuple[Step, ...] = ()


NEVER_REPEATED = frozenset(
    ("random_bits", "rng_bit_generator", "rng_uniform", "random_gamma", "random_split", "random_fold_in", "random_seed")
)
"""Random numbers: a compiler may draw others where they are placed or fused otherwise."""


class Made(NamedTuple):
    """The equation that makes a value, the value numbers of its body, and whether it stands in the forward pass."""

    eqn: Any
    numbers: Numbers
    forward: bool


@dataclass(kw_only=True)
class Between:
    """What crosses from a forward to a backward pass, by value numbers.

    `made` says what makes a value, `late` are the equations of the backward pass that depend on more than forward values;
    `free` are the numbers that both passes can read from outside, with what is there and whether it is sliced; `carried`
    the variables of values that the forward pass is handed. `needed` are read by late equations. As the program is
    written, `kept` are saved and `repeated` computed again; `fixed` are not to be computed again.
    """

    values: ValueNumbers
    made: dict[int, Made] = field(default_factory=dict[int, Made])
    late: list[Any] = field(default_factory=list[Any])
    free: dict[int, tuple[Any, bool]] = field(default_factory=dict[int, tuple[Any, bool]])
    carried: dict[int, Any] = field(default_factory=dict[int, Any])
    needed: dict[int, None] = field(default_factory=dict[int, None])
    kept: set[int] = field(default_factory=set[int])
    repeated: set[int] = field(default_factory=set[int])
    fixed: set[int] = field(default_factory=set[int])
    _operands: dict[int, tuple[Made, tuple[int, ...]]] = field(
        default_factory=dict[int, tuple[Made, tuple[int, ...]]], init=False, repr=False
    )
    """What the equation of a value reads, with what made it when that was found: `made` changes."""

    @property
    def length(self) -> int:
        """How often the passes run."""
        return 1

    def number_of(self, atom: Any) -> int | None:
        """The number of what an equation of the backward pass reads, where it has one."""
        raise NotImplementedError(f"{type(self).__name__} does not say what {atom} is")

    @property
    def forward_eqns(self) -> Sequence[Any]:
        """The equations of the body of a forward loop, where there is one."""
        return ()

    @cached_property
    def once(self) -> Mapping[int, Any]:
        """The values that are the same in every pass, and what is there of them outside of the loops, if anything is."""
        return {}

    def operands_of(self, number: int) -> list[int]:
        """The numbers that the equation of a value reads, but for what is there anyway."""
        found = self.made.get(number)
        if found is None:
            return []
        known = self._operands.get(number)
        if known is None or known[0] is not found:
            atoms = (atom for atom in found.eqn.invars if not isinstance(atom, jex_core.Literal))
            known = self._operands[number] = found, tuple(dict.fromkeys(found.numbers[atom] for atom in atoms))
        return [n for n in known[1] if n not in self.free]

    def again(self, there: Container[int]) -> set[int]:
        """What is computed again where some values are there."""
        return set(self.in_order([number for number in self.needed if number not in there], there))

    @cached_property
    def order(self) -> list[int]:
        """The numbers of the values that cross, operands first."""
        return self.in_order(self.needed)

    def in_order(self, wanted: Iterable[int], there: Container[int] = ()) -> list[int]:
        """The numbers of these values and of all that they are computed of, but for what is `there`; operands first."""
        found: dict[int, None] = {}
        for root in wanted:
            waiting = [root]
            while waiting:
                number = waiting[-1]
                if number in found:
                    waiting.pop()
                    continue
                left = [n for n in self.operands_of(number) if n not in found and n not in there]
                if left:
                    waiting += left
                else:
                    found[waiting.pop()] = None
        return list(found)


def crossing_of(pair: Between) -> Crossing:
    """What crosses between two passes, as costs and choices are asked of it."""
    order = pair.order
    position = {number: i for i, number in enumerate(order)}
    values: list[Value] = []
    runs: dict[int, int] = {}
    for number in order:
        found = pair.made.get(number)
        if found is None:
            var, eqn = pair.carried[number], None
        else:
            eqn = found.eqn
            var = next(var for var in eqn.outvars if found.numbers[var] == number)
        saved = number in pair.kept
        repeated = number in pair.repeated and not saved
        steps = () if eqn is None else tuple(steps_of(eqn, 1.0))
        drawn = any(step.kind in NEVER_REPEATED for step in steps)
        values.append(
            Value(
                name="carry" if eqn is None else _name(eqn),
                aval=aval_of(var.aval),
                operands=tuple(position[n] for n in pair.operands_of(number)),
                steps=steps,
                needed=number in pair.needed,
                forward=found is None or found.forward,
                repeatable=eqn is not None
                and number not in pair.fixed
                and not eqn.effects
                and (not drawn or number in pair.repeated),
                saved=saved,
                repeated=repeated,
                once=number in pair.once,
                run=len(values) if eqn is None else runs.setdefault(id(eqn), len(values)),
            )
        )
    steps = tuple(step for eqn in pair.forward_eqns for step in steps_of(eqn, 1.0))
    return Crossing(values=tuple(values), length=pair.length, steps=steps)


def _name(eqn: Any) -> str:
    if eqn.primitive.name == "name":
        return eqn.params["name"]
    return origin_of(eqn).named(eqn.primitive.name)


def line_of(step: Step) -> str:
    """The line of code by which compilers know an equation, "folder/file.py:line"."""
    return origin_of(step.eqn).line


def steps_of(eqn: Any, runs: float) -> Iterator[Step]:
    """The leaves of an equation, each with how often it runs: those of a `shard_map` on every device."""
    structure, counted = structure_of(eqn), counted_body(eqn)
    if structure is None and counted is not None:
        for inner in opened(counted.jaxpr).eqns:
            yield from steps_of(inner, runs * math.prod((counted.axes or {}).values()))
        return
    if structure is None:
        operands, results = (tuple(aval_of(v.aval) for v in atoms) for atoms in (eqn.invars, eqn.outvars))
        yield Step(eqn.primitive.name, operands, results, eqn.params, runs, eqn)
        return
    for place in structure.bodies:
        for inner in opened(body_of(eqn, place)).eqns:
            yield from steps_of(inner, runs * structure.length)
