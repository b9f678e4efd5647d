"""Hoisted casts: what a loop reads of a stack, or of what does not change, only to make it narrower, is narrowed before it.

XLA's TPU compiler moves a conversion to a narrower type above the slice that it reads and out of the loop: the narrow copy
of the whole stack lives from the first loop that reads it so until the last such loop ends. Where the body reads the slice
in its own type too, or computes with it first, nothing is moved; one matmul converts what it alone reads itself. Seen in
its buffer assignments.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.compiler.buffers.buffer import Buffer
from planner.compiler.simplify.convert_mover import NarrowReads
from planner.program.graph import Graph
from planner.program.slots import TAKEN_IN
from planner.rules.primitives import traits


def hoisted_casts(
    graph: Graph, narrow: NarrowReads, spans: Sequence[tuple[int, int]], materialized: Sequence[bool]
) -> list[Buffer]:
    """The narrow copies of tensors that loops read through casts alone, from the spans of regions (op ids).

    A materialized tensor that all its readers want narrow is made so.
    """
    lives: dict[int, tuple[float, int, int]] = {}
    cast: set[int] = set()
    for op in reversed(graph.ops):  # what is inside stands behind what enters it
        if op.kind not in TAKEN_IN:
            continue
        stack, (taken,) = op.operands[0], op.results
        itemsize = graph.tensors[stack].aval.itemsize
        width = narrow.width(taken)
        if width >= itemsize or not _is_cast(graph, taken, cast):
            continue
        cast.add(taken)
        maker = graph.maker(stack)
        if maker is not None and maker.kind in TAKEN_IN and narrow.width(stack) < itemsize:
            continue  # it is hoisted further
        if maker is not None and materialized[stack] and narrow.width(stack) <= width:
            continue  # it is made so narrow
        start, stop = spans[op.region]
        fraction, first, last = lives.get(stack, (0.0, start, stop))
        lives[stack] = max(fraction, width / itemsize), min(first, start), max(last, stop)
    return [Buffer(stack, start, stop, fraction) for stack, (fraction, start, stop) in lives.items()]


def _is_cast(graph: Graph, tensor: int, cast: set[int]) -> bool:
    """Whether what reads a tensor narrow has it cast: all but a single matmul, which does so itself."""
    reads = 0
    left = [tensor]
    while left:
        for reader, _ in graph.consumers[left.pop()]:
            op = graph.ops[reader]
            if op.kind == "convert_element_type" or (op.kind in TAKEN_IN and op.results[0] in cast):
                return True
            if traits(op.kind).matmul:
                reads += 1
            else:
                left += op.results
    return reads > 1
