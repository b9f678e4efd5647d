"""CopiedSlice slices: what a matmul reads of a stack that does not lie in memory as it multiplies it.

A matrix unit takes the two dims that lie innermost. A cache of shape (layers, batch, length, heads, width) whose heads are
a batch of the product is turned around on the way, and XLA's TPU compiler then no longer makes the slice part of the
product: it is copied out of the stack first, in the type of the product's operand. A product with a vector is none of the
matrix unit's.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import NamedTuple

from planner.compiler.buffers.copy_insertion import on_donated
from planner.program.graph import Graph, Op
from planner.program.slots import BOUNDARY
from planner.rules.primitives import kinds_where, traits

NEXT_TO_MINOR = -2


class CopiedSlice(NamedTuple):
    """An operand that is read from a slice of a donated stack, elements of `itemsize` bytes, and copied for it.

    It is not where a device holds a single element along the `dim` next to the innermost.
    """

    position: int
    itemsize: float
    dim: int


def copied_slices(graph: Graph) -> dict[int, tuple[CopiedSlice, ...]]:
    """The operands of matmuls that are slices copied for them, by op."""
    kept = on_donated(graph)
    found: dict[int, tuple[CopiedSlice, ...]] = {}
    met = set[int]()
    for op in graph.of_kinds(kinds_where(lambda row: row.product is not None)) if kept else ():
        copied: list[CopiedSlice] = []
        for position, dim in _outside(graph, op):
            picked = _picked(graph, op.operands[position], kept)
            if picked is not None and picked.id not in met:
                met.add(picked.id)
                copied.append(CopiedSlice(position, graph.tensors[picked.operands[0]].aval.itemsize, dim))
        if copied:
            found[op.id] = tuple(copied)
    return found


def _outside(graph: Graph, op: Op) -> list[tuple[int, int]]:
    """The operands of a product of matrices with a batch as the dim next to the innermost, and that dim."""
    if op.kind != "dot_general":
        return []
    contracted, batch = op.params["dimension_numbers"]
    found: list[tuple[int, int]] = []
    for position in range(2):
        shape, other = (graph.tensors[op.operands[i]].aval.shape for i in (position, 1 - position))
        own = {*contracted[1 - position], *batch[1 - position]}
        vector = math.prod(extent for dim, extent in enumerate(other) if dim not in own) == 1
        dim = len(shape) + NEXT_TO_MINOR
        if dim in batch[position] and not vector:
            found.append((position, dim))
    return found


def _picked(graph: Graph, tensor: int, kept: Collection[int]) -> Op | None:
    """The slice of a stack from which a tensor is computed element by element; None where there is none."""
    op = graph.maker(tensor)
    if op is None or op.kind in BOUNDARY:
        return None
    row = traits(op.kind)
    if row.picks:
        return op if op.operands[0] in kept else None
    if not row.fused:
        return None
    shape = graph.tensors[tensor].aval.shape
    for operand in op.operands:
        before = graph.tensors[operand].aval
        if before.size == math.prod(shape) and before.shape[NEXT_TO_MINOR:] == shape[NEXT_TO_MINOR:]:
            found = _picked(graph, operand, kept)
            if found is not None:
                return found
    return None
