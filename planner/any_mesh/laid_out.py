"""Laid out anew: what a TPU stores because a reshape cannot be read where its operand stands.

Its memory is in tiles whose minor dim has 128 lanes. A reshape that splits that dim into parts of fewer lanes, so that
parts are reduced (the groups of channels of a group norm), moves every element: XLA's TPU compiler stores its result, as
it is read, from the first pass over it to the last, be it in the backward pass. Seen in its buffer assignments.
"""

from __future__ import annotations

from collections.abc import Sequence

from cost_models.compilers import TILE_LANES
from planner.any_mesh.buffer import Buffer
from planner.any_mesh.share import Share
from planner.program.graph import Graph
from planner.rules.primitives import kinds_where

ON_TPU = Share(tpu=1.0, elsewhere=0.0)
_REDUCTIONS = kinds_where(lambda row: row.fused and row.partial_on_parts)


def laid_out_anew(
    graph: Graph, passes: Sequence[bool], materialised: Sequence[bool], last: Sequence[int]
) -> list[Buffer]:
    """The results of reshapes that stand on a TPU alone, from what stands anyway, and until when each tensor is needed."""
    found: list[Buffer] = []
    for op in graph.of_kinds(("reshape",)):
        before, tensor = graph.tensors[op.operands[0]].aval.shape, op.results[0]
        after = graph.tensors[tensor].aval.shape
        if not passes[op.id] or not before or not after or after[-1] >= min(before[-1], TILE_LANES):
            continue
        readers = [graph.ops[reader] for reader, _ in graph.consumers[tensor]]
        if len(readers) == 1 and readers[0].kind == "convert_element_type":
            (tensor,) = readers[0].results
            readers = [graph.ops[reader] for reader, _ in graph.consumers[tensor]]
        if not materialised[tensor] and any(reader.kind in _REDUCTIONS for reader in readers):
            start = graph.tensors[tensor].producer or 0
            found.append(Buffer(tensor=tensor, start=start, stop=max(last[tensor], start + 1), share=ON_TPU))
    return found
