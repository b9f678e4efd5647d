"""Row reductions after which XLA's GPU compiler goes on in the same kernel, as for a softmax.

A kernel of loops ends with what it reduces. One that Triton makes holds rows as a whole: it begins as a diamond, a
reduction whose result alone is put back on the row that it is of (`SoftmaxRewriterTriton` in openxla/xla), and takes in
what is computed of it, further reductions of rows too, as far as that is not written. Where the reduced row is read
elsewhere, as by a backward pass, or what it is put back on is not what was reduced, nothing goes on. Seen in schedules of
jaxlib 0.10.2 for H100, of softmaxes and their gradients.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.program.graph import Graph, Op
from planner.program.slots import BOUNDARY
from planner.rules.primitives import traits


def rows_kept(graph: Graph, fused: Sequence[bool], materialized: Sequence[bool]) -> frozenset[int]:
    """The ops that reduce rows within a kernel that goes on with these."""
    return _rows(graph, fused, materialized)[0]


def made_with_rows(graph: Graph, fused: Sequence[bool], materialized: Sequence[bool]) -> frozenset[int]:
    """The tensors that such kernels make, in memory or not."""
    return _rows(graph, fused, materialized)[1]


def _rows(graph: Graph, fused: Sequence[bool], materialized: Sequence[bool]) -> tuple[frozenset[int], frozenset[int]]:
    found, ends, inside, made = set[int](), set[int](), set[int](), set[int]()
    for op in graph.ops:
        if op.kind in BOUNDARY or not fused[op.id]:
            continue
        if _is_of_rows(graph, op):
            end = _put_back(graph, fused, op)
            if end is not None and (op.operands[0] in inside or _is_diamond(graph, op, end)):
                found.add(op.id)
                ends.add(end.id)
        elif op.id in ends or not inside.isdisjoint(op.operands):
            inside.update(tensor for tensor in op.results if not materialized[tensor])
            made.update(op.results)
    return frozenset(found), frozenset(made)


def _is_of_rows(graph: Graph, op: Op) -> bool:
    """Whether an op reduces an array along its last dim alone."""
    axes = op.params.get("axes")
    return bool(axes) and axes == (len(graph.tensors[op.operands[0]].aval.shape) - 1,) and len(op.results) == 1


def _put_back(graph: Graph, fused: Sequence[bool], reduction: Op) -> Op | None:
    """The pass that alone reads a reduced row, as it is or computed of it alone, beside an array of whole rows."""
    size, (tensor,) = graph.tensors[reduction.operands[0]].aval.size, reduction.results
    while len(graph.consumers[tensor]) == 1:
        op = graph.ops[graph.consumers[tensor][0][0]]
        if op.kind in BOUNDARY or not fused[op.id] or len(op.results) != 1:
            return None
        if any(t != tensor and graph.tensors[t].aval.size == size for t in op.operands):
            return op
        if any(t != tensor and graph.tensors[t].aval.size > 1 for t in op.operands):
            return None
        (tensor,) = op.results
    return None


def _is_diamond(graph: Graph, op: Op, end: Op) -> bool:
    """Whether what a reduced row is put back on is what was reduced."""
    size = graph.tensors[op.operands[0]].aval.size
    reduced = _of(graph, op.operands[0])
    return any(graph.tensors[t].aval.size == size and reduced & _of(graph, t) for t in end.operands)


def _of(graph: Graph, tensor: int) -> set[int]:
    """A tensor and those of which alone it is computed element by element."""
    found = {tensor}
    while (op := graph.maker(tensor)) is not None:
        whole = {t for t in op.operands if graph.tensors[t].aval.size == graph.tensors[tensor].aval.size}
        if op.kind in BOUNDARY or not traits(op.kind).fused or len(whole) != 1 or len(op.operands) > len(whole) + 1:
            break
        (tensor,) = whole
        found.add(tensor)
    return found
