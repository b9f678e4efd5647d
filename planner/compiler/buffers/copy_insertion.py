"""In place: which results take over the memory of what they are made from, and what is copied where that cannot be.

A compiler writes an update over its operand, the carry of a loop over its first value and over that of the trip before, and
a result over the donated argument that it is paired with. Where what stands there is still needed, or belongs to somebody
else (an argument that is not given away, what a loop reads in every trip, a slice of a stack), it copies first: the whole
of it is read and written once more. A result that is made while its argument is still read, such as the stack of slices
that a loop makes of those of its argument, is made elsewhere and copied into the argument's memory at the end. The rules
are those seen in the schedules and buffer assignments of XLA's TPU compiler.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from planner.compiler.fusion.materialization import BORDER, readers_by_any_name
from planner.compiler.fusion.softmax_gpu import made_with_rows
from planner.program.dataflow import reached, source_through
from planner.program.graph import Graph, Op
from planner.program.slots import BOUNDARY, ENTERING, TAKEN_IN
from planner.rules.primitives import traits

READ_AND_WRITTEN = 2.0
DISTINCT_STACKS = 8
"""Loops whose stacks of one type the planner emits in different shapes: so many dims of one element are kept apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InPlace:
    """What lies in donated arguments, and what is copied.

    `taken` are the tensors in the memory of a donated argument, which need none of their own. `extra_traffic[op]` says how
    often per call the first result of an op is read or written beyond what the op itself does. `kept[tensor]`: until when
    a carry stands as the next trip's is made elsewhere and copied there at the end of a trip.
    """

    taken: frozenset[int]
    extra_traffic: Mapping[int, float]
    kept: Mapping[int, int]

    def with_traffic(self, more: Mapping[int, float]) -> InPlace:
        """The same, with results of ops read or written more often by so much."""
        if not more:
            return self
        return replace(
            self,
            extra_traffic={
                op: self.extra_traffic.get(op, 0.0) + more.get(op, 0.0) for op in {*self.extra_traffic, *more}
            },
        )


def in_place(
    graph: Graph,
    fused: Sequence[bool],
    materialized: Sequence[bool],
    last: Sequence[int],
    spans: Sequence[tuple[int, int]],
) -> InPlace:
    """What is written in place, from the time until which each tensor is needed and the spans of regions (op ids).

    `fused` are the ops that are parts of fused kernels.
    """
    walk = _Walk(graph=graph, fused=fused, materialized=materialized, last=last, spans=spans)
    for out, position in sorted(graph.aliases.items()):
        walk.lead_back(graph.outputs[out], graph.inputs[position])
    for op in graph.ops:
        trips = graph.regions[op.region].trips
        if op.kind == "loop_carry_in":
            runs = graph.regions[graph.regions[op.region].parent or 0].trips
            if not materialized[op.operands[0]]:
                walk.extra_traffic[op.id] += runs
            elif walk.must_copy(op):
                walk.extra_traffic[op.id] += READ_AND_WRITTEN * runs
        elif op.kind == "loop_carry_out":
            if walk.trip(op) is None:
                walk.extra_traffic[op.id] += READ_AND_WRITTEN * trips
                entered = walk.entered(op)
                if entered is not None:
                    walk.kept[entered.results[0]] = op.id + 1
        elif traits(op.kind).updates is not None and walk.must_copy(op):
            walk.extra_traffic[op.id] += READ_AND_WRITTEN * trips
    return InPlace(taken=frozenset(walk.taken), extra_traffic=dict(walk.extra_traffic), kept=walk.kept)


def zeroed_stacks(graph: Graph, materialized: Sequence[bool]) -> dict[int, float]:
    """By op that leaves a stack how often per call zeros are written where it will stand.

    A compiler sees that a loop fills all of a stack, and only allocates it. It does not where a reversed loop runs inside
    another, from which the zeros have been moved, nor where several loops have stacks of one shape, as emitted.
    """
    regions, found = graph.regions, dict[int, float]()
    loops = defaultdict[int, dict[int, int]](dict)
    stacks = list(graph.of_kinds(("loop_stack",)))
    for op in stacks:
        of_type = loops[graph.aval_numbers[op.results[0]]]
        of_type.setdefault(op.region, len(of_type))
    for op in stacks:
        around, of_type = regions[regions[op.region].parent or 0], loops[graph.aval_numbers[op.results[0]]]
        alike = len(of_type) > DISTINCT_STACKS and of_type[op.region] >= DISTINCT_STACKS - 1
        moved = regions[op.region].reverse and around.parent is not None
        if (alike or moved) and materialized[op.results[0]]:
            found[op.id] = around.trips
    return found


