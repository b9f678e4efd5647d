"""A model: a program made ready for planning, with all that is worked out once for every mesh."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from pbqp.vectors import Floats
from planner.compiler.collectives.savings import Savings, reassociated, savings_of
from planner.compiler.collectives.shared_halos import SharedHalos, shared_halos
from planner.compiler.fusion.bytes_accessed import Array, Movement, movements
from planner.compiler.fusion.kernels import Kernels, kernels_of
from planner.compiler.fusion.loop_fusion import FusedPass, fused_pass
from planner.compiler.fusion.sliced_operands import sliced_operands
from planner.compiler.isomorphic_groups import isomorphic
from planner.compiler.layout.tiles import memory_orders
from planner.compiler.model import CompilerModel
from planner.compiler.program import CompiledProgram, compiled
from planner.compiler.schedule.host_copies import HostCopy, host_copies
from planner.compiler.schedule.live_ranges import Copied, Holdings, copied, freed_inside, held
from planner.compiler.schedule.prefetched_weights import WeightsThere, weights_there
from planner.compiler.simplify.sharding_remover import SeenThrough
from planner.compiler.targets.table import CPU
from planner.decisions.decision_graph import Flow, Read, Transfer, build_flow
from planner.decisions.groups import Group, Grouping, group_ops
from planner.program.graph import Body, Graph
from planner.rules.op_work import body_of, op_flops
from planner.rules.primitives import traits

PLACED_BY_USER = ("sharding_constraint", "shard_map")
"""Ops that demand specs of their own."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A program's graph, groups and flow, what a compiler makes of it, and what follows whatever the mesh.

    `seen` is the graph as compilers see it (see `seen_through`), of which all that follows is worked out. `alike` names
    for every group the first group that it is like: one set of strategies and costs serves both.
    `kernels` are those that the target's compiler makes; None where it is not known which. `bodies` are the models of what
    is computed by ops that stay one op, for one device.
    `hiding` are the flops of matmuls that hide any gather, and those for each of its bytes. `given_savings` are those of
    the transfers where these are some of a larger model's.
    """

    graph: Graph
    seen: SeenThrough
    grouping: Grouping
    flow: Flow
    compiled: CompiledProgram
    alike: tuple[int, ...]
    kernels: Kernels | None
    shared_halos: SharedHalos
    bodies: Mapping[Body, Model]
    hiding: tuple[float, float] = (math.inf, 0.0)
    given_savings: Savings | None = None
    _moved: dict[int, tuple[Movement, ...]] = field(default_factory=dict[int, tuple[Movement, ...]])
    _passes: dict[int, FusedPass] = field(default_factory=dict[int, FusedPass])
    _factor_bytes: dict[int, Floats] = field(default_factory=dict[int, Floats])
    _orders: dict[int, tuple[tuple[int, ...], ...]] = field(default_factory=dict[int, tuple[tuple[int, ...], ...]])

    def fused_pass(self, group: Group) -> FusedPass | None:
        """The pass of a fused group; None for another."""
        if group.fused and group.id not in self._passes:
            of_matmuls = () if self.kernels is None else self.kernels.of_matmuls
            self._passes[group.id] = fused_pass(self.compiled, group, of_matmuls)
        return self._passes.get(group.id)

    def moved(self, group: Group) -> tuple[Movement, ...]:
        """What the kernels of a group move, trips included: of one op and array once. Nothing where there are none."""
        if group.id not in self._moved:
            total = defaultdict[tuple[int, Array, Array], float](float)
            for op, array, times, inside in movements(self.compiled, self.kernels, group):
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

    def memory_orders(self, transfer: Transfer) -> tuple[tuple[int, ...], ...] | None:
        """The orders in which the dims of a transfer's tensor may lie while it is summed; None where nothing is.

        That of the op that makes it, then that of the transpose behind it, if it may lie so. A term of an accumulator is
        read where it is made.
        """
        if not transfer.reduced:
            return None
        if transfer.tensor not in self._orders:
            orders = memory_orders(self.seen.graph, self.grouping, transfer.tensor)
            self._orders[transfer.tensor] = orders[:1] if transfer.region_after_loop is not None else orders
        return self._orders[transfer.tensor]

    def dims_in_sum(self, term: Transfer, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """Where every dim of a term is in its accumulator of this shape, which is the term, its transpose, or a stack of
        such; None where that is not known."""
        made, readers = self.graph.tensors[term.tensor].aval.shape, list(self.graph.readers(term.tensor))
        turned = [reader.kind for reader in readers] == ["transpose"]
        dims: Sequence[int] = readers[0].params["permutation"] if turned else range(len(made))
        before = len(shape) - len(dims)
        if before < 0 or tuple(made[dim] for dim in dims) != shape[before:]:
            return None
        return tuple(before + dims.index(dim) for dim in range(len(made)))

    def orders_of_sum(self, term: Transfer, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...] | None:
        """The orders in which the dims of an accumulator of this shape may lie, as its term; None: as any array."""
        within = self.dims_in_sum(term, shape)
        if within is None:
            return None
        stacked = tuple(range(len(shape) - len(within)))
        return tuple((*stacked, *(within[dim] for dim in order)) for order in self.memory_orders(term) or ()) or None

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

    @property
    def compiler(self) -> CompilerModel:
        """The compiler that the program is planned for."""
        return self.compiled.compiler

    @cached_property
    def savings(self) -> Savings:
        """How much less the transfers take because of the compiler's passes over collectives."""
        if self.given_savings is not None:
            return self.given_savings
        flow = self.seen.flow(self.flow)
        return savings_of(self.seen.graph, self.grouping, flow, self.compiled.narrow, self.compiler, self.hiding)

    def savings_over(self, devices: Callable[[Transfer], Hashable | None]) -> Savings:
        """The savings where it is known which devices each transfer sums over: None where its tensor is no partial sum."""
        if self.given_savings is not None or not self.savings.reassociated:
            return self.savings
        flow = self.seen.flow(self.flow)
        return replace(self.savings, reassociated=reassociated(self.seen.graph, self.grouping, flow, devices))

    @cached_property
    def host_copies(self) -> Mapping[int, HostCopy]:
        """By op what is copied to the host and back."""
        return host_copies(self.seen.graph)

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
    def freed(self) -> Mapping[Read, int]:
        """The operands that bodies free, which `held` and `copied` both leave to them."""
        return freed_inside(self.compiled)

    @cached_property
    def held(self) -> Holdings:
        """What is in memory, and when."""
        return held(self.compiled, self.seen.flow(self.flow), self.freed)

    @cached_property
    def copied(self) -> Copied:
        """What transfers may keep beside it."""
        flow = self.seen.flow(self.flow)
        return copied(self.compiled, flow, self.freed, [flow.transfers[t.id] for t in self.moving], self.sliced)

    @cached_property
    def sliced(self) -> frozenset[int]:
        """The transfers whose slices are copies in memory."""
        runs = self.compiler.runs("sliced-operands")
        return sliced_operands(self.compiled, self.seen.flow(self.flow)) if runs else frozenset()

    @cached_property
    def transfer_kinds(self) -> Mapping[int, int]:
        """By transfer a number for all that its values follow from, but for the strategies of its ends."""
        seen: dict[Hashable, int] = {}
        return {t.id: seen.setdefault(self._of_transfer(t), len(seen)) for t in self.flow.transfers}

    def _of_transfer(self, transfer: Transfer) -> Hashable:
        figures = None if self.kernels is None else self.savings.figures(transfer.id)
        return (
            *(transfer.source_dims, transfer.reduced, transfer.target_dims, self.graph.aval_numbers[transfer.tensor]),
            *(transfer.trips, transfer.trips_after_loop, transfer.widened, transfer.scatters),
            *(self.memory_orders(transfer), figures, transfer.id in self.sliced),
        )

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
    compiler: CompilerModel = CPU,
    hiding: tuple[float, float] = (math.inf, 0.0),
    inlined: bool = False,
) -> Model:
    """The model of a program, whose outputs at some positions are pinned, and some tensors are `kept` as pinned.

    `compiler` is that of the target; `hiding` as of `Model`, `inlined` as of `kernels_of`.
    """
    grouping = group_ops(graph)
    flow = build_flow(graph, grouping, pinned_outputs=pinned_outputs, kept=kept)
    seen = SeenThrough(graph, removed=compiler.runs("sharding-remover"))
    program = compiled(seen.graph, grouping, compiler)
    kernels = kernels_of(program, inlined=inlined) if compiler.models_kernels else None
    halos = shared_halos(graph)
    bodies = dict.fromkeys(body for body in map(body_of, graph.ops) if body is not None)
    return Model(
        graph=graph,
        seen=seen,
        grouping=grouping,
        flow=flow,
        compiled=program,
        alike=isomorphic(program, kernels, halos),
        kernels=kernels,
        shared_halos=halos,
        bodies={
            body: model_of(
                body.graph,
                pinned_outputs=set(),
                kept=set(),
                compiler=compiler,
                hiding=hiding,
                inlined=body.axes is not None,
            )
            for body in bodies
        },
        hiding=hiding,
    )
