"""Sliced operands: parts of arrays that XLA's GPU compiler copies for the product that reads them.

The kernels of matmuls and convolutions read whole arrays. Where a device has more of an operand in memory than its part of
the product reads, a kernel copies that first. What passes make is made of that part alone, and the slices of a loop's stack
are copied anyhow.
"""

from __future__ import annotations

from planner.compiler.program import CompiledProgram
from planner.decisions.decision_graph import Flow
from planner.program.dataflow import source_through
from planner.rules.primitives import traits


def sliced_operands(program: CompiledProgram, flow: Flow) -> frozenset[int]:
    """The transfers of tensors in memory to products, whose slices are copies."""
    graph = program.graph

    def stored(tensor: int) -> bool:
        source = source_through(graph, tensor, lambda op: traits(op.kind).renames or traits(op.kind).turns)
        op = graph.maker(source)
        return program.materialized[source] and (op is None or op.kind != "loop_slice")

    found: list[int] = []
    for transfer in flow.transfers:
        readers = flow.reads_of(transfer)
        products = any(traits(graph.ops[op].kind).matmul and not program.fused[op] for op, _ in readers)
        if products and not transfer.reduced and stored(transfer.tensor):
            found.append(transfer.id)
    return frozenset(found)
