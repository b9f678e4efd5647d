"""Layout of what is multiplied: which dims of a tensor lie in tiles because a product reads or makes it, on a TPU.

A product of matrices reads tiles of a dim that it contracts and one that it keeps, and makes them of a dim of either
operand. The dims of a batch lie outside of them: scores of 49 queries and keys take three times their bytes, whatever the
number of heads. A convolution is a product for every place in space, of a matrix of batch and features and one of the
features of its window. So these two dims lie in the tiles, either way round, and space lies outside of them: an image of 32
features takes four times its bytes, whatever its extents in space. Passes, reshapes of dims outside of the tiles, pooling,
and what joins or cuts images leave it so. Seen in schedules of libtpu 0.0.42, of 1 to 128 images with 32 to 256 features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from planner.compiler.layout.row_major_lanes import InRows, keeps_layout
from planner.compiler.simplify.convert_mover import is_by_vector
from planner.program.graph import Graph, Op
from planner.program.slots import BOUNDARY
from planner.rules.primitives import traits


class InTiles(NamedTuple):
    """The dims of a tensor of which one of either side lies in its tiles: those two that take the fewest bytes so."""

    first: tuple[int, ...]
    second: tuple[int, ...]

    def outside(self, more: int) -> InTiles:
        """The same of a tensor with so many more dims outside of these."""
        return InTiles(*(tuple(dim + more for dim in side) for side in self))

    @property
    def outermost(self) -> int:
        """The first of the dims."""
        return min(min(side) for side in self)


Order = InRows | InTiles
"""How a tensor lies that does not lie as takes the least padding."""


def of_convolutions(graph: Graph) -> dict[int, InTiles]:
    """How convolutions lay what they read and make."""
    found: dict[int, InTiles] = {}
    for op in graph.of_kinds(("conv_general_dilated",)):
        numbers = op.params["dimension_numbers"]
        for tensor, spec in zip((*op.operands, *op.results), numbers, strict=True):
            found.setdefault(tensor, InTiles((min(spec[:2]),), (max(spec[:2]),)))
    return found


def of_products(graph: Graph, fused: Sequence[bool]) -> dict[int, InTiles]:
    """How products of matrices lay what they read and make, given the ops that are parts of passes."""
    found: dict[int, InTiles] = {}
    for op in graph.of_kinds(("dot_general",)):
        if fused[op.id] or is_by_vector(graph, op):
            continue
        contracted, batch = op.params["dimension_numbers"]
        ranks = [len(graph.tensors[tensor].aval.shape) for tensor in op.operands]
        free = [
            tuple(dim for dim in range(rank) if dim not in (*summed, *apart))
            for rank, summed, apart in zip(ranks, contracted, batch, strict=True)
        ]
        for tensor, summed, own in zip(op.operands, contracted, free, strict=True):
            found.setdefault(tensor, InTiles(tuple(summed), own))
        first = range(len(batch[0]), len(batch[0]) + len(free[0]))
        second = range(first.stop, first.stop + len(free[1]))
        found.setdefault(op.results[0], InTiles(tuple(first), tuple(second)))
    return found


def in_tiles(graph: Graph, fused: Sequence[bool], multiplied: Mapping[int, InTiles]) -> dict[int, InTiles]:
    """The tensors that lie as what is `multiplied`, given the ops that are parts of passes; arguments lie as they do."""
    found = dict(multiplied)
    if not found:
        return found
    for op in reversed(graph.ops):
        for operand in op.operands:
            for result in op.results:
                _follow(graph, fused, op, (result, operand), found)
    for op in graph.ops:
        for operand in op.operands:
            for result in op.results:
                _follow(graph, fused, op, (operand, result), found)
    return {tensor: tiles for tensor, tiles in found.items() if graph.tensors[tensor].producer is not None}


def _follow(graph: Graph, fused: Sequence[bool], op: Op, step: tuple[int, int], found: dict[int, InTiles]) -> None:
    """Adds the second of an operand and a result of an op, if it lies as the first does."""
    known, other = step
    if known not in found or other in found:
        return
    before, after = (graph.tensors[tensor].aval.shape for tensor in (known, other))
    more, outermost = len(after) - len(before), found[known].outermost
    if op.kind in ("loop_stack", "loop_slice"):
        alike = more + outermost >= 0
    elif op.kind in BOUNDARY or traits(op.kind).resizes:
        alike = more == 0
    elif traits(op.kind).reshapes:
        alike = before[outermost:] == after[max(outermost + more, 0) :]
    else:
        alike = fused[op.id] and keeps_layout(graph, op, *step)
    if alike:
        found[other] = found[known].outside(more)
