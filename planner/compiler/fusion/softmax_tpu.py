"""Softmaxes: what a TPU's compiler stores of those of what a matmul makes.

A row's greatest element, broadcast and taken from the row, it makes one op over the row's window, so that the matmul goes
on to the centred row and the sum of its exponentials: what stands is the centred row, in its own type, and neither the row
nor its greatest element. Seen in schedules of libtpu 0.0.42 for rows of up to 4,096 elements in arrays of three dims and
four; not where the row is a matmul's result, only widened: the greatest element is then taken before that. Where what is
made of the row is narrowed (weights in bfloat16) rows of up to 8,192 elements are centred; from 4,096 on, or where the
matmul reads what is cut out of a stack, it ends with the row, and a pass makes the centred one of it. Scores that are
read on their way to the row, as by the gradient of a tanh that bounds them, stand; then the row is centred only for narrow
weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.program.dataflow import reached, source_through
from planner.program.graph import Graph, Op
from planner.program.slots import BOUNDARY
from planner.rules.primitives import kinds_where, traits

LONGEST_ROW = 4096
LONGEST_NARROWED = 8192
"""The same where what is made of the row is narrowed; of 12,288 elements it is not centred."""
RANKS = (3, 4)
"""Of scores with groups of heads, which have five dims, the rows stand with their greatest elements."""


def stored_of_softmaxes(graph: Graph, fused: Sequence[bool], materialized: Sequence[bool]) -> list[bool]:
    """Which tensors stand in memory, given those that would if there were no softmaxes."""
    stored = list(materialized)
    for op in graph.of_kinds(kinds_where(lambda row: row.extreme)):
        _centre(graph, fused, stored, op)
    return stored


def _centre(graph: Graph, fused: Sequence[bool], stored: list[bool], op: Op) -> None:
    """Stores the centred rows of an op that takes the extreme of rows, and not the extreme."""
    (row,), (extreme,) = op.operands, op.results
    shape, axes = graph.tensors[row].aval.shape, op.params["axes"]
    if len(shape) not in RANKS or len(axes) != 1 or shape[axes[0]] > LONGEST_NARROWED:
        return
    length = shape[axes[0]]
    matmuls = [] if stored[row] or _widened(graph, row) else _producing_matmuls(graph, fused, row)
    if not matmuls:
        return
    readers = list(_readers(graph, extreme))
    centred = [reader.results[0] for reader in readers if reader.kind == "sub" and reader.operands[0] == row]
    made = list(_made_of(graph, fused, centred[0])) if len(centred) == 1 else []
    narrowed = any(graph.tensors[t].aval.itemsize < graph.tensors[row].aval.itemsize for t in made)
    if not narrowed and (length > LONGEST_ROW or not _made_for(graph, fused, row)):
        return
    if len(centred) == 1 and not any(stored[tensor] for tensor in made):
        stored[centred[0]] = True
        stacked = any(_cut_out(graph, t) for matmul in matmuls for t in matmul.operands)
        stored[row] = narrowed and (length >= LONGEST_ROW or stacked)
        stored[extreme] = stored[row] or len(readers) > 1


def _cut_out(graph: Graph, tensor: int) -> bool:
    """Whether a tensor is a part of another along its first dim, as queries are of queries, keys and values."""
    op = graph.maker(source_through(graph, tensor, lambda op: traits(op.kind).reshapes or traits(op.kind).renames))
    if op is None or not traits(op.kind).moves or len(op.operands) != 1:
        return False
    whole, part = (graph.tensors[t].aval for t in (*op.operands, op.results[0]))
    return whole.size > part.size and whole.shape[0] > part.shape[0]


def _widened(graph: Graph, tensor: int) -> bool:
    """Whether a tensor is another, only widened."""
    op = graph.maker(tensor)
    widths = [graph.tensors[t].aval.itemsize for t in (tensor, *(op.operands if op is not None else ()))]
    return op is not None and op.kind == "convert_element_type" and widths[1] < widths[0]


def _made_for(graph: Graph, fused: Sequence[bool], row: int) -> bool:
    """Whether all that passes compute on the way from matmuls to a row is for it alone."""
    return all(tensor == row or len(graph.consumers[tensor]) == 1 for tensor in _fused_producers(graph, fused, row))


def _producing_matmuls(graph: Graph, fused: Sequence[bool], tensor: int) -> list[Op]:
    """The matmuls that make what passes compute a tensor of, in its size."""
    makers = map(graph.maker, _fused_producers(graph, fused, tensor))
    return [op for op in makers if op is not None and not fused[op.id] and traits(op.kind).matmul]


def _fused_producers(graph: Graph, fused: Sequence[bool], tensor: int) -> Iterator[int]:
    """What passes compute a tensor of, in its size, itself included."""
    size = graph.tensors[tensor].aval.size

    def made_of(tensor: int) -> list[int]:
        op = graph.maker(tensor)
        passes = op is not None and fused[op.id] and op.kind not in BOUNDARY
        return [t for t in op.operands if graph.tensors[t].aval.size == size] if op is not None and passes else []

    return reached([tensor], made_of)


def _readers(graph: Graph, tensor: int) -> Iterator[Op]:
    """The ops that read a row's greatest element, through other names, broadcasts and bounds."""
    for op in graph.readers(tensor):
        bound = traits(op.kind).fused and any(not graph.tensors[t].aval.shape for t in op.operands)
        if traits(op.kind).reshapes or bound:
            yield from _readers(graph, op.results[0])
        else:
            yield op


def _made_of(graph: Graph, fused: Sequence[bool], tensor: int) -> Iterator[int]:
    """What passes make of a tensor in its size."""
    size = graph.tensors[tensor].aval.size

    def made(tensor: int) -> Iterator[int]:
        passes = (op for op in graph.readers(tensor) if fused[op.id])
        return (t for op in passes for t in op.results if graph.tensors[t].aval.size == size)

    return (other for other in reached([tensor], made) if other != tensor)
