"""Predictions: what a plan costs per device and call, and which collectives it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cost_models import Chip, EnergyObjective, Topology
from planner.compiler.collectives.lowering import as_lowered
from planner.decisions.decision_graph import Transfer
from planner.emit.by_hand import ADDING, by_hand, chosen_split
from planner.prediction import Collective, Predicted
from planner.pricing.assignment import Chosen
from planner.pricing.instance import Instance
from planner.pricing.memory.rematerialization import compiled_peak
from planner.pricing.op_cost import fetches
from planner.pricing.reshards.shares import SUMMING
from planner.program.dataflow import lifted, outermost
from planner.program.graph import Graph
from planner.program.slots import read_in
from planner.rules.collectives import collectives_of
from planner.rules.primitives import traits


def predict(chosen: Chosen, topology: Topology) -> Predicted:
    """The prediction for a choice of strategies."""
    instance = chosen.instance
    compute, communication = chosen.seconds
    runs = runs_of(chosen)
    flops, traffic = chosen.total("flops"), chosen.total("traffic_bytes")
    mesh, collectives = instance.mesh, runs.everything()
    arguments, outputs, aliased = _border_bytes(chosen)
    fed = [chosen.fed(tensor) for tensor in (instance.feeding.inputs if instance.feeding else ())]
    energy = EnergyObjective(chip=topology.chip)
    joules = float(energy.compute(seconds=np.asarray(compute), flops=np.asarray(flops), bytes=np.asarray(traffic)))
    links = topology.links(mesh.sizes) or ()
    prices: dict[tuple[str, tuple[str, ...]], tuple[float, float]] = {}
    for collective in collectives:
        axes, mask = collective.axes, mesh.mask(collective.axes)
        kind = mesh.runs_as(collective.kind, mask, collective.bytes)
        if (kind, axes) not in prices:
            group = tuple(link for name, link in zip(mesh.names, links, strict=True) if name in axes)
            affine = float(mesh.fixed_seconds[kind][mask]), float(mesh.seconds_per_byte[kind][mask])
            prices[kind, axes] = energy.collective(kind, group, affine)
        fixed, per_byte = prices[kind, axes]
        joules += collective.count * (fixed + per_byte * collective.bytes)
    return Predicted(
        seconds=compute + communication,
        seconds_range=topology.chip.seconds_range(compute, communication),
        hidden_seconds=chosen.hidden_seconds,
        compute_seconds=compute,
        communication_seconds=communication,
        flops=flops,
        traffic_bytes=traffic,
        collectives=as_lowered(
            collectives,
            chosen.instance.model.compiler,
            lambda kind, axes, moved: mesh.runs_as(kind, mesh.mask(axes), moved),
        ),
        peak_bytes=_peak_bytes(chosen, topology.chip, arguments),
        argument_bytes=arguments,
        output_bytes=outputs,
        alias_bytes=aliased,
        energy_joules=joules,
        feed_seconds=sum(one.seconds for one in fed),
        fed_bytes=sum(one.device_bytes for one in fed),
        host_bytes=sum(one.host_bytes for one in fed),
        offloaded_bytes=_offloaded_bytes(chosen),
    )


def _offloaded_bytes(chosen: Chosen) -> float:
    """Bytes per device of arguments that lie on hosts, and of what loops leave there."""
    graph = chosen.instance.model.graph
    stacks = [tensor for op in graph.of_kinds(("loop_stack",)) for tensor in op.results]
    return sum(_host_bytes(chosen, tensor) for tensor in (*graph.inputs, *stacks))


def _host_bytes(chosen: Chosen, tensor: int) -> float:
    """Bytes per device of a tensor in the memory of hosts."""
    aval = chosen.instance.model.graph.tensors[tensor].aval
    if not aval.host_itemsize:
        return 0.0
    split = sum(1 << axis for axis, dim in enumerate(chosen.home(tensor)) if dim >= 0)
    return aval.host_bytes / float(chosen.instance.mesh.mask_sizes()[split])


def _peak_bytes(chosen: Chosen, chip: Chip, argument_bytes: float) -> float:
    if not chosen.instance.model.compiler.runs("rematerialization"):
        return float(chosen.memory.profile(chosen.choice).max())
    return compiled_peak(chosen.memory, chosen.choice, argument_bytes=argument_bytes, hbm_bytes=float(chip.hbm_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """The collectives of a plan by what runs them, as planned: a platform's compiler may write others (`as_lowered`).

    Those of transfers by transfer, of halos by op (each with the tensor that is fetched), of the program's own
    `shard_map`s by op. What several would run alike is the first one's.
    """

    of_transfers: Mapping[int, Sequence[Collective]]
    of_halos: Mapping[int, Sequence[tuple[int, Collective]]]
    by_programs: Mapping[int, Sequence[Collective]]

    def everything(self) -> tuple[Collective, ...]:
        """All of them."""
        return (
            *(collective for runs in self.of_transfers.values() for collective in runs),
            *(collective for runs in self.of_halos.values() for _, collective in runs),
            *(collective for runs in self.by_programs.values() for collective in runs),
        )


def runs_of(chosen: Chosen) -> Runs:
    """The collectives of a choice of strategies."""
    return Runs(
        of_transfers=_of_transfers(chosen),
        of_halos=_of_halos(chosen),
        by_programs=_by_programs(chosen.instance),
    )


def _of_transfers(chosen: Chosen) -> dict[int, list[Collective]]:
    """The collectives of what moves, by transfer."""
    instance = chosen.instance
    graph, placements = instance.model.graph, instance.model.grouping.placements
    reach = outermost(graph)
    runs: dict[int, list[Collective]] = {}
    seen: set[tuple[object, ...]] = set()
    served = {node: read for read, node in instance.model.flow.fetched}
    copied: set[int] = set()
    for transfer, steps in chosen.moves:
        tensor = graph.tensors[transfer.tensor]
        region = graph.regions[transfer.region]
        place, copies = lifted(graph, transfer.tensor, transfer.region, reach)
        trips, widened = transfer.trips, 1.0
        if transfer.id in chosen.summed_after_loop and transfer.region_after_loop is not None:
            region, place, copies = graph.regions[transfer.region_after_loop], transfer.region_after_loop, 1
            trips, widened = transfer.trips_after_loop, transfer.widened
        outside = graph.regions[place]
        moves: list[object] = [chosen.at(transfer.source, transfer.source_dims)]
        read = next(iter(transfer.reads), served.get(transfer.target))
        body = read_in(graph.ops[read[0]], read[1]) if read else ()
        if transfer.target in served:
            copied.add(transfer.target)
        found = runs[transfer.id] = []
        for position, step in enumerate(steps):
            # Of equal first moves of a tensor the compiler keeps one, of later ones one for each body that is called.
            # One that waits for something is no other's equal.
            moves.append((step.kind, step.mask, step.layout))
            later = position > 0 or transfer.source in copied
            key = (transfer.region, body if later else None, transfer.tensor, chosen.refetched.get(transfer.id), *moves)
            if step.kind is None or key in seen:
                continue
            seen.add(key)
            _, counted = instance.counted(chosen.spared(transfer)[0], step)
            summing = step.kind in SUMMING
            collective = Collective(
                kind=chosen.summed_after_loop.get(transfer.id, step.kind),
                bytes=step.bytes * (widened if summing else counted),
                axes=instance.mesh.axes(step.mask),
                count=trips * (counted if summing else 1.0),
                source=transfer.source_line,
                line=transfer.compiled_line,
                tensor=tensor.name,
                dtype=tensor.aval.dtype,
                assumed=region.assumed,
                lifted=(outside.trips * copies, outside.assumed),
                by_dim=_summed_dims(chosen, transfer, step.mask) if summing else (),
                narrowed=1.0 if summing else counted,
            )
            producer = tensor.producer
            if step.kind == "all-reduce" and producer is not None and placements[producer].combiner == "arg":
                found += _arg_reduced(collective, graph, producer, float(instance.mesh.mask_sizes()[step.mask]))
            else:
                found.append(collective)
    return runs


def _summed_dims(chosen: Chosen, transfer: Transfer, mask: int) -> tuple[tuple[str, ...], ...]:
    """The axes of a sum, by the dim of its op's operands that they split."""
    instance = chosen.instance
    graph, placements = instance.model.graph, instance.model.grouping.placements
    op = graph.maker(transfer.tensor)
    if op is not None and by_hand(graph, op, chosen_split(chosen, op)) in ADDING:
        return ()
    operands = placements[op.id].operands if op is not None else ()
    split = instance.strategies[transfer.source].assignment[chosen.choice[transfer.source]]
    found: dict[object, list[str]] = {}
    for axis, name in enumerate(instance.mesh.names):
        if mask >> axis & 1:
            factor = int(split[axis])
            places = ((i, d) for i, dims in enumerate(operands) for d, dim in enumerate(dims) if factor in dim)
            found.setdefault(next(places, factor), []).append(name)
    return tuple(map(tuple, found.values()))


