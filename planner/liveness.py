"""Liveness: which tensors occupy memory, and from when to when, in program order.

A compiler keeps in memory what its fused passes read and write: arguments, results of ops that are not fused, what such
ops read, what reductions return, what crosses a loop's border, and the results of the program. The rest lives in
registers, and extends the life of what it is computed from.

Times are op ids; a buffer is alive in [start, stop). A loop body stands in program order once; what a loop reads from
outside lives until the loop ends, a carry as long as the loop, and a stack from the loop's start to its last reader.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.graph import Graph, Op
from planner.groups import Grouping, is_fused
from planner.trace import ENTERING, LEAVING


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """One tensor in memory over the half-open interval [start, stop) of op ids."""

    tensor: int
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True)
class Liveness:
    """`materialised[tensor]`: it is read from and written to memory; `buffers`: what is allocated besides arguments."""

    materialised: tuple[bool, ...]
    buffers: tuple[Buffer, ...]
    steps: int


def analyse(graph: Graph, grouping: Grouping) -> Liveness:
    """The materialised tensors and buffers of a graph."""
    materialised = _materialised(graph, grouping)
    ends = region_ends(graph)
    starts = _region_starts(graph)
    last = _last_uses(graph, materialised, ends)
    aliased = {graph.outputs[out] for out in graph.aliases}
    buffers: list[Buffer] = []
    for op in graph.ops:
        for tensor in op.results:
            if not materialised[tensor] or _is_view(graph, op) or tensor in aliased:
                continue
            start = starts[op.region] if op.kind == "loop_stack" else op.id
            stop = max(last[tensor], op.id + 1)
            if op.kind == "loop_carry_in":
                stop = max(stop, ends[op.region])
            buffers.append(Buffer(tensor=tensor, start=start, stop=stop))
    return Liveness(materialised=tuple(materialised), buffers=tuple(buffers), steps=len(graph.ops))


def _is_view(graph: Graph, op: Op) -> bool:
    """Whether a result is a name for memory that is accounted elsewhere."""
    if op.kind in ("loop_const", "branch_in", "optimization_barrier", "name"):
        return True
    # A slice that only fused ops read is read where it stands in the stack.
    return op.kind == "loop_slice" and all(is_fused(graph.ops[reader]) for reader, _ in graph.consumers[op.results[0]])


def _materialised(graph: Graph, grouping: Grouping) -> list[bool]:
    kept = [tensor.producer is None for tensor in graph.tensors]
    for tensor in graph.outputs:
        kept[tensor] = True
    for op in graph.ops:
        if not is_fused(op) or grouping.placements[op.id].reduced or op.kind in ENTERING or op.kind in LEAVING:
            for tensor in op.results:
                kept[tensor] = True
        if not is_fused(op) or op.kind in LEAVING:
            for tensor in op.operands:
                kept[tensor] = True
    return kept


def region_ends(graph: Graph) -> list[int]:
    """For every region the id after its last op, inner regions included; indexed by region."""
    ends = [0] * len(graph.regions)
    for op in graph.ops:
        region: int | None = op.region
        while region is not None:
            ends[region] = max(ends[region], op.id + 1)
            region = graph.regions[region].parent
    return ends


def _region_starts(graph: Graph) -> list[int]:
    starts = [len(graph.ops)] * len(graph.regions)
    for op in graph.ops:
        region: int | None = op.region
        while region is not None:
            starts[region] = min(starts[region], op.id)
            region = graph.regions[region].parent
    return starts


def _last_uses(graph: Graph, materialised: list[bool], ends: list[int]) -> list[int]:
    """The time until which every tensor is needed, through whatever is computed from it in passing."""
    last = [0] * len(graph.tensors)
    for tensor in graph.outputs:
        last[tensor] = len(graph.ops)
    for op in reversed(graph.ops):
        if op.kind in ("loop_const", "loop_slice", "branch_in"):
            need = ends[op.region]
        elif is_fused(op):
            # A fused pass writes over what it was the last to read.
            need = op.id
        else:
            need = op.id + 1
        for tensor in op.results:
            if not materialised[tensor] or op.kind in ("optimization_barrier", "name"):
                need = max(need, last[tensor])
        for tensor in op.operands:
            last[tensor] = max(last[tensor], need)
    return last
