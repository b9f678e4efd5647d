"""Turned stacks: what XLA's GPU compiler turns around before a loop because matmuls in it read slices of it.

A matmul wants the batch dims of an operand side by side, and so what it contracts and what it keeps; where they are not, as
in a cache of shape (layers, batch, length, heads, width) whose heads are a batch of the product, it has the operand laid in
that order: batch, contracted, kept. The order goes up through slices and updates to what the loop takes in, which is turned
before it, and back behind it where it is carried. Heads are taken to be on devices of their own: of the batch dims the
first alone counts. Seen in schedules of jaxlib 0.10.2 (`GpuLayoutAssignment::SetDotOperandLayout` in openxla/xla).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from planner.any_mesh.buffer import Buffer
from planner.any_mesh.fusion import source
from planner.any_mesh.in_place import READ_AND_WRITTEN
from planner.any_mesh.share import WHOLE
from planner.program.graph import Graph, Op
from planner.program.slots import ENTERING
from planner.rules.primitives import traits


def turned_stacks(graph: Graph) -> frozenset[int]:
    """The ops by which what is turned enters its loop."""
    return frozenset(
        entering
        for op in graph.of_kinds(("dot_general",))
        for position in _turned_operands(op)
        for entering in _entering(graph, source(graph, op.operands[position]))
    )


def turning_passes(graph: Graph, turned: frozenset[int]) -> Mapping[int, float]:
    """How often per call what is turned is read or written for it, by the op by which it enters its loop."""
    found: dict[int, float] = {}
    for op in map(graph.ops.__getitem__, turned):
        region = graph.regions[op.region]
        runs = region.trips if op.kind == "loop_slice" else graph.regions[region.parent or 0].trips
        found[op.id] = READ_AND_WRITTEN * runs * (2.0 if op.kind == "loop_carry_in" else 1.0)
    return found


def turned_buffers(graph: Graph, turned: frozenset[int], spans: Sequence[tuple[int, int]]) -> list[Buffer]:
    """What stands turned beside what it was, from the spans of regions (op ids)."""
    return [
        Buffer(tensor=op.operands[0], start=spans[op.region][0], stop=spans[op.region][1], share=WHOLE)
        for op in map(graph.ops.__getitem__, sorted(turned))
    ]


def _turned_operands(op: Op) -> Iterator[int]:
    """The operands that a product of matrices does not take as they lie."""
    contracted, batch = op.params["dimension_numbers"]
    for position in range(2):
        apart, summed = sorted(batch[position]), sorted(contracted[position])
        if apart and apart != list(range(apart[0], apart[-1] + 1)) and summed and summed[0] > apart[0]:
            kept = [dim for dim in range(apart[0], summed[-1]) if dim not in apart and dim not in summed]
            if kept:
                yield position


def _entering(graph: Graph, tensor: int) -> Sequence[int]:
    """The op by which the stack that a tensor is a slice of enters a loop."""
    picked = False
    while (producer := graph.tensors[tensor].producer) is not None:
        op = graph.ops[producer]
        if op.kind in ENTERING:
            return (op.id,) if picked or op.kind == "loop_slice" else ()
        row = traits(op.kind)
        if not (row.picks or row.renames or row.updates is not None):
            break
        picked |= row.picks
        tensor = op.operands[0]
    return ()
