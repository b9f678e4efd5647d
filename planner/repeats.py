"""Repeats: groups of ops that are alike, so that what is worked out for one serves all.

Layers written out one after the other make groups that differ in nothing but the tensors they touch. Two groups are alike
where every figure their strategies and costs are made from is equal: the ops with their types, parameters and trip counts,
how their dims share factors, which tensors stand in memory, and which tensors within the group are the same.
"""

from __future__ import annotations

from collections.abc import Hashable

from planner.graph import Aval, Graph, Op
from planner.groups import Group, Grouping
from planner.halo import slides_of
from planner.liveness import Liveness
from planner.places import BOUNDARY


def alike(graph: Graph, grouping: Grouping, liveness: Liveness) -> tuple[int, ...]:
    """For every group the first group that it is like."""
    first: dict[Hashable, int] = {}
    numbers: dict[Hashable, int] = {}
    return tuple(
        first.setdefault(_signature(graph, grouping, liveness, group, numbers), group.id) for group in grouping.groups
    )


def _signature(
    graph: Graph, grouping: Grouping, liveness: Liveness, group: Group, numbers: dict[Hashable, int]
) -> Hashable:
    """All that tells a group from others; `numbers` numbers the parts met so far, so that signatures stay short."""
    tensors: dict[int, int] = {}
    regions: dict[int, int] = {}

    def read(tensor: int, dims: Hashable) -> Hashable:
        producer = graph.tensors[tensor].producer
        own = producer is not None and grouping.group_of[producer] == group.id
        return (
            _aval(graph.tensors[tensor].aval),
            dims,
            tensors.setdefault(tensor, len(tensors)),
            liveness.materialised[tensor],
            own and graph.ops[producer or 0].kind not in BOUNDARY,
        )

    ops: list[int] = []
    for op in map(graph.ops.__getitem__, group.ops):
        placement = grouping.placements[op.id]
        part = (
            op.kind,
            tuple(map(read, op.operands, placement.operands)),
            tuple(map(read, op.results, placement.results)),
            placement.reduced,
            placement.combiner,
            regions.setdefault(op.region, len(regions)),
            graph.regions[op.region].trips,
            _parameters(graph, op),
        )
        ops.append(numbers.setdefault(part, len(numbers)))
    return (group.sizes, group.whole, group.fused, tuple(ops))


def _aval(aval: Aval) -> Hashable:
    return aval.shape, aval.dtype, aval.itemsize


def _parameters(graph: Graph, op: Op) -> Hashable:
    """The parameters of an op; for one that is like no other, its number.

    What a sliding window fetches from its neighbours depends on the other ops that read its operand.
    """
    if op.kind in BOUNDARY:
        return ()
    if slides_of(graph, op):
        return op.id
    try:
        found = tuple(sorted(op.params.items(), key=lambda item: item[0]))
        hash(found)
    except TypeError:
        return op.id
    return found
