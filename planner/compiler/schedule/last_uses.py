"""Last uses: until when each tensor is needed, in program order.

Times are op ids. A loop body is in program order once; what a loop reads from outside lives until the loop ends, a carry
as long as the loop, and a stack from the loop's start to its last reader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from planner.program.graph import Graph
from planner.program.slots import TAKEN_IN
from planner.rules.primitives import traits


def region_spans(graph: Graph) -> list[tuple[int, int]]:
    """For every region the ids of its first op and after its last, inner regions included; indexed by region."""
    first, stop = [len(graph.ops)] * len(graph.regions), [0] * len(graph.regions)
    for op in graph.ops:
        first[op.region] = min(first[op.region], op.id)
        stop[op.region] = op.id + 1
    for region in reversed(graph.regions):  # what is inside stands behind what is around it
        if region.parent is not None:
            first[region.parent] = min(first[region.parent], first[region.id])
            stop[region.parent] = max(stop[region.parent], stop[region.id])
    return list(zip(first, stop, strict=True))


def last_uses(
    graph: Graph,
    fused: Sequence[bool],
    stored: Sequence[bool],
    spans: Sequence[tuple[int, int]],
    same_type: AbstractSet[int],
    scheduled_at: Mapping[int, int],
    fractions: Sequence[float],
    narrow_of: Mapping[int, int],
) -> list[int]:
    """The time until which every tensor is needed, through whatever is computed from it in passing.

    `scheduled_at` has the ops that run later than their place, `fractions` the part of its bytes that each tensor takes,
    `narrow_of` what fused ops read in the place of a tensor.

    A fused op overwrites the operand that it was the last to read, if that takes the same part of its bytes; one that
    writes a tensor of `same_type` overwrites only operands of the same type.
    """
    last = [0] * len(graph.tensors)
    over: dict[int, int] = {}  # for what does not stand, the tensor that the last pass to read it writes
    for tensor in graph.outputs:
        last[tensor] = len(graph.ops)
    for op in reversed(graph.ops):
        row = traits(op.kind)
        if op.kind in TAKEN_IN or op.kind == "branch_in":
            need = spans[op.region][1]
        else:
            need = scheduled_at.get(op.id, op.id) + (not fused[op.id])
        if op.kind == "loop_stack":  # what a trip leaves behind is put on the stack as soon as it is made
            need = (graph.tensors[op.operands[0]].producer or 0) + 1
        written = next((tensor for tensor in op.results if stored[tensor]), None) if fused[op.id] else None
        for tensor in op.results:
            if last[tensor] > need and (not stored[tensor] or row.renames):
                need, written = last[tensor], over.get(tensor)
        for position, tensor in enumerate(op.operands):
            # An update is computed before it is written over what it may be computed from.
            before = row.updates is not None and (position == 0 or not stored[tensor])
            until = op.id if before else need
            tensor = narrow_of.get(tensor, tensor) if fused[op.id] else tensor
            if written is not None and stored[tensor]:
                other = written in same_type and graph.aval_numbers[tensor] != graph.aval_numbers[written]
                until += other or fractions[written] != fractions[tensor]
            if until > last[tensor]:
                last[tensor] = until
                if written is not None:
                    over[tensor] = written
                else:
                    over.pop(tensor, None)
    return last
