"""Isomorphic groups: figures that are worked out for one group of ops serve all that are like it.

Layers written out one after the other make groups that differ in nothing but the tensors they touch. Two groups are
isomorphic where every figure their strategies and costs are made from is equal: the ops with their types, parameters
and trip counts, how their dims share factors, which tensors are in memory, and which tensors within the group are the
same.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from planner.compiler.collectives.shared_halos import SharedHalos
from planner.compiler.fusion.bytes_accessed import movements
from planner.compiler.fusion.kernels import Kernels
from planner.compiler.program import CompiledProgram
from planner.decisions.groups import Group, Grouping
from planner.program.graph import Graph, Tensor
from planner.program.slots import BOUNDARY
from planner.rules.primitives import traits


def isomorphic(program: CompiledProgram, kernels: Kernels | None, halos: SharedHalos) -> tuple[int, ...]:
    """For every group the first group that it is like; with `kernels`, in these, too; `halos` are shared by so many ops."""
    graph, grouping = program.graph, program.grouping
    made_in = [_made_in(graph, grouping, tensor) for tensor in graph.tensors]
    first: dict[Hashable, int] = {}
    numbers: dict[Hashable, int] = {}
    return tuple(
        [
            first.setdefault(
                (_signature(program, made_in, group, numbers, halos), _moved(program, kernels, group)),
                group.id,
            )
            for group in grouping.groups
        ]
    )


def _moved(program: CompiledProgram, kernels: Kernels | None, group: Group) -> tuple[Hashable, ...]:
    """What the kernels of a group move and which of its ops those of matmuls compute, by the places of its ops."""
    if kernels is None:
        return ()
    places = {op: place for place, op in enumerate(group.ops)}
    return (
        *[(places[moved.op], *moved[1:]) for moved in movements(program, kernels, group)],
        *[places[kernel.op] for kernel in kernels.of_group.get(group.id, ())],
        *[-place for op, place in places.items() if op in kernels.of_matmuls],
    )


def _made_in(graph: Graph, grouping: Grouping, tensor: Tensor) -> int | None:
    """The group whose pass makes a tensor; None for what arrives from outside or over the border of a loop."""
    if tensor.producer is None or graph.ops[tensor.producer].kind in BOUNDARY:
        return None
    return grouping.group_of[tensor.producer]


def _signature(
    program: CompiledProgram,
    made_in: Sequence[int | None],
    group: Group,
    numbers: dict[Hashable, int],
    halos: SharedHalos,
) -> Hashable:
    """All that tells a group from others; `numbers` numbers the parts met so far, so that signatures stay short."""
    graph, grouping, stored, own = program.graph, program.grouping, program.materialized, group.id
    copied, through, rows = program.in_place.extra_traffic, program.read_through, program.row_major
    met: dict[int, int] = {}
    regions: dict[int, int] = {}
    parts: list[int] = []
    for op in map(graph.ops.__getitem__, group.ops):
        part = (
            # One object for ops of one kind, types and parameters whose dims share factors in one way.
            id(grouping.placements[op.id]),
            # What a sliding window fetches from its neighbours depends on the other ops that read its operand.
            tuple(
                [(halos.get((op.id, i)), program.narrow.fraction(t, [(op.id, i)])) for i, t in enumerate(op.operands)]
            )
            if traits(op.kind).slides is not None
            else None,
            tuple([4 * met.setdefault(t, len(met)) + 2 * stored[t] + (made_in[t] == own) for t in op.operands]),
            tuple([2 * met.setdefault(t, len(met)) + stored[t] for t in op.results]),
            regions.setdefault(op.region, len(regions)),
            graph.regions[op.region].trips,
            copied.get(op.id),
            op.id in through.absorbed,
            tuple([through.shares.get((op.id, i)) for i in range(len(op.operands))]) if not group.fused else None,
            tuple([rows.get(t) for t in (*op.operands, *op.results)]) if rows else None,
        )
        parts.append(numbers.setdefault(part, len(numbers)))
    return (group.sizes, group.whole, group.fused, tuple(parts))
