"""Weights there: the products of matrices whose weights a TPU's compiler can bring to the chip before they are run.

XLA's memory space assignment copies arrays from memory to the chip ahead of their use. Schedules by libtpu 0.0.42 of
decoding steps of a public and of own programs (v5e, v5p) show of which weights: of those that are there when the program
begins, as its arguments, or are computed of these element by element on the way to a product, in the code outside of loops.
A loop's slices of a stack are read where they stand. `pricing.prefetch` says how much of their reading that hides.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from planner.program.graph import Graph
from planner.rules.primitives import kinds_where, traits


class WeightsThere(NamedTuple):
    """A product of an array that is made by the program and others that are there: its op, and the arguments these are of.

    `through` are the tensors between the arguments and the product, its operands included.
    """

    op: int
    arguments: tuple[int, ...]
    through: frozenset[int]


def weights_there(graph: Graph) -> Iterator[WeightsThere]:
    """Such products outside of loops, in program order."""
    there: dict[int, frozenset[int]] = {tensor: frozenset((tensor,)) for tensor in graph.inputs}
    products = kinds_where(lambda row: row.matmul)
    for op in graph.ops:
        sources = [there[tensor] for tensor in op.operands if tensor in there]
        if traits(op.kind).fused and op.operands and len(sources) == len(op.operands):
            there |= dict.fromkeys(op.results, frozenset(op.results).union(*sources))
        elif op.kind in products and graph.regions[op.region].parent is None and 0 < len(sources) < len(op.operands):
            through = frozenset[int]().union(*sources)
            yield WeightsThere(op.id, tuple(sorted(through & graph.taken)), through)
