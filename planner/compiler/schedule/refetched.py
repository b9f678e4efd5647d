"""Refetching: a tensor that is gathered once more where it is read again much later, instead of being held in between.

Compilers merge equal collectives, and hold what they bring from its first reader to its last: weights of layers that are
written out, from the forward pass to the backward pass. Fetched from behind an optimization barrier it is another value to
them. With the tensor alone behind it a TPU's compiler moves the collective out of a loop of microbatches; so the barrier
takes in a value that is made late, too, of what the reader reads beside the tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.compiler.program import CompiledProgram
from planner.decisions.decision_graph import Read
from planner.program.dataflow import reached
from planner.program.slots import BOUNDARY


def waits_for(program: CompiledProgram, reads: Sequence[Read]) -> int | None:
    """The tensor that a fetch of its own for these reads of one tensor can wait for; None where there is none.

    It is the last in memory before the first of them that its op needs beside what is fetched, in the same body.
    """
    graph = program.graph
    ops = [graph.ops[op] for op, _ in reads]
    first = min(ops, key=lambda op: op.id, default=None)
    if first is None or any(op.kind in BOUNDARY or op.path[:-1] != first.path[:-1] for op in ops):
        return None

    def here(tensor: int) -> bool:
        maker = graph.maker(tensor)
        return maker is not None and maker.kind not in BOUNDARY and maker.path[:-1] == first.path[:-1]

    def made_of(tensor: int) -> Sequence[int]:
        maker = graph.maker(tensor)
        return () if maker is None or program.materialized[tensor] else [t for t in maker.operands if here(t)]

    fetched = {graph.ops[op].operands[position] for op, position in reads}
    beside = [tensor for tensor in first.operands if tensor not in fetched and here(tensor)]
    found = [tensor for tensor in reached(beside, made_of) if program.materialized[tensor]]
    return max(found, key=lambda tensor: graph.tensors[tensor].producer or 0, default=None)
