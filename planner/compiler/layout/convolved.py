"""Layout of images: which dims of a tensor lie in tiles because a convolution reads or makes it, on a TPU.

A convolution is a product for every place in space, of a matrix of batch and features and one of the features of its
window. So these two dims lie in the tiles, either way round, and space lies outside of them: an image of 32 features takes
four times its bytes, whatever its extents in space. Passes over an image, pooling, and what joins or cuts images leave it
so. Seen in schedules of libtpu 0.0.42, of 1 to 128 images with 32 to 256 features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from planner.compiler.layout.row_major_lanes import InRows, keeps_layout
from planner.program.graph import Graph, Op
from planner.program.slots import BOUNDARY
from planner.rules.primitives import traits


class InTiles(NamedTuple):
    """The two dims of a tensor that lie in its tiles, in their order; that is innermost which takes fewer bytes so."""

    first: int
    second: int

    def outside(self, more: int) -> InTiles:
        """The same of a tensor with so many more dims outside of these."""
        return InTiles(self.first + more, self.second + more)


Order = InRows | InTiles
"""How a tensor lies that does not lie as takes the least padding."""


def in_image_order(graph: Graph, fused: Sequence[bool]) -> dict[int, InTiles]:
    """The tensors that lie as convolutions lay them, given the ops that are parts of passes; arguments lie as they do."""
    found: dict[int, InTiles] = {}
    for op in graph.of_kinds(("conv_general_dilated",)):
        numbers = op.params["dimension_numbers"]
        for tensor, spec in zip((*op.operands, *op.results), numbers, strict=True):
            found.setdefault(tensor, InTiles(first=min(spec[:2]), second=max(spec[:2])))
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
    more = len(graph.tensors[other].aval.shape) - len(graph.tensors[known].aval.shape)
    if op.kind in ("loop_stack", "loop_slice"):
        alike = more + min(found[known]) >= 0
    elif op.kind in BOUNDARY or traits(op.kind).resizes:
        alike = more == 0
    else:
        alike = fused[op.id] and keeps_layout(graph, op, *step)
    if alike:
        found[other] = found[known].outside(more)
