"""Stacks of loops: what XLA's TPU compiler copies to turn its dims before a loop takes it in slice by slice, or after.

The stacks of a loop lie as their shapes say. A transpose of what was computed is a kernel of its own where its result goes
into one; elsewhere the kernel that writes or reads an array turns its dims as it does so. Behind a loop a transpose is such
a kernel if others than the last two dims, which lie in tiles, come to be last. A reshape beside it is a kernel as well if
it splits the last dim or puts others into it. Seen in schedules of libtpu 0.0.42: linear attention in chunks, recurrent
networks and attention in blocks of queries on v5e:2x2.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.compiler.layout.row_major_lanes import keeps_layout
from planner.program.dataflow import reached, source_through
from planner.program.graph import Graph, Op
from planner.program.slots import BOUNDARY
from planner.rules.primitives import traits


def stack_relayouts(graph: Graph) -> frozenset[int]:
    """The ops before and after loops that are kernels of their own because they change the layout of a stack."""
    return frozenset((*_before(graph), *_after(graph)))


def _before(graph: Graph) -> Iterator[int]:
    def passes(op: Op) -> bool:
        if not op.operands or len(op.results) != 1:
            return False
        pointwise = not traits(op.kind).squares and keeps_layout(graph, op, op.operands[0], op.results[0])
        return pointwise or _is_view(op)

    for op in graph.of_kinds(("loop_slice",)):
        turns = graph.maker(source_through(graph, op.operands[0], passes))
        if turns is None or not _turns(graph, turns, last=None):
            continue
        if graph.maker(source_through(graph, turns.operands[0], passes)) is None:
            continue  # of an argument, such as a batch that is taken in parts, the loop slices other rows
        yield turns.id
        split = graph.maker(source_through(graph, turns.operands[0], lambda op: traits(op.kind).renames))
        yield from () if split is None else _retiled(graph, split)


def _after(graph: Graph) -> Iterator[int]:
    def viewed(tensor: int) -> list[int]:
        return [t for op in graph.readers(tensor) if _is_view(op) for t in op.results]

    for op in graph.of_kinds(("loop_stack",)):
        for turns in [to for tensor in reached(op.results, viewed) for to in graph.readers(tensor)]:
            if not _turns(graph, turns, last=2):
                continue
            yield turns.id
            for joined in graph.readers(turns.results[0]):
                yield from _retiled(graph, joined)


def _is_view(op: Op) -> bool:
    """Whether an op only gives an array another shape or name, or each element another type."""
    row = traits(op.kind)
    return op.kind not in BOUNDARY and (row.reshapes or row.renames or op.kind == "convert_element_type")


def _turns(graph: Graph, op: Op, last: int | None) -> bool:
    """Whether an op is a transpose that moves elements, and others into the `last` dims, if that is asked."""
    if op.kind != "transpose":
        return False
    shape = graph.tensors[op.operands[0]].aval.shape
    moved = [dim for dim in op.params["permutation"] if shape[dim] > 1]
    kept = sorted(moved)
    return moved != kept if last is None else moved[-last:] != kept[-last:]


def _retiled(graph: Graph, op: Op) -> Iterator[int]:
    """The op, if it is a reshape that splits the last dim or puts others into it."""
    if op.kind == "reshape":
        before, after = (graph.tensors[tensor].aval.shape for tensor in (op.operands[0], op.results[0]))
        if before[-1:] != after[-1:]:
            yield op.id
