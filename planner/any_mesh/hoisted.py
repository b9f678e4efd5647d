"""Hoisted casts: what a loop reads of a stack, or of what does not change, only to make it narrower, is narrowed before it.

XLA's TPU compiler moves a conversion to a narrower type above the slice that it reads and out of the loop: the narrow copy
of the whole stack lives from the first loop that reads it so until the last such loop ends. Where the body reads the slice
in its own type too, or computes with it first, nothing is moved. Seen in its buffer assignments.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.any_mesh.share import Share
from planner.program.graph import Graph
from planner.rules.primitives import traits

TAKEN_IN = ("loop_slice", "loop_const")
"""How a loop takes in what no trip changes."""

Hoisted = tuple[int, Share, int, int]
"""A tensor, in which of its bytes its narrow copy stands, and from when to when."""


def hoisted_casts(graph: Graph, spans: Sequence[tuple[int, int]]) -> list[Hoisted]:
    """The narrow copies of tensors that loops read through casts alone, from the spans of regions (op ids)."""
    lives: dict[tuple[int, str], tuple[float, int, int]] = {}
    narrowed: dict[int, frozenset[tuple[str, float]]] = {}
    for op in reversed(graph.ops):  # what is inside stands behind what enters it
        if op.kind not in TAKEN_IN:
            continue
        stack, (taken,) = op.operands[0], op.results
        casts = narrowed[taken] = _casts(graph, taken, narrowed)
        producer = graph.tensors[stack].producer
        if producer is not None and graph.ops[producer].kind in TAKEN_IN and _casts(graph, stack, narrowed):
            continue  # it is hoisted further
        for dtype, itemsize in casts:
            start, stop = spans[op.region]
            _, first, last = lives.get((stack, dtype), (0.0, start, stop))
            share = itemsize / graph.tensors[stack].aval.itemsize
            lives[stack, dtype] = share, min(first, start), max(last, stop)
    return [(stack, Share(tpu=share, elsewhere=0.0), start, stop) for (stack, _), (share, start, stop) in lives.items()]


def _casts(
    graph: Graph, tensor: int, narrowed: dict[int, frozenset[tuple[str, float]]]
) -> frozenset[tuple[str, float]]:
    """The types (and their item sizes in bytes) that a tensor is cast to, if whatever reads it makes it narrower first."""
    found = set[tuple[str, float]]()
    left = [tensor]
    while left:
        current = left.pop()
        if not graph.consumers[current] or current in graph.returned:
            return frozenset()
        for reader, _ in graph.consumers[current]:
            op = graph.ops[reader]
            made = graph.tensors[op.results[0]].aval if op.results else None
            if op.kind == "convert_element_type" and made is not None:
                if made.itemsize >= graph.tensors[current].aval.itemsize:
                    return frozenset()
                found.add((made.dtype, made.itemsize))
            elif op.kind in TAKEN_IN:
                inner = narrowed.get(op.results[0], frozenset())
                if not inner:
                    return frozenset()
                found |= inner
            elif traits(op.kind).carries or traits(op.kind).renames:
                left += op.results
            else:
                return frozenset()
    return frozenset(found)
