"""A model: a program made ready for planning, with all that is worked out once for every mesh."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from planner.any_mesh.alike_groups import alike
from planner.any_mesh.eased import Eased, eased
from planner.any_mesh.flow import Flow, Transfer, build_flow
from planner.any_mesh.fused_pass import FusedPass, fused_pass
from planner.any_mesh.fusion import UNKNOWN, Fusion
from planner.any_mesh.groups import Group, Grouping, group_ops
from planner.any_mesh.kernel_traffic import Array, Movement, movements
from planner.any_mesh.kernels import Kernels, kernels_of
from planner.any_mesh.liveness import Liveness, analyse
from planner.any_mesh.memory_order import memory_order
from planner.any_mesh.memory_spans import Copied, Holdings, copied, held
from planner.any_mesh.seen_through import SeenThrough
from planner.any_mesh.weights_there import WeightsThere, weights_there
from planner.program.graph import Body, Graph
from planner.rules.op_work import body_of, op_flops
from planner.rules.primitives import traits
from planner.vectors import Floats

PLACED_BY_USER = ("sharding_constraint", "shard_map")
"""Ops that demand specs of their own."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A program's graph, groups, flow and liveness, and what follows from them whatever the mesh.

    `seen` is the graph as compilers see it (see `seen_through`), of which all that follows is worked out. `alike` names
    for every group the first group that it is like: one set of strategies and costs serves both.
    `kernels` are those that the target's compiler makes; None where it is not known which. `bodies` are the models of what
    is computed by ops that stay one op, for one device.
    `hiding` are the flops of matmuls that hide any gather, and those for each of its bytes (see `eased`). `given_eased` is
    what is spared of the transfers where these are some of a larger model's.
    """

    graph: Graph
    seen: SeenThrough
    grouping: Grouping
    flow: Flow
    liveness: Liveness
    alike: tuple[int, ...]
    kernels: Kernels | None
    bodies: Mapping[Body, Model]
    hiding: tuple[float, float] = (math.inf, 0.0)
    given_eased: Eased | None = None
    _moved: dict[int, tuple[Movement, ...]] = field(default_factory=dict[int, tuple[Movement, ...]])
    _passes: dict[int, FusedPass] = field(default_factory=dict[int, FusedPass])
    _factor_bytes: dict[int, Floats] = field(default_factory=dict[int, Floats])
    _orders: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])

    def fused_pass(self, group: Group) -> FusedPass | None:
        """The pass of a fused group; None for another."""
        if group.fused and group.id not in self._passes:
            of_matmuls = () if self.kernels is None else self.kernels.of_matmuls
            self._passes[group.id] = fused_pass(self.seen.graph, self.grouping, self.liveness, group, of_matmuls)
        return self._passes.get(group.id)

    def moved(self, group: Group) -> tuple[Movement, ...]:
        """What the kernels of a group move, trips included: of one op and array once. Nothing where there are none."""
        if group.id not in self._moved:
            total = defaultdict[tuple[int, Array, Array], float](float)
            for op, array, times, inside in movements(
                self.seen.graph, self.grouping, self.liveness, self.kernels, group
            ):
                total[op, array, inside] += times * self.graph.regions[self.graph.ops[op].region].trips
            self._moved[group.id] = tuple(
                Movement(op, array, times, inside) for (op, array, inside), times in total.items()
            )
        return self._moved[group.id]

    def launches(self, group: Group) -> float:
        """How many kernels a group runs in one call; 0 where there is none of its own, or it is not known."""
        regions, ops = self.graph.regions, self.graph.ops
        own = () if self.kernels is None else self.kernels.of_group.get(group.id, ())
        return math.fsum(regions[ops[kernel.op].region].trips for kernel in own)

    def memory_order(self, transfer: Transfer) -> tuple[int, ...] | None:
        """The dims of a transfer's tensor as they lie in memory while it is summed; None where nothing is."""
        if not transfer.reduced:
            return None
        if transfer.tensor not in self._orders:
            self._orders[transfer.tensor] = memory_order(self.seen.graph, self.grouping, transfer.tensor)
        return self._orders[transfer.tensor]

    def factor_bytes(self, group: Group) -> Floats:
        """For every factor of a group the bytes of the results that it is a factor of, which its splitting divides."""
        if group.id not in self._factor_bytes:
            found = np.zeros(max(len(group.sizes), 1))
            for op in group.ops:
                for tensor, dims in zip(self.graph.ops[op].results, self.grouping.placements[op].results, strict=True):
                    for dim in dims:
                        for factor in dim:
                            found[factor] += self.graph.tensors[tensor].aval.bytes
            self._factor_bytes[group.id] = found
        return self._factor_bytes[group.id]

    @cached_property
    def eased(self) -> Eased:
        """What a TPU's compiler spares the program of its moves."""
        if self.given_eased is not None:
            return self.given_eased
        liveness, flow = self.liveness, self.seen.flow(self.flow)
        return eased(self.seen.graph, self.grouping, flow, liveness.narrow, liveness.fusion, self.hiding)

    @cached_property
    def weights_there(self) -> tuple[WeightsThere, ...]:
        """The products whose weights a TPU's compiler can bring to the chip ahead; none where no kernels are known."""
        return () if self.kernels is None else tuple(weights_there(self.seen.graph))

    @cached_property
    def matmul_flops(self) -> float:
        """The operations of all matmuls of a call, on all devices together."""
        regions = self.graph.regions
        return sum(
            op_flops(self.graph, op) * regions[op.region].trips for op in self.graph.ops if traits(op.kind).matmul
        )

    @cached_property
    def held(self) -> Holdings:
        """What stands in memory, and when."""
        return held(self.seen.graph, self.grouping, self.seen.flow(self.flow), self.liveness)

    @cached_property
    def copied(self) -> Copied:
        """What transfers may keep beside it."""
        flow = self.seen.flow(self.flow)
        return copied(self.seen.graph, flow, self.liveness, [flow.transfers[t.id] for t in self.moving])

    @cached_property
    def moving(self) -> tuple[Transfer, ...]:
        """The transfers that can cost anything: not those of scalars without partial sums."""
        tensors = self.graph.tensors
        return tuple(
            t
            for t in self.flow.transfers
            if tensors[t.tensor].aval.size > 1 or (t.reduced and tensors[t.tensor].aval.bytes)
        )