def updated_stacks(graph: Graph, fused: Sequence[bool], materialized: Sequence[bool]) -> dict[int, float]:
    """By op that leaves a stack how often per call it is read or written where every slice is written by an update.

    Zeros are written first. The kernel of the update computes its slice where that is what passes make, read elsewhere or
    not; it copies what a matmul or a softmax of rows makes, what others need in memory, and what enters the loop.
    """
    regions, found, rows = graph.regions, dict[int, float](), made_with_rows(graph, fused, materialized)

    def follows(op: Op) -> bool:
        row = traits(op.kind)
        alone = len(graph.consumers[op.results[0]]) == 1 and (row.turns or op.kind == "convert_element_type")
        return row.renames or row.reshapes or alone

    for op in graph.of_kinds(("loop_stack",)):
        tensor = source_through(graph, op.operands[0], follows)
        maker, readers = graph.maker(tensor), readers_by_any_name(graph, tensor)
        passes = maker is not None and maker.kind not in BOUNDARY and fused[maker.id] and tensor not in rows
        alone = all(fused[reader] and graph.ops[reader].kind not in BORDER for reader in readers - {op.id})
        times = 1.0 if passes and alone else 1.0 + READ_AND_WRITTEN
        found[op.id] = times * regions[regions[op.region].parent or 0].trips
    return found


