"""Narrow reads: in how many bytes per element the readers of a tensor want it, whatever its type.

A TPU multiplies float32 of default precision as bfloat16; a matrix and a vector it multiplies as they are, in its vector
unit. A tensor that only such matmuls and casts read is made narrow where it is made, gathered so and stacked so: XLA's TPU
compiler moves the conversion up to where the tensor comes from, through ops that only move elements and out of loops. Seen
in its buffer assignments.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod

from planner.program.graph import Graph, Op
from planner.program.slots import TAKEN_IN
from planner.rules.primitives import traits

BFLOAT16_BYTES = 2.0


@dataclass(frozen=True, slots=True)
class NarrowReads:
    """The widths in which the tensors of a graph are read, each found once; `moved`: the compiler moves conversions."""

    graph: Graph
    moved: bool = True
    _widths: dict[int, float] = field(init=False, default_factory=dict[int, float])

    def fraction(self, tensor: int, reads: Iterable[tuple[int, int]] | None = None) -> float:
        """The part of its bytes that a tensor takes where it serves these reads (op, operand position), or all of them."""
        graph = self.graph
        aval = graph.tensors[tensor].aval
        if not self.moved or not aval.itemsize:
            return 1.0
        if reads is None:
            width = self.width(tensor)
        else:
            width = max((self._read(op, tensor) for op, _ in reads), default=aval.itemsize)
        return min(1.0, width / aval.itemsize)

    def width(self, tensor: int) -> float:
        """Bytes per element of the widest form in which a tensor is read; its own where nothing reads it."""
        graph = self.graph
        own = graph.tensors[tensor].aval.itemsize
        if own <= BFLOAT16_BYTES or tensor in graph.returned:
            return own
        if tensor not in self._widths:
            self._widths[tensor] = own  # a carry that is read by itself
            found = 0.0
            for reader, _ in graph.consumers[tensor]:
                found = max(found, self._read(reader, tensor))
                if found >= own:
                    break
            self._widths[tensor] = found or own
        return self._widths[tensor]

    def _read(self, reader: int, tensor: int) -> float:
        op, aval = self.graph.ops[reader], self.graph.tensors[tensor].aval
        row = traits(op.kind)
        if op.kind == "convert_element_type":
            return min(aval.itemsize, self.graph.tensors[op.results[0]].aval.itemsize)
        if row.matmul and aval.dtype == "float32" and op.params.get("precision") is None:
            return aval.itemsize if is_by_vector(self.graph, op) else BFLOAT16_BYTES
        moves = row.moves and (tensor == op.operands[0] or not row.picks)
        if moves or row.carries or row.renames or op.kind in TAKEN_IN or op.kind == "loop_stack":
            return max(self.width(result) for result in op.results)
        return aval.itemsize


def is_by_vector(graph: Graph, op: Op) -> bool:
    """Whether an op is a product with vectors, of which nothing is left but what is contracted and batch dims."""
    if op.kind != "dot_general":
        return False
    contracted, batch = op.params["dimension_numbers"]
    shapes = (graph.tensors[tensor].aval.shape for tensor in op.operands)
    free = (
        (n for d, n in enumerate(shape) if d not in (*c, *b))
        for shape, c, b in zip(shapes, contracted, batch, strict=True)
    )
    return any(prod(extents) == 1 for extents in free)
