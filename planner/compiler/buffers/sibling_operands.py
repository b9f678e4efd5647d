"""Buffers of tensors that fused ops compute, which are in memory all the same while several kernels read them."""

from __future__ import annotations

from collections.abc import Sequence

from planner.compiler.buffers.buffer import Buffer
from planner.compiler.fusion.sibling_matmuls import matmul_ranks, side_by_side
from planner.program.graph import Graph
from planner.rules.primitives import traits


def sibling_operands(graph: Graph, fused: Sequence[bool], materialized: Sequence[bool]) -> list[Buffer]:
    """The buffers of tensors that a fused op computes for several matmuls side by side, stored while these run.

    Matmuls far apart (a forward and its backward one) compute them each for themselves.
    """
    matmuls = matmul_ranks(graph, fused)
    found: list[Buffer] = []
    for tensor in graph.tensors:
        if materialized[tensor.id] or len(graph.consumers[tensor.id]) < 2:
            continue
        for first, second in side_by_side(graph, matmuls, tensor.id):
            found.append(Buffer(tensor=tensor.id, start=first, stop=second + 1))
    return found


def widened_siblings(graph: Graph, materialized: Sequence[bool], last: Sequence[int]) -> list[Buffer]:
    """The buffers of narrow results of matmuls that are in memory widened, too: fused ops go on reading the narrow one."""
    found: list[Buffer] = []
    for op in graph.of_kinds(("convert_element_type",)):
        (narrow,), (wide,) = op.operands, op.results
        maker = graph.maker(narrow)
        widens = graph.tensors[narrow].aval.itemsize < graph.tensors[wide].aval.itemsize
        if widens and materialized[wide] and maker is not None and traits(maker.kind).matmul:
            start = max(last[narrow], maker.id + 1)
            if last[wide] > start:
                found.append(Buffer(tensor=narrow, start=start, stop=last[wide]))
    return found
