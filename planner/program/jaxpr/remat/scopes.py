"""Where values cross from forward to backward passes: bodies with pairs of loops, or with layers written out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
    return scope_of(program).crossed()


def program_steps(program: Program) -> Iterator[Step]:
    """The leaves of a program, each with how often it runs."""
    for eqn in opened(program.jaxpr).eqns:
        yield from steps_of(eqn, 1.0)


@dataclass
class Scope:
    """A body with pairs of loops, or with layers written out, whose `crossings` are counted from `first`.

    `inner` are the loops of the body that are looked into, each with its scope.
    """

    body: Any
    numbers: Numbers
    pairs: list[Pair]
    crossings: Sequence[Between]
    first: int
    inner: list[tuple[Any, Scope]] = field(default_factory=list[tuple[Any, "Scope"]])

    def between(self) -> Iterator[Between]:
        """What crosses in the body and in those of its loops, in the order in which it is counted."""
        yield from self.crossings
        for _, scope in self.inner:
            yield from scope.between()

    def crossed(self) -> tuple[Crossing, ...]:
        """The same, as costs and choices are asked of it."""
        return tuple(map(crossing_of, self.between()))

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


def scope_of(program: Program, *, within_layers: bool = False, by_checkpoints: bool = False) -> Scope:
    """The outermost body of a program.

    What crosses are the values of layers: of the outermost pairs of loops, or of layers written out, whether or not these
    have loops of their own. With `within_layers` it is the values of the loops of layers: of pairs in a backward loop, or
    between the borders of layers written out. With `by_checkpoints` only checkpoints make layers written out, in any
    number: of a body without any it is the pairs of loops.
    """
    body = opened(program.jaxpr)
    held = dict(zip(body.constvars, consts_of(program.jaxpr), strict=False))
    first = len(body.invars) - len(program.constants)
    held.update(zip(body.invars[first:], program.constants, strict=True))
    return _Walk(held=held, within_layers=within_layers, by_checkpoints=by_checkpoints).of(program.jaxpr)


@dataclass(kw_only=True)
class _Walk:
    """A walk over the bodies of a program in which values cross, outermost first; see `scope_of`.

    `held` are the arrays that the program holds, by variable.
    """

    held: Mapping[Any, Any]
    within_layers: bool
    by_checkpoints: bool
    values: ValueNumbers = field(default_factory=ValueNumbers)
    count: int = 0

    def of(self, jaxpr: Any, known: Sequence[int] = (), *, in_layer: bool = False) -> Scope:
        """A body and those in it; of the first operands the numbers are `known`."""
        scope = self.scope(inlined(opened(jaxpr)), known, in_layer=in_layer)
        outside = {id(eqn) for eqn in scope.loops()}
        for loop in scope.loops(backward=self.within_layers and not in_layer and not scope.crossings):
            # A backward loop is one of layers.
            within = in_layer or id(loop) not in outside
            body = self.of(body_of(loop, ("jaxpr", None)), self.same_in_every_pass(scope, loop), in_layer=within)
            scope.inner.append((loop, body))
        return scope

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
        scope = Scope(body=body, numbers=numbers, pairs=pairs, crossings=layers, first=self.count)
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