def _of_halos(chosen: Chosen) -> dict[int, list[tuple[int, Collective]]]:
    """The collectives that fetch the halos of split windows."""
    instance = chosen.instance
    graph, grouping = instance.model.graph, instance.model.grouping
    runs: dict[int, list[tuple[int, Collective]]] = {}
    seen: set[tuple[object, ...]] = set()
    for node in instance.model.flow.nodes:
        op = graph.ops[grouping.groups[node.group].ops[0]] if node.group is not None else None
        if op is None or traits(op.kind).slides is None:
            continue
        strategies = instance.strategies[node.id]
        own = strategies.keep(np.arange(len(strategies)) == chosen.choice[node.id])
        for fetch in fetches(instance.model, op, own, instance.mesh):
            moved = float(fetch.bytes[0])
            collective = Collective(
                kind="collective-permute",
                bytes=moved,
                axes=instance.mesh.axes(fetch.mask),
                count=graph.regions[op.region].trips,
                source=op.source,
                line=op.line,
                tensor=graph.tensors[fetch.tensor].name,
                dtype=graph.tensors[fetch.tensor].aval.dtype,
                assumed=graph.regions[op.region].assumed,
                lifted=(graph.regions[op.region].trips, graph.regions[op.region].assumed),
                narrowed=fetch.narrowed,
            )
            # What a convolution fetched, the gradient by its kernel need not fetch again.
            key = (op.region, fetch.tensor, fetch.border, fetch.mask, moved)
            if key not in seen:
                seen.add(key)
                runs.setdefault(op.id, []).append((fetch.tensor, collective))
    return runs


