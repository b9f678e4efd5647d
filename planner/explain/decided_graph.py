"""The op graph of a plan: how every op is split, in which specs every tensor travels, and at what price.

All figures are per device and call. Over the whole graph the flops, the bytes of the nodes and the seconds of nodes and
edges add up to what the plan predicts (`plan.predicted`), and so do the bytes of the edges to those of its collectives,
each as the platform's compiler writes them. Where several share something, the first has it and the others 0:

    a collective that serves several reads    the first of them; `collective` tells all of them how the tensor arrives
    the seconds of a fused group              its ops by the bytes they move, or by their flops where none moves any
    the collectives of a user's `shard_map`   in the seconds of its node
    the sum of a result that nothing reads    in the seconds of its op
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import reduce
from operator import or_
from typing import NamedTuple, final

import numpy as np

from planner.compiler.collectives.lowering import as_lowered
from planner.compiler.fusion.loop_fusion import FactorSet, Part, pass_parts
from planner.decisions.decision_graph import Transfer
from planner.decisions.groups import Group, Placement
from planner.emit.predict import runs_of
from planner.explain.op_graph import Attributes, OpGraph, network_of
from planner.prediction import Collective
from planner.pricing.assignment import Chosen
from planner.pricing.candidates.specs import spec_of, spec_text
from planner.pricing.op_cost import fetches, kernel_traffic
from planner.pricing.reshards.reshard import Step
from planner.program.graph import Op
from planner.rules.primitives import kinds_where
from planner.rules.rule import Dims


class Moved(NamedTuple):
    """What some collectives do: their kinds, the bit set of the axes they run over, bytes and seconds, per call."""

    kinds: tuple[str, ...] = ()
    mask: int = 0
    bytes: float = 0.0
    seconds: float = 0.0


NOTHING = Moved()


def decided(chosen: Chosen, *, platform: str, name: str) -> OpGraph:
    """The op graph of a choice of strategies; `platform` is that of the chips the plan is for."""
    instance = chosen.instance
    network = network_of(instance.model.graph, instance.model.grouping, _Decided(chosen, platform), name=name)
    network.graph["mesh"] = ",".join(f"{axis}={size}" for axis, size in instance.mesh.shape.items())
    return network


@final
class _Decided:
    """What a choice says of the nodes and edges of its program; asked in program order."""

    def __init__(self, chosen: Chosen, platform: str) -> None:
        self.chosen, self.instance, self.model = chosen, chosen.instance, chosen.instance.model
        flow, graph = self.model.flow, self.model.graph
        self.runs, self.platform = runs_of(chosen), platform
        self.moved = {transfer.id: self._moved(transfer, steps) for transfer, steps in chosen.moves}
        self.halos = self._halos()
        self.charged: set[int] = set()
        self.summed = {t.tensor: t for t in flow.transfers if t.reduced}
        self.copied = {t.target: t for t in flow.transfers if flow.nodes[t.target].kind == "copy"}
        self.through = dict(flow.fetched)
        self.reading = {read: t for t in flow.transfers for read in t.reads}
        self.returning = {t.output: t for t in flow.transfers if t.output is not None}
        self.made_at = [0] * len(graph.tensors)
        for op in graph.ops:
            for position, tensor in enumerate(op.results):
                self.made_at[tensor] = position
        self.shares: dict[int, tuple[float, float, float]] = {}
        for group in self.model.grouping.groups:
            self._share(group)
        self.texts: dict[object, str] = {}

    # ------------------------------------------------------------ nodes

    def of_op(self, op: Op) -> Attributes:
        """The figures of an op, and the specs of what it reads and makes."""
        flops, moved, seconds = self.shares.get(op.id, (0.0, 0.0, 0.0))
        seconds += self._by_program(op) - self.chosen.prefetched_seconds.get(op.id, 0.0)
        for tensor in op.results:
            if not self.model.graph.consumers[tensor] and tensor not in self.model.graph.returned:
                seconds += self._charge(self.summed.get(tensor)).seconds
        return {"flops": flops, "bytes": moved, "strategy": self._strategy(op), "seconds": seconds}

    def _by_program(self, op: Op) -> float:
        """The seconds of the collectives that an op runs itself: less than one after the other where some run at once."""
        group = self.model.grouping.group_of[op.id]
        work = self.instance.works[group]
        return (
            float(work.exchange_seconds[self.chosen.choice[group]]) if op.body is not None and work is not None else 0.0
        )

    def of_tensor(self, tensor: int) -> Attributes:
        """The spec that an argument or constant is stored in."""
        return {"flops": 0.0, "bytes": 0.0, "strategy": self._stored(tensor), "seconds": 0.0}

    def of_result(self, position: int) -> Attributes:
        """The spec that a result is returned in."""
        return {"flops": 0.0, "bytes": 0.0, "strategy": self._returned(position), "seconds": 0.0}

    def _share(self, group: Group) -> None:
        """Divides the work of a group among its ops."""
        work, pick = self.instance.works[group.id], self.chosen.choice[group.id]
        if work is None:
            return
        seconds = float(work.seconds[pick])
        if not group.fused:
            self.shares[group.ops[0]] = (float(work.flops[pick]), float(work.traffic_bytes[pick]), seconds)
            return
        parts = list(pass_parts(self.model.compiled, group))
        flops = {part.op: part.flops / self._parts(group.id, part.factors) for part in parts}
        kept = self.instance.strategies[group.id].keep(np.array([pick]))
        of_kernels = kernel_traffic(self.model, group, kept, self.instance.mesh)
        if of_kernels is None:
            moved = {part.op: self._moved_by(group, part) for part in parts}
        else:
            moved = {op: float(of[0]) for op, of in of_kernels.items()}
        ops = {**flops, **moved}
        traffic, computed = math.fsum(moved.values()), math.fsum(flops.values())
        for op in ops:
            own_moved, own_flops = moved.get(op, 0.0), flops.get(op, 0.0)
            share = own_moved / traffic if traffic else own_flops / computed if computed else 1 / len(ops)
            self.shares[op] = (own_flops, own_moved, seconds * share)
        if not ops:
            self.shares[group.ops[0]] = (0.0, 0.0, seconds)

    def _moved_by(self, group: Group, part: Part) -> float:
        """The bytes that one op of a fused group moves on one device."""
        return math.fsum(amount / self._parts(group.id, (f for dim in d for f in dim)) for d, amount in part.traffic)

    def _parts(self, node: int, factors: Iterable[int] | FactorSet) -> float:
        """Into how many pass_parts a node's choice cuts the product of these factors."""
        held = frozenset(factors)
        split = zip(self._split_by(node), self.instance.mesh.sizes, strict=True)
        return float(math.prod(size for factor, size in split if factor in held))

    def _split_by(self, node: int) -> list[int]:
        """For every axis the factor that a node's choice splits by it, or -1."""
        return self.instance.strategies[node].assignment[self.chosen.choice[node]].tolist()

    # ------------------------------------------------------------ edges

    def of_read(self, op: Op, position: int) -> Attributes:
        """How an operand gets to an op."""
        tensor, read = op.operands[position], (op.id, position)
        node, dims = self.model.grouping.group_of[op.id], self.model.grouping.placements[op.id].operands[position]
        copy = self.copied.get(self.through[read]) if read in self.through else None
        way = (self.summed.get(tensor), copy, self.reading.get(read))
        return self._way(tensor, way, self._spec(node, dims), self.halos.get(read, NOTHING))

    def of_return(self, position: int) -> Attributes:
        """How a result gets into the form in which it is returned."""
        tensor = self.model.graph.outputs[position]
        return self._way(tensor, (self.summed.get(tensor), self.returning.get(position)), self._returned(position))

    def _way(self, tensor: int, way: Iterable[Transfer | None], spec_to: str, halo: Moved = NOTHING) -> Attributes:
        taken = [transfer for transfer in way if transfer is not None]
        ways = [*(self.moved.get(t.id, NOTHING) for t in taken), halo]
        charged = [*map(self._charge, taken), halo]
        mask = reduce(or_, (moved.mask for moved in ways))
        summed = self.summed.get(tensor)
        return {
            "spec_from": self._made(tensor),
            "partial": "" if summed is None else self._axes(summed.source, summed.reduced),
            "spec_to": spec_to,
            "collective": "+".join(kind for moved in ways for kind in moved.kinds),
            "axes": ",".join(self.instance.mesh.axes(mask)),
            "bytes": math.fsum(moved.bytes for moved in charged),
            "seconds": math.fsum(moved.seconds for moved in charged),
        }

    def _charge(self, transfer: Transfer | None) -> Moved:
        """What a transfer costs, the first time that it is asked for."""
        if transfer is None or transfer.id in self.charged:
            return NOTHING
        self.charged.add(transfer.id)
        return self.moved.get(transfer.id, NOTHING)

    def _moved(self, transfer: Transfer, steps: Sequence[Step]) -> Moved:
        seconds = math.fsum(self.chosen.step_seconds(transfer, steps))
        mask = reduce(or_, (step.mask for step in steps if step.kind is not None), 0)
        return self._run(self.runs.of_transfers.get(transfer.id, ()), mask, self.chosen.trips(transfer) * seconds)

    def _run(self, collectives: Sequence[Collective], mask: int, seconds: float) -> Moved:
        mesh = self.instance.mesh
        lowered = as_lowered(
            collectives, self.model.compiler, lambda kind, axes, moved: mesh.runs_as(kind, mesh.mask(axes), moved)
        )
        return Moved(tuple(c.kind for c in lowered), mask, math.fsum(c.count * c.bytes for c in lowered), seconds)

    def _seconds(self, kind: str, mask: int, moved: float) -> float:
        return self.instance.mesh.collective_seconds(kind, mask, moved)

    def _halos(self) -> dict[tuple[int, int], Moved]:
        """What is fetched from neighbours, by the operand that it is a part of."""
        graph, grouping, found = self.model.graph, self.model.grouping, dict[tuple[int, int], Moved]()
        for op in graph.of_kinds(kinds_where(lambda row: row.slides is not None)):
            node = grouping.group_of[op.id]
            chosen = self.instance.strategies[node].keep(np.asarray([self.chosen.choice[node]], np.intp))
            seconds, masks = defaultdict[int, float](float), defaultdict[int, int](int)
            for fetch in fetches(self.model, op, chosen, self.instance.mesh):
                price = self._seconds("collective-permute", fetch.mask, float(fetch.bytes[0]))
                seconds[fetch.tensor] += graph.regions[op.region].trips * price / fetch.shared
                masks[fetch.tensor] |= fetch.mask
            runs = self.runs.of_halos.get(op.id, ())
            for tensor, price in seconds.items():
                mine = [collective for fetched, collective in runs if fetched == tensor]
                found[op.id, op.operands.index(tensor)] = self._run(mine, masks[tensor], price)
        return found

    # ------------------------------------------------------------ words

    def _spec(self, node: int, dims: Dims) -> str:
        """The spec that a node's choice gives a tensor with these dims."""
        key = (self.instance.kind_of[node], self.chosen.choice[node], dims)
        if key not in self.texts:
            located = self.chosen.at(node, dims)
            self.texts[key] = spec_text(spec_of(located, len(dims), self.instance.mesh.names))
        return self.texts[key]

    def _stored(self, tensor: int) -> str:
        home = self.model.flow.home[tensor]
        return "P()" if home is None else self._spec(*home)

    def _made(self, tensor: int) -> str:
        """The spec of a tensor as its op makes it, or as it is stored."""
        producer = self.model.graph.tensors[tensor].producer
        if producer is None:
            return self._stored(tensor)
        grouping = self.model.grouping
        return self._spec(grouping.group_of[producer], grouping.placements[producer].results[self.made_at[tensor]])

    def _returned(self, position: int) -> str:
        transfer = self.returning.get(position)
        if transfer is not None:
            return self._spec(transfer.target, transfer.target_dims)
        return self._stored(self.model.graph.outputs[position])

    def _axes(self, node: int, factors: frozenset[int]) -> str:
        """The axes that split one of these factors."""
        key = ("axes", self.instance.kind_of[node], self.chosen.choice[node], factors)
        if key not in self.texts:
            split = zip(self._split_by(node), self.instance.mesh.names, strict=True)
            self.texts[key] = ",".join(name for factor, name in split if factor in factors)
        return self.texts[key]

    def _strategy(self, op: Op) -> str:
        """The specs of an op's operands and results, and the axes over which it leaves partial results."""
        node, placement = self.model.grouping.group_of[op.id], self.model.grouping.placements[op.id]
        key = (self.instance.kind_of[node], self.chosen.choice[node], placement)
        if key not in self.texts:
            self.texts[key] = self._strategy_text(node, placement)
        return self.texts[key]

    def _strategy_text(self, node: int, placement: Placement) -> str:
        read, made = (
            ", ".join(self._spec(node, dims) for dims in of) for of in (placement.operands, placement.results)
        )
        axes = self._axes(node, placement.reduced)
        combined = "reduce" if placement.combiner == "add" else f"reduce({placement.combiner})"
        return f"{read} -> {made}".strip() + (f" | {combined} {axes}" if axes else "")
