"""Host copies: arrays that go to the memory of the host and come back, beside the computing of one trip of a loop.

The compiler begins and ends a copy within one trip. So all copies of a body in one direction share one queue, and what of
them takes longer than the trip computes is waited for. Outside of loops all are: they stand at the program's ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from planner.compiler.collectives.overlap import HIDDEN
from planner.program.graph import Graph, Op
from planner.rules.op_work import op_flops
from planner.rules.primitives import traits


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCopy:
    """One copy of `bytes` of a whole array; `flops_per_byte` of matmuls run beside each byte of its queue."""

    bytes: float
    flops_per_byte: float

    def exposed(self, flops_per_link_byte: float) -> float:
        """The part of it that is waited for, where a chip computes so many flops while its link carries a byte."""
        return (
            max(1.0 - HIDDEN, 1.0 - HIDDEN * self.flops_per_byte / flops_per_link_byte) if self.flops_per_byte else 1.0
        )


def host_copies(graph: Graph) -> Mapping[int, HostCopy]:
    """The ops that copy to or from the host."""
    copies = {op.id: moved for op in graph.of_kinds(("device_put",)) if (moved := _moved(graph, op))}
    if not copies:
        return {}
    flops, queues = defaultdict[int, float](float), defaultdict[tuple[int, bool], float](float)
    for op in graph.ops:
        place: int | None = op.region if traits(op.kind).matmul or traits(op.kind).opaque else None
        work = op_flops(graph, op) * graph.regions[op.region].trips if place is not None else 0.0
        while place is not None:
            flops[place] += work
            place = graph.regions[place].parent
        if op.id in copies:
            queues[op.region, _leaves(graph, op)] += copies[op.id] * graph.regions[op.region].trips
    found: dict[int, HostCopy] = {}
    for number, moved in copies.items():
        op = graph.ops[number]
        looped = graph.regions[op.region].parent is not None
        beside = flops[op.region] / queues[op.region, _leaves(graph, op)] if looped else 0.0
        found[number] = HostCopy(bytes=moved, flops_per_byte=beside)
    return found


def _moved(graph: Graph, op: Op) -> float:
    """Bytes that an op moves between the memories; 0 where both sides are in one."""
    before, after = (graph.tensors[side[0]].aval.host_bytes for side in (op.operands, op.results))
    return abs(after - before)


def _leaves(graph: Graph, op: Op) -> bool:
    """Whether it copies to the host."""
    return graph.tensors[op.results[0]].aval.host_bytes > 0
