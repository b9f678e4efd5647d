"""Row order: which tensors lie row by row on a TPU, however much their tiles are filled up.

A tensor lies as takes the least padding, as a rule. What a lookup makes of a table that lies by rows, what a scatter adds
to one (see `gathered_rows`), and what a ragged dot makes of rows, are rows, which XLA's TPU compiler reads and writes as a
whole: the last dim lies innermost, filled up to the 128 lanes of a tile. So does a table that the program computes. What
passes make of such rows, or such rows of, element by element, lies as they do: of messages of 8 features along the edges of
a graph every pass moves 16 times their bytes, and of layers that save them for the backward pass each stack takes as much
more memory.

What a Pallas kernel reads and writes lies so, too: its layouts are those of the kernel's blocks, and a matmul writes its
operands in them. So do the stacks that loops save of it, such as queries, keys and values with 64 features for the
backward kernels of an attention, which take twice their bytes.

Not so where rows are read beside what a matmul makes, such as features of edges that are added to those of nodes: the rows
are copied to lie as that does, and the result is copied to be scattered. So are rows of several dims that are saved for the
backward pass and read beside such a tensor. The backward pass copies what was saved otherwise where it needs it in rows.
Seen in schedules of libtpu 0.0.42.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

from planner.compiler.fusion.ragged_dot import multiplies_rows
from planner.program.graph import Graph, Op
from planner.program.slots import BOUNDARY
from planner.rules.primitives import kinds_where, traits

_STACKED = ("loop_stack", "loop_slice")
"""What a loop saves of such rows lies as they do."""


class InRows(NamedTuple):
    """How a tensor lies: its last `rank` dims are rows of a table that has so many bytes in a column.

    These say whether the table lies by rows (`gathered_rows.lies_by_rows`). With `single`, it does so only on devices where
    a row has but one dim of several elements.
    """

    column: float
    rank: int
    single: bool = False


_ALWAYS = InRows(column=0.0, rank=1)
"""The rows that a ragged dot multiplies, and all that a Pallas kernel reads and writes, lie by rows, however filled up."""


def in_row_order(graph: Graph, fused: Sequence[bool]) -> dict[int, InRows]:
    """The tensors that lie row by row where their table does, given the ops that are parts of passes.

    Of several tables the one with the shortest column.
    """
    found: dict[int, InRows] = {}
    of_matmuls = _of_matmuls(graph, fused)
    for op in graph.of_kinds(("pallas_call",)):
        for tensor in (*op.operands, *op.results):
            if len(graph.tensors[tensor].aval.shape) > 1 and graph.tensors[tensor].producer is not None:
                _add(found, tensor, _ALWAYS)
                of_matmuls[tensor] = False
    for op in graph.of_kinds(kinds_where(lambda row: row.updates is not None)):
        update, numbers = op.operands[traits(op.kind).updates or 0], op.params.get("dimension_numbers")
        rows = _rows(graph, update, getattr(numbers, "update_window_dims", ()), op.results[0])
        if rows is not None:
            _follow_back(graph, fused, update, rows, of_matmuls, found)
    for op in graph.ops:
        if traits(op.kind).picks and not fused[op.id]:
            numbers = op.params.get("dimension_numbers")
            rows = _rows(graph, op.results[0], getattr(numbers, "offset_dims", ()), op.operands[0])
            if rows is not None:
                _add(found, op.results[0], rows)
                if graph.tensors[op.operands[0]].producer is not None:  # an argument lies as all arguments do
                    _add(found, op.operands[0], rows)
        elif multiplies_rows(op):
            _add(found, op.results[0], _ALWAYS)
        elif op.kind in _STACKED:
            (operand, *_), (result,) = op.operands, op.results
            if operand in found and not of_matmuls[operand]:
                beside = any(of_matmuls[t] for t in _element_by_element(graph, fused, operand))
                _add(found, result, found[operand]._replace(single=beside or found[operand].single))
        elif fused[op.id]:
            for operand in op.operands:
                for result in op.results if operand in found else ():
                    if keeps_layout(graph, op, operand, result) and not of_matmuls[result]:
                        _add(found, result, found[operand])
    for op in graph.of_kinds(("loop_slice",)):
        (saved,) = op.results
        for result in _element_by_element(graph, fused, saved) if saved not in found else ():
            if result in found:
                _add(found, saved, found[result])
    return found


def _element_by_element(graph: Graph, fused: Sequence[bool], tensor: int) -> Iterator[int]:
    """What fused ops make of a tensor element by element."""
    for op in graph.readers(tensor):
        yield from (t for t in op.results if fused[op.id] and keeps_layout(graph, op, tensor, t))


def _of_matmuls(graph: Graph, fused: Sequence[bool]) -> list[bool]:
    """For every tensor whether it is what a matmul makes, in any shape, or is computed of that element by element."""
    found = [False] * len(graph.tensors)
    size = [tensor.aval.size for tensor in graph.tensors]
    for op in graph.ops:
        row = traits(op.kind)
        for result in op.results:
            found[result] = (row.matmul and not fused[op.id]) or any(
                (row.reshapes and size[operand] == size[result])
                or row.renames
                or (fused[op.id] and keeps_layout(graph, op, operand, result))
                for operand in op.operands
                if found[operand]
            )
    return found


def _add(found: dict[int, InRows], tensor: int, rows: InRows) -> None:
    found[tensor] = min(rows, found.get(tensor, rows))


def _rows(graph: Graph, tensor: int, window: Sequence[int], table: int) -> InRows | None:
    """The rows of a table that are the last dims of a tensor, those of a window; None where they are single elements.

    Nor where a window goes on in dims before those that tell windows apart, as in a batch of lookups at the same places:
    what is looked up then is no row.
    """
    shape, rank = graph.tensors[tensor].aval.shape, 0
    while len(shape) - 1 - rank in window:
        rank += 1
    if any(shape[dim] > 1 for dim in window if dim < len(shape) - rank):
        return None
    row = prod(shape[len(shape) - rank :])
    return InRows(graph.tensors[table].aval.bytes / row, rank) if rank and row > 1 and shape[-1] > 1 else None


def _follow_back(
    graph: Graph,
    fused: Sequence[bool],
    tensor: int,
    rows: InRows,
    of_matmuls: Sequence[bool],
    found: dict[int, InRows],
) -> None:
    """Adds a tensor and what it is made of element by element, without what matmuls have a part in."""
    left = [tensor]
    while left:
        tensor = left.pop()
        op = graph.maker(tensor)
        if op is not None:
            _add(found, tensor, rows)
            own = op.operands if fused[op.id] and not of_matmuls[tensor] else ()
            left += [of for of in own if of not in found and keeps_layout(graph, op, of, tensor)]


def slices_copied_to_order(graph: Graph, orders: Mapping[int, object]) -> frozenset[int]:
    """The ops that take slices of stacks, and copy them, as they lie otherwise than they are read: in rows, or in tiles."""

    def is_copied(op: Op) -> bool:
        stack, read = orders.get(op.operands[0]), orders.get(op.results[0])
        return read is not None and (stack is None or (isinstance(read, InRows) and not isinstance(stack, InRows)))

    return frozenset(op.id for op in graph.of_kinds(("loop_slice",)) if is_copied(op))


def keeps_layout(graph: Graph, op: Op, operand: int, result: int) -> bool:
    """Whether a result lies as an operand does: it has its shape, in its order."""
    row = traits(op.kind)
    if op.kind in BOUNDARY or not row.fused or row.turns:
        return False
    return graph.tensors[operand].aval.shape == graph.tensors[result].aval.shape
