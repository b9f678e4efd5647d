"""Where values cross from forward to backward passes: bodies with pairs of loops, or with layers written out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from planner.program.jaxpr.bodies import body_of, consts_of, opened, structure_of
from planner.program.jaxpr.canonicalize.inlined import inlined
from planner.program.jaxpr.remat.loop_pairs import Pair, pairs_in
from planner.program.jaxpr.remat.residuals import Between, Crossing, Step, crossing_of, steps_of
from planner.program.jaxpr.remat.unrolled_layers import FEWEST_BORDERS, WrittenOut, is_checkpoint, written_out_in
from planner.program.jaxpr.remat.value_numbering import Numbers, ValueNumbers
from planner.program.tracing.gc_pause import paused
from planner.program.tracing.traced import Program

Saved = Mapping[int, Sequence[int]]
"""By position of a crossing, the positions of its values that are saved; a crossing left out stays as written."""


@paused()
def crossings(program: Program) -> tuple[Crossing, ...]:
    """What crosses between the loops of a program, in the order in which `with_saved` counts."""
    scopes = Scopes.of_program(program).of(program.jaxpr)
    return tuple(crossing_of(found) for scope in scopes for found in scope.crossings)


def program_steps(program: Program) -> Iterator[Step]:
    """The leaves of a program, each with how often it runs."""
    for eqn in opened(program.jaxpr).eqns:
        yield from steps_of(eqn, 1.0)


@dataclass
class Scope:
    """A body with pairs of loops, or with layers written out, whose `crossings` are counted from `first`."""

    body: Any
    numbers: Numbers
    pairs: list[Pair]
    written_out: WrittenOut | None
    crossings: Sequence[Between]
    first: int

    def loops(self, *, backward: bool = False) -> list[Any]:
        """The loops of the body that are of no pair; with `backward`, those too that are the backward loop of one."""
        of_pairs = {pair.forward.position for pair in self.pairs}
        of_pairs |= set() if backward else {pair.backward.position for pair in self.pairs}
        return [
            eqn
            for position, eqn in enumerate(self.body.eqns)
            if position not in of_pairs
            and (structure := structure_of(eqn)) is not None
            and structure.kind == "scan"
            and eqn.outvars
            and not eqn.effects
        ]


@dataclass(kw_only=True)
class Scopes:
    """The bodies of a program in which values cross, outermost first.

    What crosses are the values of layers: of the outermost pairs of loops, or of layers written out, whether or not these
    have loops of their own. With `within_layers` it is the values of the loops of layers: of pairs in a backward loop, or
    between the borders of layers written out. With `by_checkpoints` only checkpoints make layers written out, in any
    number: of a body without any it is the pairs of loops.
    """

    held: Mapping[Any, Any] = field(default_factory=dict[Any, Any])
    """By variable the arrays that the program holds."""
    within_layers: bool = False
    by_checkpoints: bool = False
    values: ValueNumbers = field(default_factory=ValueNumbers)
    count: int = 0

    @classmethod
    def of_program(cls, program: Program, **given: Any) -> Self:
        """Those of a program."""
        body = opened(program.jaxpr)
        held = dict(zip(body.constvars, consts_of(program.jaxpr), strict=False))
        first = len(body.invars) - len(program.constants)
        held.update(zip(body.invars[first:], program.constants, strict=True))
        return cls(held=held, **given)

    def of(self, jaxpr: Any, known: Sequence[int] = (), *, in_layer: bool = False) -> Iterator[Scope]:
        """The bodies, one after the other; of the first operands the numbers are `known`."""
        scope = self.scope(inlined(opened(jaxpr)), known, in_layer=in_layer)
        yield scope
        for loop, within in self.inner(scope, in_layer=in_layer):
            yield from self.of(body_of(loop, ("jaxpr", None)), self.same_in_every_pass(scope, loop), in_layer=within)

    def inner(self, scope: Scope, *, in_layer: bool) -> list[tuple[Any, bool]]:
        """The loops of a scope that are looked into, and whether each is the backward loop of layers."""
        outside = {id(eqn) for eqn in scope.loops()}
        loops = scope.loops(backward=self.within_layers and not in_layer and not scope.crossings)
        return [(eqn, in_layer or id(eqn) not in outside) for eqn in loops]

    def scope(self, body: Any, known: Sequence[int], *, in_layer: bool) -> Scope:
        """What crosses in a body, whose other operands are equal to nothing that is known."""
        numbers: Numbers = {
            var: self.values.constant(self.held[var]) if var in self.held else self.values.new()
            for var in (*body.constvars, *body.invars)
        }
        numbers.update(zip(body.invars, known, strict=False))
        pairs = list(pairs_in(body, numbers, self.values, 0))
        written_out = None if in_layer else self._written_out(body, numbers, pairs)
        layers: Sequence[Between] = pairs if written_out is None else (written_out,)
        if self.within_layers:
            layers = pairs if in_layer or written_out is not None else ()
        scope = Scope(
            body=body, numbers=numbers, pairs=pairs, written_out=written_out, crossings=layers, first=self.count
        )
        self.count += len(scope.crossings)
        return scope

    def _written_out(self, body: Any, numbers: Numbers, pairs: Sequence[Pair]) -> WrittenOut | None:
        """What crosses between layers written out in a body; None where there are none, or the loops are the layers."""
        if self.by_checkpoints and not any(map(is_checkpoint, body.eqns)):
            return None
        found = written_out_in(body, numbers, self.values, fewest=0 if self.by_checkpoints else FEWEST_BORDERS)
        if found is None or self.by_checkpoints or not pairs:
            return found
        # Loops of layers written out are alike in every layer. Others, as those of an encoder and a decoder, are layers.
        kinds = Counter(pair.forward.kind for pair in pairs)
        return found if any(kinds[pair.forward.kind] > 1 and found.is_within(pair) for pair in pairs) else None

    def same_in_every_pass(self, scope: Scope, loop: Any) -> list[int]:
        """The numbers of what a loop takes that is the same in every pass: two that are equal are so within it."""
        structure = structure_of(loop)
        consts = 0 if structure is None else structure.num_consts
        return [self.values.read(atom, scope.numbers) for atom in loop.invars[:consts]]
