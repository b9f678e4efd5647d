"""Tiles of a TPU's memory, and the order of the dims that its compiler lays in them."""

from __future__ import annotations

from collections.abc import Sequence

from planner.decisions.groups import Grouping
from planner.program.graph import Graph
from planner.rules.primitives import traits

TILE_ROWS, TILE_LANES = 8, 128
"""A tile of words of 32 bits, in which TPUs keep the last two dims of an array; narrower types take several in one."""


def memory_orders(graph: Graph, grouping: Grouping, tensor: int) -> tuple[tuple[int, ...], ...]:
    """The dims of a tensor from the most to the least major, in the orders in which a compiler may lay them.

    As in its shape, but for products: the matrix unit makes tiles of the last free dim of either operand, so that these
    two are the least major, and other free dims lie before them. A convolution makes tiles of batch and features, for
    every place in space. What is read by nothing but a transpose that swaps the two sides, such as the gradient of a
    weight, may also lie as its result does: the compiler swaps the operands instead. Another transpose it does not spare
    (libtpu 0.0.42: the gradient of three matrices of one array lies with what they read as the last dim).
    """
    dims = range(len(graph.tensors[tensor].aval.shape))
    op = graph.maker(tensor)
    if op is not None and op.kind == "conv_general_dilated":
        batch, features, *space = op.params["dimension_numbers"].out_spec
        return ((*sorted(space), batch, features),)
    if op is None or not traits(op.kind).matmul or len(op.operands) != 2:
        return (tuple(dims),)
    placement = grouping.placements[op.id]
    left, right = ({factor for dim in operand for factor in dim} for operand in placement.operands)
    made = placement.results[op.results.index(tensor)]
    free = [
        [d for d in dims if made[d] and set(made[d]) <= own and not set(made[d]) & other]
        for own, other in ((left, right), (right, left))
    ]
    if not all(free):
        return (tuple(dims),)
    tiled = {side[-1] for side in free}
    seen: list[Sequence[int]] = [dims]
    swapped = (*(d for d in dims if not any(d in side for side in free)), *free[1], *free[0])
    if [r.params["permutation"] if r.kind == "transpose" else None for r in graph.readers(tensor)] == [swapped]:
        seen.append(swapped)
    orders = ((*(d for d in dims if d not in tiled), *(d for d in order if d in tiled)) for order in seen)
    return tuple(dict.fromkeys(orders))