def _by_programs(instance: Instance) -> dict[int, list[Collective]]:
    """The collectives that the program runs itself, in its `shard_map`s; over axes of size 1 there are none."""
    graph, mesh = instance.model.graph, instance.mesh
    return {
        op.id: [
            Collective(
                kind=own.kind,
                bytes=own.bytes,
                axes=mesh.axes(mesh.mask(own.axes)),
                count=own.trips * graph.regions[op.region].trips,
                source=own.source,
                line=own.line,
                tensor=graph.tensors[op.results[0]].name if op.results else op.kind,
                dtype=own.dtype,
                assumed=own.assumed * graph.regions[op.region].assumed,
                lifted=(
                    own.trips * graph.regions[op.region].trips,
                    own.assumed * graph.regions[op.region].assumed,
                ),
            )
            for own in collectives_of(op.body)
            if mesh.mask(own.axes)
        ]
        for op in graph.ops
        if op.body is not None and op.body.axes is not None
    }


def run_seconds(instance: Instance, collective: Collective) -> float:
    """Seconds that a collective takes per call."""
    mesh = instance.mesh
    return collective.count * mesh.collective_seconds(collective.kind, mesh.mask(collective.axes), collective.bytes)


def _arg_reduced(reduced: Collective, graph: Graph, producer: int, devices: float) -> list[Collective]:
    """An argmax over shards: every device gathers the others' best values and their indices."""
    values = graph.tensors[graph.ops[producer].operands[0]].aval
    indices = graph.tensors[graph.ops[producer].results[0]].aval
    elements = reduced.bytes / indices.itemsize
    return [
        replace(reduced, kind="all-gather", bytes=devices * elements * aval.itemsize, dtype=aval.dtype)
        for aval in (values, indices)
    ]


TABLE_BYTES = 8.0
"""XLA's CPU backend counts a pointer per result among the results."""


def _border_bytes(chosen: Chosen) -> tuple[float, float, float]:
    """Bytes per device of arguments, of results, and of results that reuse a donated argument's buffer.

    As `jax.jit` compiles them: arguments that nothing reads or returns are left out.
    """
    graph, together = chosen.instance.model.graph, chosen.instance.model.compiler.runs("one-memory")

    def stored(tensor: int) -> float:
        return chosen.stored_bytes(tensor) + (_host_bytes(chosen, tensor) if together else 0.0)

    kept = {graph.inputs[position] for position in graph.kept}
    fed = {out: stored(graph.inputs[position]) for out, position in graph.feeds.items()}
    outputs = sum(fed[i] if i in fed else stored(tensor) for i, tensor in enumerate(graph.outputs))
    if chosen.instance.model.compiler.runs("result-table"):
        outputs += TABLE_BYTES * len(graph.outputs)
    aliased = sum(fed[out] for out, position in graph.aliases.items() if graph.inputs[position] in kept)
    return sum(stored(t) for t in graph.inputs if t in kept), outputs, aliased
