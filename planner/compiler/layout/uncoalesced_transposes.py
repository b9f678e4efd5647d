"""Uncoalesced transposes: those of which XLA's GPU compiler reads every element in a memory transaction of its own.

A transpose is done in tiles where both the dim that lay innermost and the one that comes to lie there are long enough;
else threads side by side read elements that lie apart. Such a transpose is stored, whoever reads it. Where a kernel does
nothing else, and the two dims change places across others, Triton makes it, in tiles of its own. The rules are those of
openxla/xla, xla/service/gpu/ir_emission_utils.cc (tiled transposes), model/coalescing_analysis.cc (transactions) and
transforms/fusion_block_level_rewriter.cc (Triton).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from planner.program.dataflow import reached
from planner.program.graph import Graph, Op
from planner.program.slots import BOUNDARY
from planner.rules.primitives import traits

TRANSACTION_BYTES = 64
LEAST_TILED, LEAST_TILED_IF_MANY, MANY = 16, 8, 64 * 128
"""Elements of the shorter of the two dims, and of both together where it is one of the second."""


class Uncoalesced(NamedTuple):
    """How a transpose reads its operand: `times` its bytes, more than once where a device holds several elements along each
    of the dims `several`."""

    times: float
    several: tuple[int, ...]


def uncoalesced_transposes(graph: Graph) -> Mapping[int, Uncoalesced]:
    """The ops that transpose so, and how they read."""
    found = dict[int, Uncoalesced]()
    for op in graph.of_kinds(("transpose",)):
        aval, orders = graph.tensors[op.operands[0]].aval, _orders(graph, op)
        bad = next((order for order in orders if not is_tiled(aval.shape, order)), None)
        if bad is not None:
            tiled = _is_whole_kernel(graph, op) and all(swaps_across(aval.shape, order) for order in orders)
            found[op.id] = Uncoalesced(1.0 if tiled else TRANSACTION_BYTES / aval.itemsize, _short(aval.shape, bad))
    return found


def _short(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """The dim without which a transpose is done in tiles, if there is one: either that lies innermost, before or after."""
    order = [dim for dim in order if shape[dim] > 1]
    ends = [dim for dim in (max(order), order[-1]) if is_tiled([*shape[:dim], 1, *shape[dim + 1 :]], order)]
    return tuple(ends[:1])


def _is_whole_kernel(graph: Graph, op: Op) -> bool:
    """Whether a kernel does nothing but this: no pass goes on with its result, and what it reads is stored.

    That is what no pass makes, and what is computed of more bytes than it has, which would be read so in its place.
    """
    (tensor,) = op.operands

    def computed_of(one: int) -> Sequence[int]:
        maker = graph.maker(one)
        within = one == tensor or len(graph.consumers[one]) == 1
        return maker.operands if maker is not None and traits(maker.kind).fused and within else ()

    read = [one for one in reached(op.operands, computed_of) if not computed_of(one)]
    stored = read == [tensor] or sum(graph.tensors[one].aval.bytes for one in read) > graph.tensors[tensor].aval.bytes
    return stored and not any(traits(reader.kind).fused for reader in graph.readers(op.results[0]))


def _orders(graph: Graph, op: Op) -> Sequence[Sequence[int]]:
    """The orders of dims in which a transpose is made.

    What a matmul makes in another order stays as it made it in all that is computed of it element by element, until another
    matmul reads it, which takes what it contracts before or behind what it keeps.
    """
    wanted: Sequence[int] = op.params["permutation"]
    maker = graph.maker(op.operands[0])
    if maker is None or not traits(maker.kind).matmul:
        return (wanted,)

    def computed_of(tensor: int) -> list[int]:
        shape, readers = graph.tensors[tensor].aval.shape, graph.readers(tensor)
        passes = [to for to in readers if traits(to.kind).fused and not traits(to.kind).turns]
        made = [t for to in passes if to.kind not in BOUNDARY for t in to.results]
        return [t for t in made if graph.tensors[t].aval.shape == shape]

    orders = {
        _as_read(graph.ops[reader], position, wanted)
        for tensor in reached(op.results, computed_of)
        for reader, position in graph.consumers[tensor]
        if graph.ops[reader].kind == "dot_general" and tensor not in op.results
    }
    return tuple(orders) or (wanted,)


def _as_read(to: Op, position: int, wanted: Sequence[int]) -> tuple[int, ...]:
    """The order in which a matmul reads dims that come in the order `wanted`: what lay first of the two groups first."""
    contracted, batch = (dims[position] for dims in to.params["dimension_numbers"])
    kept = [dim for dim in range(len(wanted)) if dim not in contracted and dim not in batch]
    groups = [[wanted[dim] for dim in sorted(group)] for group in (contracted, kept) if group]
    return (*(wanted[dim] for dim in sorted(batch)), *(dim for group in sorted(groups, key=min) for dim in group))


def is_tiled(shape: Sequence[int], permutation: Sequence[int]) -> bool:
    """Whether a transpose is done in tiles, or needs none as what lies innermost stays there."""
    order = [dim for dim in permutation if shape[dim] > 1]
    if not order or order[-1] == max(order):
        return True
    before, after = _innermost(shape, order, max(order)), _innermost(shape, order, order[-1])
    shorter = min(before, after)
    return shorter >= LEAST_TILED or (shorter >= LEAST_TILED_IF_MANY and before * after >= MANY)


def swaps_across(shape: Sequence[int], permutation: Sequence[int]) -> bool:
    """Whether the innermost dim changes places with one that is further out than the one before it.

    Dims that stay side by side count as one.
    """
    order = [dim for dim in permutation if shape[dim] > 1]
    places = {dim: place for place, dim in enumerate(sorted(order))}
    first = [dim for at, dim in enumerate(order) if not at or places[dim] != places[order[at - 1]] + 1]
    merged = [sorted(first).index(dim) for dim in first]
    last = len(merged) - 1
    return merged[last] < last - 1 and merged[merged[last]] == last


def _innermost(shape: Sequence[int], order: Sequence[int], last: int) -> int:
    """Elements of a dim with those before it that stay before it; `order` are the dims as they come to lie."""
    dims, extent, place = sorted(order), shape[last], order.index(last)
    while place and dims.index(order[place]) and order[place - 1] == dims[dims.index(order[place]) - 1]:
        place -= 1
        extent *= shape[order[place]]
    return extent
