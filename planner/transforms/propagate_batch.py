"""Spread: what becomes of every array of a program whose batch is taken in parts, found op by op until nothing changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from planner.program.batch_parts import Part
from planner.program.graph import Graph, Op
from planner.program.jaxpr.microbatch.expanded import Facts
from planner.program.slots import BOUNDARY, ENTERING, LEAVING, Slot, operand_slot, result_slot
from planner.rules.choose import op_rule
from planner.rules.primitives import rule_of_op, traits
from planner.rules.rule import Rule
from planner.transforms.batch_states import WHOLE, ZERO, Passing, State, joined_states, late


def number(op: Op) -> int:
    """The number of the equation outside of all bodies that an op is, or is in."""
    return int(op.path[0])


@dataclass(kw_only=True)
class Flat:
    """The graph of an expanded program, and what is asked of its ops again and again."""

    graph: Graph
    facts: Facts
    rules: dict[int, Rule | None] = field(default_factory=dict[int, "Rule | None"])

    def rule(self, op: Op) -> Rule | None:
        """The rule of an op."""
        if op.id not in self.rules:
            # Those without elements are part of a batch as others are, those that stay whole on devices too.
            empty = op.primitive is not None and not all(aval.size for aval in self.graph.avals(op.results))
            self.rules[op.id] = rule_of_op(self.graph, op) if empty else op_rule(self.graph, op)[0]
        return self.rules[op.id]

    @cached_property
    def ties(self) -> Mapping[int, int]:
        """By the end of a carry inside its loop that outside, and the other way round."""
        carried = [pair for pair in self.graph.ties if self._kind(pair[0]) == "loop_carry_in"]
        return {**dict(carried), **{outside: inside for inside, outside in carried}}

    def _kind(self, tensor: int) -> str:
        maker = self.graph.maker(tensor)
        return "" if maker is None else maker.kind

    @cached_property
    def in_block(self) -> frozenset[int]:
        """The equations outside of all bodies that have bodies."""
        return frozenset(number(op) for op in self.graph.ops if len(op.path) > 1 or op.kind in BOUNDARY)

    def is_heavy(self, op: Op) -> bool:
        """Whether an op does what microbatches are for: the work, and the memory, of a large part of the program."""
        row = traits(op.kind)
        region = self.graph.regions[op.region].kind
        counted = row.matmul or row.opaque or row.by_hand == "kernel" or op.body is not None
        return counted or op.kind.startswith("ragged") or region not in ("program", "cond")


@dataclass(kw_only=True)
class Spread:
    """The states of all arrays, where the batch lies in some arguments (`start`).

    `early` are ops that are run once for the whole batch before all parts; `after_loop` equations that are run behind them.
    """

    program: Flat
    extent: int
    start: dict[int, Part]
    early: frozenset[int] = frozenset()
    after_loop: frozenset[int] = frozenset()
    states: list[State | None] = field(default_factory=list[State | None])
    cut: dict[tuple[int, int], Part] = field(default_factory=dict[tuple[int, int], Part])

    def __post_init__(self) -> None:
        graph = self.program.graph
        self._passing = Passing(graph=graph, extent=self.extent, rule=self.program.rule, defers=self._defers)
        self.states = [WHOLE if tensor.producer is None else None for tensor in graph.tensors]
        for tensor, part in self.start.items():
            self.states[tensor] = State("part", part)
        waiting = {op.id for op in graph.ops}
        while waiting:
            waiting = self._round(waiting)

    def operands(self, op: Op) -> list[State]:
        """The states of what an op reads, as it reads them."""
        zeros, place = self.program.facts.zeros, op.path
        outer = op.params["outer"] if op.kind in ENTERING else None
        found: list[State] = []
        for i, tensor in enumerate(op.operands):
            state = self.states[tensor]
            leaf = op.kind not in LEAVING and op.kind not in ("loop_test", "branch_test", "optimization_barrier")
            is_zero = leaf and (place, i if outer is None else outer) in zeros
            found.append(ZERO if is_zero else state if state is not None else WHOLE)
        return found

    def _round(self, waiting: set[int]) -> set[int]:
        """A round over the ops that wait, and those behind them that read what it changes; the ops before them that do."""
        graph, ties, again = self.program.graph, self.program.ties, set[int]()
        for op in graph.ops:
            if op.id not in waiting:
                continue
            for i in range(len(op.operands)):
                self.cut.pop((op.id, i), None)
            for result, state in zip(op.results, self._step(op), strict=True):
                if self.states[result] == state:
                    continue
                self.states[result] = state
                tied = graph.tensors[ties[result]].producer if result in ties else None
                reading = [reader for reader, _ in graph.consumers[result]] + ([] if tied is None else [tied])
                waiting.update(reader for reader in reading if reader > op.id)
                again.update(reader for reader in reading if reader <= op.id)
        return again

    def _step(self, op: Op) -> Sequence[State]:
        if op.id in self.early:
            return [WHOLE] * len(op.results)
        states = self.operands(op)
        if number(op) in self.after_loop:
            hanging = [state for state in states if state.kind in ("part", "sum", "late")]
            causes = [cause for state in hanging for cause in state.causes] or [op.id]
            found = late(causes, wide=any(state.kind == "part" or state.wide for state in hanging))
            made = [found if hanging else WHOLE] * len(op.results)
        else:
            met = self._passing.of(op, states)
            made = list(met.results)
            self.cut.update({(op.id, i): part for i, part in met.cut.items()})
        tied = self.program.ties.get(op.results[0]) if op.kind in ("loop_carry_in", "loop_carry_out") else None
        other = None if tied is None else self.states[tied]
        if other is None:
            return made
        both = joined_states(made[0], other, op)
        if both.kind == "part" and made[0].kind in ("whole", "zero") and both.part is not None:
            self.cut[op.id, 0] = both.part
        return [both]

    def _defers(self, op: Op) -> bool:
        """Whether an op on sums alone is run once behind all parts, as it does much."""
        return number(op) not in self.program.in_block and self.program.is_heavy(op)

    # ------------------------------------------------------------ what else may be had in parts

    def wanted_arguments(self) -> dict[int, Part]:
        """The arguments of which parts are read, by the ops in between, and where the batch lies in them."""
        graph, seen = self.program.graph, dict[int, Part]()
        left = [(graph.ops[op].operands[i], part) for (op, i), part in self.cut.items()]
        while left:
            tensor, part = left.pop()
            state = self.states[tensor]
            if tensor in seen or state is None or state.kind not in ("whole", "zero"):
                continue
            seen[tensor] = part
            op = graph.maker(tensor)
            if op is None or op.id in self.early:
                continue
            tied = self.program.ties.get(tensor)
            left += [] if tied is None else [(tied, part)]
            found = self._backwards(op, op.results.index(tensor), part)
            left += [(op.operands[i], there) for i, there in (found or {}).items()]
        return {t: part for t, part in seen.items() if t in graph.taken}

    def _backwards(self, op: Op, position: int, part: Part) -> dict[int, Part] | None:
        """The parts of its operands of which an op makes the part of its result; None where it does not."""
        return self._passing.backwards(op, position, part)

    def sink(self) -> None:
        """Makes part by part what all that read it read part by part, such as zeros of the size of the batch."""
        graph = self.program.graph
        carried = self.program.ties
        for op in reversed(graph.ops):
            if op.id in self.early or len(op.results) != 1 or op.results[0] in carried or number(op) in self.after_loop:
                continue
            (result,) = op.results
            state = self.states[result]
            readers = graph.consumers[result]
            if state is None or state.kind not in ("whole", "zero") or not readers or result in graph.returned:
                continue
            wanted = {self.cut.get(reader) for reader in readers}
            part = wanted.pop()
            if wanted or part is None:
                continue
            found = self._backwards(op, 0, part)
            if found is None:
                continue
            for reader in readers:
                del self.cut[reader]
            self.states[result] = State("part", part)
            self.cut.update({(op.id, i): there for i, there in found.items()})

    # ------------------------------------------------------------ what is run when

    def deferred(self) -> frozenset[int]:
        """The ops on sums alone that are run once behind all parts, though they might be run for each.

        So is what makes of sums no less than it reads, unless that is summed with others: there would be more to add up.
        Conversions to wider types stay, as what is added up is no narrower for them.
        """
        graph, found = self.program.graph, set[int]()
        for op in reversed(graph.ops):
            if number(op) in self.program.in_block or not self.inside(op) or self.reads_parts(op):
                continue
            readers = {reader for t in op.results for reader, _ in graph.consumers[t]}
            stays = any(self._inside_block(graph.ops[r]) and r not in found for r in readers)
            sums = {
                t: graph.tensors[t].aval for t in op.operands if (s := self.states[t]) is not None and s.kind == "sum"
            }
            made = sum(graph.tensors[t].aval.size for t in op.results)
            shrinks = made < sum(aval.size for aval in sums.values())
            narrow = any(aval.itemsize < graph.tensors[op.results[0]].aval.itemsize for aval in sums.values())
            if not (stays or shrinks or narrow):
                found.add(op.id)
        return frozenset(found)

    def _inside_block(self, op: Op) -> bool:
        return not self.is_late(op) and number(op) not in self.after_loop and op.id not in self.early

    # ------------------------------------------------------------ what is run when

    def inside(self, op: Op) -> bool:
        """Whether an op makes parts or sums of them."""
        return any((state := self.states[t]) is not None and state.kind in ("part", "sum") for t in op.results)

    def reads_parts(self, op: Op) -> bool:
        """Whether an op reads parts, or what is late and as large as the batch."""
        return any(state.kind == "part" or state.wide for state in self.operands(op))

    def is_late(self, op: Op) -> bool:
        """Whether an op can be run once all parts are done only."""
        if any((state := self.states[t]) is not None and state.kind == "late" for t in op.results):
            return True
        return not op.results and any(state.kind in ("part", "sum", "late") for state in self.operands(op))

    def causes(self, op: Op) -> tuple[int, ...]:
        """The ops because of which an op is late."""
        states = [state for t in op.results if (state := self.states[t]) is not None]
        found = [cause for state in (*states, *self.operands(op)) for cause in state.causes]
        return tuple(dict.fromkeys(found)) or (op.id,)

    def places(self) -> tuple[dict[Slot, Part], dict[Slot, Part]]:
        """The places where parts are made, and those where parts of whole arrays are read."""
        graph = self.program.graph
        parts: dict[Slot, Part] = {}
        for op in graph.ops:
            for i, tensor in enumerate(op.results):
                state = self.states[tensor]
                if state is not None and state.part is not None:
                    parts[result_slot(op, i)] = state.part
        for i, tensor in enumerate(graph.inputs):
            state = self.states[tensor]
            if state is not None and state.part is not None:
                parts["invar", (), i] = state.part
        return parts, {operand_slot(graph.ops[op], i): part for (op, i), part in self.cut.items()}
