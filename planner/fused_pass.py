"""What a fused group computes and moves, whatever the mesh: its flops and the tensors that it reads and writes.

A fused group is one pass per region: it reads what stands in memory and writes what must stand there, and pays for the
flops of all its ops. What many ops have in common is one entry, so that pricing a pass takes as long for a thousand layers
as for one.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import cost_models
from planner.graph import Graph
from planner.groups import Dims, Group, Grouping
from planner.liveness import Liveness
from planner.places import BOUNDARY

Factors = frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedPass:
    """Trips included: flops by the factors that divide them, bytes of traffic by the dims that do; of type `dtype`."""

    flops: tuple[tuple[Factors, float], ...]
    traffic: tuple[tuple[Dims, float], ...]
    dtype: str


def fused_pass(graph: Graph, grouping: Grouping, liveness: Liveness, group: Group) -> FusedPass:
    """The pass of a fused group."""
    flops, traffic = defaultdict[Factors, float](float), defaultdict[Dims, float](float)
    counted: set[tuple[int, int]] = set()
    for op in map(graph.ops.__getitem__, group.ops):
        if op.kind in BOUNDARY:
            continue
        placement, trips = grouping.placements[op.id], graph.regions[op.region].trips
        sides = (op.operands, placement.operands), (op.results, placement.results)
        factors = frozenset(f for _, of in sides for dims in of for dim in dims for f in dim)
        flops[factors] += trips * cost_models.flops(
            op.kind,
            [graph.tensors[t].aval.shape for t in op.operands],
            [graph.tensors[t].aval.shape for t in op.results],
            op.params,
        )
        for tensor, dims in zip(*sides[0], strict=True):
            if (tensor, op.region) in counted or not liveness.materialised[tensor]:
                continue
            counted.add((tensor, op.region))
            producer = graph.tensors[tensor].producer
            own = producer is not None and grouping.group_of[producer] == group.id
            if not own or graph.ops[producer or 0].kind in BOUNDARY:
                traffic[dims] += trips * graph.tensors[tensor].aval.bytes
        for tensor, dims in zip(*sides[1], strict=True):
            if liveness.materialised[tensor]:
                traffic[dims] += trips * graph.tensors[tensor].aval.bytes
    last = graph.ops[group.ops[-1]]
    dtype = graph.tensors[last.results[0] if last.results else last.operands[0]].aval.dtype
    return FusedPass(flops=tuple(flops.items()), traffic=tuple(traffic.items()), dtype=dtype)
