"""What a fused group computes and moves, whatever the mesh: its flops and the tensors that it reads and writes.

A fused group is one pass per region: it reads what stands in memory and writes what must stand there, and pays for the
flops of all its ops. What many ops have in common is one entry, so that pricing a pass takes as long for a thousand layers
as for one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from planner.compiler.program import CompiledProgram
from planner.decisions.groups import Group
from planner.program.slots import BOUNDARY
from planner.rules.op_work import op_flops
from planner.rules.primitives import traits
from planner.rules.rule import Dims

FactorSet = frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedPass:
    """Trips included: flops by the factors that divide them, bytes of traffic by the dims that do; of type `dtype`.

    `hidden` are those of the flops that are computed in the kernels of matmuls, beside these.
    """

    flops: tuple[tuple[FactorSet, float], ...]
    hidden: tuple[tuple[FactorSet, float], ...]
    traffic: tuple[tuple[Dims, float], ...]
    dtype: str


class Part(NamedTuple):
    """What one op adds to the pass of its group, trips included: flops by `factors`, and traffic by the dims of tensors."""

    op: int
    factors: FactorSet
    flops: float
    traffic: tuple[tuple[Dims, float], ...]


def fused_pass(program: CompiledProgram, group: Group, of_matmuls: Collection[int] = ()) -> FusedPass:
    """The pass of a fused group, some ops of which are computed in kernels of matmuls."""
    flops, hidden = defaultdict[FactorSet, float](float), defaultdict[FactorSet, float](float)
    traffic = defaultdict[Dims, float](float)
    for part in pass_parts(program, group):
        flops[part.factors] += part.flops
        if part.op in of_matmuls:
            hidden[part.factors] += part.flops
        for dims, amount in part.traffic:
            traffic[dims] += amount
    graph, last = program.graph, program.graph.ops[group.ops[-1]]
    dtype = graph.tensors[last.results[0] if last.results else last.operands[0]].aval.dtype
    return FusedPass(
        flops=tuple(flops.items()), hidden=tuple(hidden.items()), traffic=tuple(traffic.items()), dtype=dtype
    )


def pass_parts(program: CompiledProgram, group: Group) -> Iterator[Part]:
    """What the ops of a fused group compute and move, in their order; what is read twice is moved by the first.

    Of what it slices a pass reads the slice, and what only matmuls read that compute it themselves it leaves to them.
    """
    graph, grouping = program.graph, program.grouping
    counted: set[tuple[int, int]] = set()
    for op in map(graph.ops.__getitem__, group.ops):
        placement, trips = grouping.placements[op.id], graph.regions[op.region].trips
        again = program.in_place.extra_traffic.get(op.id, 0.0)
        traffic: list[tuple[Dims, float]] = []
        if again:
            traffic.append((placement.results[0], again * graph.tensors[op.results[0]].aval.bytes))
        if op.kind in BOUNDARY:
            if again:
                yield Part(op=op.id, factors=frozenset(), flops=0.0, traffic=tuple(traffic))
            continue
        sides = (op.operands, placement.operands), (op.results, placement.results)
        factors = frozenset(f for _, of in sides for dims in of for dim in dims for f in dim)
        absorbed = op.id in program.read_through.absorbed
        for position, (tensor, dims) in enumerate(zip(*sides[0], strict=True) if not absorbed else ()):
            if (tensor, op.region) in counted or not program.materialized[tensor]:
                continue
            producer = graph.tensors[tensor].producer
            own = producer is not None and grouping.group_of[producer] == group.id
            if own and graph.ops[producer or 0].kind not in BOUNDARY:
                continue
            if position == 0 and traits(op.kind).picks:
                sliced = graph.tensors[op.results[0]].aval.bytes
                traffic.append((placement.results[0], trips * sliced))
                continue
            counted.add((tensor, op.region))
            traffic.append((dims, trips * graph.tensors[tensor].aval.bytes))
        for tensor, dims in zip(*sides[1], strict=True):
            if program.materialized[tensor]:
                traffic.append((dims, trips * graph.tensors[tensor].aval.bytes))
        yield Part(op=op.id, factors=factors, flops=trips * op_flops(graph, op), traffic=tuple(traffic))
