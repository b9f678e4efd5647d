"""Recalled: what XLA's GPU compiler stores in the forward pass as the backward pass would take longer to compute it again.

What passes compute is computed anew by every kernel that reads it. Of a function that takes many instructions (the error
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


def recalled(graph: Graph, passes: Sequence[bool], stored: Sequence[bool]) -> list[bool]:
    """Which tensors stand in memory, with those that are recalled, given those that would without."""
    found = list(stored)
    kinds = kinds_where(lambda row: row.recalled_up_to > 0)
    readers = reading_kernels(graph, passes, stored) if any(graph.of_kinds(kinds)) else []
    for op in graph.of_kinds(kinds):
        (tensor,) = op.results
        aval = graph.tensors[tensor].aval
        if stored[tensor] or not passes[op.id] or aval.itemsize > traits(op.kind).recalled_up_to:
            continue
        kernels = sorted(readers[tensor])
        if len(kernels) > 1 and passes[kernels[0]]:
            made = [t for t in graph.ops[kernels[0]].results if graph.tensors[t].aval.size == aval.size]
            found[tensor] = any(_matmuls(graph, passes, readers[t]) > 1 for t in made)
    return found


def _matmuls(graph: Graph, passes: Sequence[bool], kernels: frozenset[int]) -> int:
    """How many matmuls or convolutions there are among kernels."""
    return sum(not passes[op] and traits(graph.ops[op].kind).matmul for op in kernels)
