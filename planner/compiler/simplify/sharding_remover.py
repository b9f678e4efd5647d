"""Seen through: a program without the ops that only say where an array lies, as a compiler fuses and allocates it.

A `with_sharding_constraint` is a decision of its own, with a demand on it, and what moves for it has its price. Else it is
nothing: those who read its result read its operand, whose kernels, memory and precision are what they would be without
it. So all that is worked out of compilers is worked out of the graph and flow that are made here. Ops and tensors keep
their numbers; an op that is seen through reads nothing and makes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from planner.decisions.decision_graph import Flow, Read, Transfer
from planner.program.graph import Graph
from planner.rules.primitives import kinds_where

PLACEMENTS = kinds_where(lambda row: row.places)
"""The ops that are seen through."""


@dataclass(frozen=True)
class SeenThrough:
    """A program, and what is left of it where placements are `removed`: itself where there are none."""

    whole: Graph
    removed: bool = True
    source: dict[int, int] = field(init=False, default_factory=dict[int, int])
    """The tensor that the result of a placement is another name for."""

    def __post_init__(self) -> None:
        for op in self.whole.of_kinds(PLACEMENTS) if self.removed else ():
            self.source[op.results[0]] = self.of(op.operands[0])

    def of(self, tensor: int) -> int:
        """The tensor that a tensor is a name for: itself, as a rule."""
        return self.source.get(tensor, tensor)

    @cached_property
    def graph(self) -> Graph:
        """The graph in which nobody reads or makes what is seen through."""
        if not self.source:
            return self.whole
        return replace(
            self.whole,
            ops=tuple(
                op._replace(operands=(), results=())
                if op.kind in PLACEMENTS
                else op._replace(operands=tuple(map(self.of, op.operands)))
                for op in self.whole.ops
            ),
            outputs=tuple(map(self.of, self.whole.outputs)),
        )

    def flow(self, flow: Flow) -> Flow:
        """The flow in which those who read the result of a placement read its operand."""
        if not self.source:
            return flow

        def seen(transfer: Transfer) -> Transfer:
            reads = tuple(read for own in transfer.reads for read in self._reads(own))
            return transfer._replace(tensor=self.of(transfer.tensor), reads=reads)

        return replace(
            flow,
            transfers=tuple(map(seen, flow.transfers)),
            fetched=tuple((read, node) for own, node in flow.fetched for read in self._reads(own)),
        )

    def _reads(self, read: Read) -> list[Read]:
        """The reads that a read serves in the end: itself, unless it is that of a placement."""
        op = self.whole.ops[read[0]]
        if op.kind not in PLACEMENTS:
            return [read]
        return [one for reader in self.whole.consumers[op.results[0]] for one in self._reads(reader)]