def on_donated(graph: Graph) -> frozenset[int]:
    """The arrays that follow one another, by updates and through loops, from a donated argument to what takes its place."""
    first = {outside: inside for inside, outside in graph.ties}

    def before(tensor: int) -> Sequence[int]:
        op = graph.maker(tensor)
        if op is not None and (op.kind in BOUNDARY or traits(op.kind).renames):
            return (*op.operands, first[tensor]) if tensor in first else op.operands
        return () if op is None or traits(op.kind).updates is None else op.operands[:1]

    return frozenset(filter(before, reached([graph.outputs[result] for result in graph.aliases], before)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chain:
    """Tensors that follow one another in one memory, latest first.

    They begin with what is made at the time `start`; `origin` is what stood in that memory before, if it is known.
    """

    tensors: tuple[int, ...]
    start: int
    origin: int | None


@dataclass(kw_only=True)
class _Walk:
    graph: Graph
    fused: Sequence[bool]
    materialized: Sequence[bool]
    last: Sequence[int]
    spans: Sequence[tuple[int, int]]
    kept: dict[int, int] = field(default_factory=dict[int, int])
    taken: set[int] = field(default_factory=set[int])
    given: set[int] = field(default_factory=set[int])
    """Arguments that are written over by what is computed from them."""
    extra_traffic: defaultdict[int, float] = field(default_factory=lambda: defaultdict[int, float](float))

    @cached_property
    def _first_of(self) -> dict[int, int]:
        """What carries begin a trip as, by what they leave their loop as."""
        return {outside: inside for inside, outside in self.graph.ties}

    def lead_back(self, result: int, argument: int) -> None:
        """Puts a result, and all that it follows in place, into an argument's memory; or copies it there at the end."""
        if result == argument or result in self.taken:
            return
        chain = self.chain(result)
        if chain.origin == argument:
            self.given.add(argument)
        elif self.last[argument] > chain.start or self._moves(chain.tensors[-1], argument):
            self.extra_traffic[self._maker(result).id] += READ_AND_WRITTEN
            return
        self.taken.update(chain.tensors)

    def _moves(self, made: int, argument: int) -> bool:
        """Whether the pass that makes a tensor, last to read an argument, reads it elsewhere than it would write to."""
        if self._maker(made).id != self.last[argument]:
            return False
        size, computed = self.graph.tensors[argument].aval.size, self._computed_of(argument)

        def moved_on(one: tuple[int, bool]) -> bool:
            tensor, moved = one
            return moved or traits(self._maker(tensor).kind).turns or self.graph.tensors[tensor].aval.size != size

        def above(one: tuple[int, bool]) -> list[tuple[int, bool]]:
            return [(t, moved_on(one)) for t in self._maker(one[0]).operands if t in computed]

        starts = [(tensor, False) for tensor in (made, *self._beside(made))]
        return any(moved_on(one) and argument in self._maker(one[0]).operands for one in reached(starts, above))

    def _beside(self, made: int) -> Collection[int]:
        """What the pass that makes a tensor makes besides, of what this is computed from: the last that a pass made."""

        latest = self._latest_stored[made]
        if latest is None:
            return ()
        op = self._maker(latest)
        own = self.fused[op.id] and op.kind not in BOUNDARY and op.region == self._maker(made).region
        return (latest,) if own else ()

    @cached_property
    def _latest_stored(self) -> dict[int, int | None]:
        """By tensor the last one that a pass stored, of those that it is computed from without others being stored."""
        found: dict[int, int | None] = {}
        for op in self.graph.ops:
            made = [t for t in op.operands if self.graph.maker(t) is not None]
            stored = [t if self.materialized[t] else found[t] for t in made]
            latest = max((t for t in stored if t is not None), key=lambda t: self._maker(t).id, default=None)
            found |= dict.fromkeys(op.results, latest)
        return found

    def _computed_of(self, argument: int) -> set[int]:
        """What is computed of an argument without being stored on the way."""

        def made(tensor: int) -> list[int]:
            results = (t for op in self.graph.readers(tensor) for t in op.results)
            return [t for t in results if not self.materialized[t]]

        return {tensor for tensor in reached([argument], made) if tensor != argument}

    def must_copy(self, op: Op) -> bool:
        """Whether an op that writes over its first operand must have a copy of it."""
        return self.last[op.operands[0]] > op.id or self._guarded(op.operands[0])

    def _maker(self, tensor: int) -> Op:
        return self.graph.ops[self.graph.tensors[tensor].producer or 0]

    def _guarded(self, tensor: int) -> bool:
        """Whether a tensor that is not needed any more may not be written over all the same."""
        op = self.graph.maker(tensor)
        if op is None:
            return tensor not in self.given
        if op.kind == "branch_in":
            outer = op.operands[0]
            return self.last[outer] > self.spans[op.region][1] or self._guarded(outer)
        return op.kind in TAKEN_IN or (traits(op.kind).renames and self._guarded(op.operands[0]))

    def chain(self, tensor: int) -> _Chain:
        """What a tensor follows in one memory, up to an argument or to what enters the body in which it is made."""
        tensors, start = list[int](), len(self.graph.ops)
        while (op := self.graph.maker(tensor)) is not None and op.kind not in ENTERING:
            tensors.append(tensor)
            start = free = op.id
            before: int | None = None
            if op.kind == "loop_carry_out":
                entered = self.entered(op)
                tensors += self.trip(op) or ()
                start = self.spans[op.region][0]
                if entered is not None:
                    tensors.append(entered.results[0])
                    free, (before,) = entered.id, entered.operands
            elif op.kind == "branch_out":
                branches = [self.chain(operand) for operand in op.operands]
                tensors += [inner for branch in branches for inner in branch.tensors]
                start = min(start, *(branch.start for branch in branches))
                before = self._outside(branches)
            elif op.kind == "loop_stack":
                start = self.spans[op.region][0]
            elif traits(op.kind).renames or traits(op.kind).updates is not None:
                before = op.operands[0]
            if before is None or self.last[before] > free:
                return _Chain(tensors=tuple(tensors), start=start, origin=None)
            tensor = before
        return _Chain(tensors=tuple(tensors), start=start, origin=tensor)

    def entered(self, op: Op) -> Op | None:
        """The op by which the carry entered its loop that leaves it by this op; None where no trip reads it."""
        first = self._first_of.get(op.results[0])
        return None if first is None else self._maker(first)

    def _outside(self, branches: Sequence[_Chain]) -> int | None:
        """What the branches of a conditional write over, where it is one tensor around it."""
        inside = {branch.origin for branch in branches if branch.origin is not None}
        outer = {op.operands[0] if op.kind == "branch_in" else None for op in map(self._maker, inside)}
        return outer.pop() if len(outer) == 1 else None

    def trip(self, op: Op) -> tuple[int, ...] | None:
        """What a body makes in the memory of the carry that leaves it by this op; None where it is copied there."""
        entered, inner = self.entered(op), self.chain(op.operands[0])
        if entered is None or inner.origin == entered.results[0]:
            return inner.tensors
        if not inner.tensors:
            return None
        first = self._maker(inner.tensors[-1])
        # Where an update had to copy what it writes into, it is the old value that moves out of the way.
        moved = traits(first.kind).updates is not None and self.must_copy(first)
        carry, made = entered.results[0], inner.tensors[-1]
        free = self.last[carry] <= inner.start and not self._moves(made, carry)
        return inner.tensors if moved or free else None
