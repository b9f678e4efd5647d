"""Softmaxes: what a TPU's compiler stores of those of what a matmul makes.

A row's greatest element, broadcast and taken from the row, it makes one op over the row's window, so that the matmul goes
on to the centred row and the sum of its exponentials: what stands is the centred row, in its own type, and neither the row
nor its greatest element. Seen in schedules of libtpu 0.0.42 for rows of up to 4,096 elements in arrays of three dims and
four; not where the row is a matmul's result, only widened: the greatest element is then taken before that. Where what is
made of the row is narrowed (weights in bfloat16) rows of up to 8,192 elements are centred; from 4,096 on, or where the
matmul reads what is cut out of a stack, it ends with the row, and a pass makes the centred one of it. Scores that are
read on their way to the row, as by the gradient of a tanh that bounds them, stand; then the row is centred only for narrow
weights. Scores with groups of heads, which have five dims, are centred where a device holds several elements along each: a
dim of one is left out of the greatest elements, and what puts them back on the row is no window then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from planner.program.dataflow import reached, source_through
from planner.program.graph import Graph, Op
from planner.program.jaxpr.origins import is_forward
from planner.program.slots import BOUNDARY
from planner.rules.primitives import kinds_where, traits

LONGEST_ROW = 4096
LONGEST_NARROWED = 8192
"""The same where what is made of the row is narrowed; of 12,288 elements it is not centred."""
RANKS = (3, 4)
"""Of these the rows are centred on any device; of more dims, as with groups of heads, see `windows_of`."""
LONGEST_OF_GROUPS = 2048
"""The longest of those with more dims that a matmul of the forward pass centres; of 3,072 elements a pass does."""


class _Softmax(NamedTuple):
    """A softmax of what matmuls make.

    `row`, its `extreme` and the `centred` row are tensors, as are the `weights`: what passes make of the centred row in its
    size. `narrowed`: some of these are of a narrower type.
    """

    row: int
    extreme: int
    centred: int
    weights: tuple[int, ...]
    matmuls: tuple[Op, ...]
    length: int
    rank: int
    narrowed: bool
    waits_once: bool


def stored_of_softmaxes(graph: Graph, fused: Sequence[bool], materialized: Sequence[bool]) -> list[bool]:
    """Which tensors stand in memory, given those that would if there were no softmaxes."""
    stored = list(materialized)
    for op in graph.of_kinds(kinds_where(lambda row: row.extreme)):
        found = _softmax(graph, fused, op)
        if found is None or found.rank not in RANKS or any(stored[t] for t in (found.row, *found.weights)):
            continue
        stored[found.centred] = True
        stacked = any(_cut_out(graph, t) for matmul in found.matmuls for t in matmul.operands)
        stored[found.row] = found.narrowed and (found.length >= LONGEST_ROW or stacked)
        stored[found.extreme] = stored[found.row] or not found.waits_once
    return stored


class Window(NamedTuple):
    """A row that is centred by devices that hold several elements along each of its many dims, `several`.

    On others it stands with its greatest element, and a pass sums the exponentials. `times` its bytes are moved beyond
    that: 1 where that pass writes the centred row, -1 where the matmul that makes the row centres it, and sums. Both are
    seen of rows of 4,096 elements that are computed again: in attention by blocks of queries the latter.
    """

    row: int
    several: tuple[int, ...]
    times: int


def windows_of(graph: Graph, fused: Sequence[bool]) -> dict[int, Window]:
    """The rows of more dims that are centred on some devices, by the sum of their exponentials."""
    found = dict[int, Window]()
    for op in graph.of_kinds(kinds_where(lambda row: row.extreme)):
        softmax = _softmax(graph, fused, op)
        if softmax is None or softmax.rank in RANKS or not softmax.narrowed:
            continue
        if is_forward(op.name):
            times = 1 if softmax.length > LONGEST_OF_GROUPS else -1
        else:
            times = (softmax.length > LONGEST_ROW) - (softmax.length < LONGEST_ROW)
        window = Window(softmax.row, tuple(range(softmax.rank)), times)
        exponentials = [tensor for reader in graph.readers(softmax.centred) for tensor in reader.results]
        for summing in (reader for tensor in exponentials for reader in graph.readers(tensor)):
            if summing.kind == "reduce_sum" and summing.params["axes"] == op.params["axes"]:
                found[summing.results[0]] = window
    return found


def _softmax(graph: Graph, fused: Sequence[bool], op: Op) -> _Softmax | None:
    """The softmax of an op that takes the extreme of rows, if its rows may be centred."""
    (row,), (extreme,) = op.operands, op.results
    shape, axes = graph.tensors[row].aval.shape, op.params["axes"]
    if len(shape) < min(RANKS) or len(axes) != 1 or shape[axes[0]] > LONGEST_NARROWED:
        return None
    length = shape[axes[0]]
    matmuls = [] if _widened(graph, row) else _producing_matmuls(graph, fused, row)
    if not matmuls:
        return None
    readers = list(_readers(graph, extreme))
    centred = [reader.results[0] for reader in readers if reader.kind == "sub" and reader.operands[0] == row]
    if len(centred) != 1:
        return None
    weights = tuple(_made_of(graph, fused, centred[0]))
    narrowed = any(graph.tensors[t].aval.itemsize < graph.tensors[row].aval.itemsize for t in weights)
    if not narrowed and (length > LONGEST_ROW or not _made_for(graph, fused, row)):
        return None
    return _Softmax(
        *(row, extreme, centred[0], weights, tuple(matmuls), length, len(shape), narrowed), waits_once=len(readers) == 1
    )


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
