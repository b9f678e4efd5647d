"""Expensive producers: results that XLA's GPU compiler stores as the backward pass would take longer to compute them again.

What fused ops compute is computed anew by every kernel that reads it. Of a function that takes many instructions (the error
function, a sine; in 16 bits, which are half as long to move, a hyperbolic tangent too) the result is stored beside what is
made of it, where another kernel reads it as well. Not where nothing but gradients read what is made of it, as of what is
computed once more in the backward pass: one kernel then makes both. Seen in schedules of jaxlib 0.10.2 for H100, of
`y = h * f(h)` between two matmuls for each function f.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.compiler.fusion.multi_output import reading_kernels
from planner.program.graph import Graph
from planner.rules.primitives import kinds_where, traits


def stored_for_backward(graph: Graph, fused: Sequence[bool], stored: Sequence[bool]) -> list[bool]:
    """Which tensors are in memory, with the results of expensive functions, given those that are without."""
    found = list(stored)
    kinds = kinds_where(lambda row: row.stored_up_to_bytes > 0)
    readers = reading_kernels(graph, fused, stored) if any(graph.of_kinds(kinds)) else []
    for op in graph.of_kinds(kinds):
        (tensor,) = op.results
        aval = graph.tensors[tensor].aval
        if stored[tensor] or not fused[op.id] or aval.itemsize > traits(op.kind).stored_up_to_bytes:
            continue
        kernels = sorted(readers[tensor])
        if len(kernels) > 1 and fused[kernels[0]]:
            made = [t for t in graph.ops[kernels[0]].results if graph.tensors[t].aval.size == aval.size]
            found[tensor] = any(_matmuls(graph, fused, readers[t]) > 1 for t in made)
    return found


def _matmuls(graph: Graph, fused: Sequence[bool], kernels: frozenset[int]) -> int:
    """How many matmuls or convolutions there are among kernels."""
    return sum(not fused[op] and traits(graph.ops[op].kind).matmul for op in kernels)
