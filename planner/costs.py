"""The cost of computing: seconds, flops and memory traffic of every strategy of a group, on its local shards.

An op that is not fused is a roofline of its own: its flops against the bytes of its operands and results. A fused group
is one pass per region: it reads what stands in memory and writes what must stand there, and pays for the flops of all
its ops. Ops that index move only what they touch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

import cost_models
from cost_models import CostModel
from planner.candidates import Strategies
from planner.graph import Graph, Op
from planner.groups import Dims, Group, Grouping
from planner.liveness import Liveness
from planner.reshard import local_bytes
from planner.trace import BOUNDARY

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Per strategy and call: `seconds`, `flops` and bytes of memory traffic (`traffic_bytes`) of one device."""

    seconds: Floats
    flops: Floats
    traffic_bytes: Floats


def group_work(
    graph: Graph, grouping: Grouping, liveness: Liveness, group: Group, strategies: Strategies, model: CostModel
) -> Work:
    """The work of every strategy of a group; arrays of shape (len(strategies),)."""
    ops = [graph.ops[op] for op in group.ops]
    if not group.fused:
        return _heavy(graph, grouping, ops[0], strategies, model)
    return _fused(graph, grouping, liveness, group, ops, strategies, model)


def _bytes(graph: Graph, strategies: Strategies, tensor: int, dims: Dims) -> Floats:
    aval = graph.tensors[tensor].aval
    return local_bytes(strategies.locations(dims), strategies.axis_sizes, aval.bytes)


def _flops(graph: Graph, grouping: Grouping, op: Op, strategies: Strategies) -> Floats:
    placement = grouping.placements[op.id]
    factors = {f for dims in placement.operands + placement.results for dim in dims for f in dim}
    whole = cost_models.flops(
        op.kind,
        [graph.tensors[t].aval.shape for t in op.operands],
        [graph.tensors[t].aval.shape for t in op.results],
        op.params,
    )
    return whole / strategies.shards(factors)


def _heavy(graph: Graph, grouping: Grouping, op: Op, strategies: Strategies, model: CostModel) -> Work:
    placement = grouping.placements[op.id]
    flops = _flops(graph, grouping, op, strategies)
    operands = [_bytes(graph, strategies, t, d) for t, d in zip(op.operands, placement.operands, strict=True)]
    results = [_bytes(graph, strategies, t, d) for t, d in zip(op.results, placement.results, strict=True)]
    zero = np.zeros(len(strategies))
    if op.kind in ("dynamic_slice", "gather", "slice", "dynamic_index"):
        traffic = sum(operands[1:], zero) + 2 * sum(results, zero)
    elif op.kind == "dynamic_update_slice" or op.kind.startswith("scatter"):
        updates = operands[1] if op.kind == "dynamic_update_slice" else operands[-1]
        traffic = 2 * updates + sum(operands[1:], zero)
    else:
        traffic = sum(operands, zero) + sum(results, zero)
    dtype = graph.tensors[op.operands[0] if op.operands else op.results[0]].aval.dtype
    seconds = model.compute_seconds(
        kind=op.kind, engine=cost_models.engine(op.kind), dtype=dtype, flops=flops, bytes=traffic
    )
    trips = graph.regions[op.region].trips
    return Work(seconds=seconds * trips, flops=flops * trips, traffic_bytes=traffic * trips)


def _fused(
    graph: Graph,
    grouping: Grouping,
    liveness: Liveness,
    group: Group,
    ops: list[Op],
    strategies: Strategies,
    model: CostModel,
) -> Work:
    flops, traffic = np.zeros(len(strategies)), np.zeros(len(strategies))
    counted: set[tuple[int, int]] = set()
    for op in ops:
        placement, trips = grouping.placements[op.id], graph.regions[op.region].trips
        if op.kind in BOUNDARY:
            continue
        flops += trips * _flops(graph, grouping, op, strategies)
        for tensor, dims in zip(op.operands, placement.operands, strict=True):
            if (tensor, op.region) in counted or not liveness.materialised[tensor]:
                continue
            counted.add((tensor, op.region))
            producer = graph.tensors[tensor].producer
            own = producer is not None and grouping.group_of[producer] == group.id
            if not own or graph.ops[producer or 0].kind in BOUNDARY:
                traffic += trips * _bytes(graph, strategies, tensor, dims)
        for tensor, dims in zip(op.results, placement.results, strict=True):
            if liveness.materialised[tensor]:
                traffic += trips * _bytes(graph, strategies, tensor, dims)
    dtype = graph.tensors[ops[-1].results[0] if ops[-1].results else ops[-1].operands[0]].aval.dtype
    seconds = model.compute_seconds(kind="elementwise", engine="vector", dtype=dtype, flops=flops, bytes=traffic)
    return Work(seconds=seconds, flops=flops, traffic_bytes=traffic)
