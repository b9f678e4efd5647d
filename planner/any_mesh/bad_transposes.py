"""Bad transposes: those of which XLA's GPU compiler reads every element in a memory transaction of its own.

A transpose is done in tiles where both the dim that lay innermost and the one that comes to lie there are long enough;
else threads side by side read elements that lie apart. Such a transpose is stored, whoever reads it. The rules are those of
openxla/xla, xla/service/gpu/ir_emission_utils.cc (tiled transposes) and model/coalescing_analysis.cc (transactions).
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.program.graph import Graph

TRANSACTION_BYTES = 64
LEAST_TILED, LEAST_TILED_IF_MANY, MANY = 16, 8, 64 * 128
"""Elements of the shorter of the two dims, and of both together where it is one of the second."""


def bad_transposes(graph: Graph) -> frozenset[int]:
    """The ops that transpose so."""
    return frozenset(
        op.id
        for op in graph.of_kinds(("transpose",))
        if not is_tiled(graph.tensors[op.operands[0]].aval.shape, op.params["permutation"])
    )


def is_tiled(shape: Sequence[int], permutation: Sequence[int]) -> bool:
    """Whether a transpose is done in tiles, or needs none as what lies innermost stays there."""
    order = [dim for dim in permutation if shape[dim] > 1]
    if not order or order[-1] == max(order):
        return True
    before, after = _innermost(shape, order, max(order)), _innermost(shape, order, order[-1])
    shorter = min(before, after)
    return shorter >= LEAST_TILED or (shorter >= LEAST_TILED_IF_MANY and before * after >= MANY)


def _innermost(shape: Sequence[int], order: Sequence[int], last: int) -> int:
    """Elements of a dim with those before it that stay before it; `order` are the dims as they come to lie."""
    dims, extent, place = sorted(order), shape[last], order.index(last)
    while place and dims.index(order[place]) and order[place - 1] == dims[dims.index(order[place]) - 1]:
        place -= 1
        extent *= shape[order[place]]
    return extent
