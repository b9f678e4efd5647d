"""Grouped products: what compilers make of ragged dots, whose rows or summed elements come in groups.

XLA's TPU compiler multiplies every row with the weights of its own group, and since libtpu 0.0.50 sums over the elements of
every group alone. Before, it computed such a sum (the gradient of the weights) for every group over all elements, those of
other groups masked on the way. Its compilers for other platforms put either down to one product: an operand stands once for
every group, masked, and both do of a sum. Seen in programs of libtpu 0.0.42 and 0.0.50 and of jaxlib 0.10.2 for H100.

For v5p such a sum also writes its mask to memory, one byte for every group and element, each in a row of 128 lanes, which
nothing reads.

The TPU's kernel takes weights as (groups, summed, columns). Those of a gradient of rows, whose summed dim is the last, are
copied for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from planner.compiler.buffers.buffer import Buffer
from planner.compiler.layout.tiles import TILE_LANES
from planner.compiler.model import CompilerModel
from planner.program.graph import Aval, Graph, Op

KIND = "ragged_dot_general"
WEIGHTS = 1
"""The position of the operand that has one matrix for every group."""


def times_computed(graph: Graph, op: Op, compiler: CompilerModel) -> float:
    """How many times the flops of an op are computed: once for every group that is masked."""
    if op.kind != KIND:
        return 1.0
    every_group = compiler.runs("ragged-dot-expander") or (compiler.runs("masked-ragged-sums") and _sums(op))
    return float(_groups(graph, op)) if every_group else 1.0


def masked(graph: Graph, op: Op) -> tuple[int, ...]:
    """The positions of the operands that are in memory once for every group where the op is expanded."""
    if op.kind != KIND or _groups(graph, op) <= 1:
        return ()
    return (0, 1) if _sums(op) else (0,)


def times_moved(graph: Graph, op: Op, position: int) -> float:
    """How often the bytes of an operand of an expanded op are moved: read, and written and read for every group."""
    return 1.0 + 2.0 * _groups(graph, op) if position in masked(graph, op) else 1.0


def masked_buffers(graph: Graph) -> list[Buffer]:
    """The masked operands of expanded products, in memory for every group while a product is computed."""
    return [
        Buffer(
            tensor=op.operands[position],
            start=op.id,
            stop=op.id + 1,
            fraction=float(_groups(graph, op)),
        )
        for op in graph.of_kinds((KIND,))
        for position in masked(graph, op)
    ]


def transposed_buffers(graph: Graph) -> list[Buffer]:
    """The weights that are copied for their kernels, in memory beside themselves meanwhile."""
    ops = graph.of_kinds((KIND,))
    return [
        Buffer(tensor=op.operands[WEIGHTS], start=op.id, stop=op.id + 1) for op in ops if has_transposed_weights(op)
    ]


def group_mask(graph: Graph, op: Op) -> Aval | None:
    """The mask of a sum over elements that come in groups, a row of lanes for each; None where an op is no such sum."""
    if op.kind != KIND or not _sums(op):
        return None
    elements = math.prod(graph.tensors[op.operands[0]].aval.shape[dim] for dim in _summed(op))
    return Aval(shape=(_groups(graph, op), elements, TILE_LANES), dtype="bool", itemsize=1.0)


def mask_buffers(graph: Graph) -> list[Buffer]:
    """The masks of sums over elements that come in groups."""
    masks = ((op, group_mask(graph, op)) for op in graph.of_kinds((KIND,)))
    return [Buffer(op.results[0], op.id, op.id + 1, beside=mask) for op, mask in masks if mask is not None]


def multiplies_rows(op: Op) -> bool:
    """Whether an op is a ragged dot of rows that come in groups."""
    return op.kind == KIND and bool(op.params["ragged_dot_dimension_numbers"].rhs_group_dimensions)


def has_transposed_weights(op: Op) -> bool:
    """Whether an op is a ragged dot of weights whose summed dim lies inside of their columns."""
    if op.kind != KIND:
        return False
    numbers = op.params["ragged_dot_dimension_numbers"]
    (_, contracted), (_, batch) = numbers.dot_dimension_numbers
    dims = range(len(contracted) + len(batch) + len(numbers.rhs_group_dimensions) + 1)
    columns = set(dims).difference(contracted, batch, numbers.rhs_group_dimensions)
    return bool(numbers.rhs_group_dimensions) and max(contracted) > max(columns)


def _sums(op: Op) -> bool:
    """Whether what is summed over comes in groups."""
    return any(dim in _summed(op) for dim in op.params["ragged_dot_dimension_numbers"].lhs_ragged_dimensions)


def _summed(op: Op) -> Sequence[int]:
    """The dims of its first operand that an op sums over."""
    (contracted, _), _ = op.params["ragged_dot_dimension_numbers"].dot_dimension_numbers
    return contracted


def _groups(graph: Graph, op: Op) -> int:
    """How many groups there are; 1 where it is batches that come in groups."""
    numbers = op.params["ragged_dot_dimension_numbers"]
    _, (batch, _) = numbers.dot_dimension_numbers
    sizes = graph.tensors[op.operands[2]].aval.shape
    return 1 if any(dim in batch for dim in numbers.lhs_ragged_dimensions) else sizes[-1]