def model_of(
    graph: Graph,
    *,
    pinned_outputs: AbstractSet[int],
    kept: AbstractSet[int],
    fusion: Fusion | None = None,
    hiding: tuple[float, float] = (math.inf, 0.0),
    inlined: bool = False,
) -> Model:
    """The model of a program, whose outputs at some positions are pinned, and some tensors are `kept` as pinned.

    `fusion`: how the target's compiler fuses, where that is known; `hiding` as of `Model`, `inlined` as of `kernels_of`.
    """
    grouping = group_ops(graph)
    flow = build_flow(graph, grouping, pinned_outputs=pinned_outputs, kept=kept)
    seen = SeenThrough(graph)
    liveness = analyse(seen.graph, grouping, fusion or UNKNOWN)
    kernels = kernels_of(seen.graph, grouping, liveness, inlined=inlined) if fusion is not None else None
    bodies = dict.fromkeys(body for body in map(body_of, graph.ops) if body is not None)
    return Model(
        graph=graph,
        seen=seen,
        grouping=grouping,
        flow=flow,
        liveness=liveness,
        alike=alike(seen.graph, grouping, liveness, kernels),
        kernels=kernels,
        bodies={
            body: model_of(
                body.graph,
                pinned_outputs=set(),
                kept=set(),
                fusion=fusion,
                hiding=hiding,
                inlined=body.axes is not None,
            )
            for body in bodies
        },
        hiding=hiding,
    )
