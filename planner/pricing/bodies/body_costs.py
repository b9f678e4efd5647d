"""The work of an op that stays one op, as a `shard_map`, from that of its body.

The body is a program for one device: stated as any program is, on a mesh of one device, it has one strategy, and what that
takes is what a run of the op takes on each of its devices. The collectives of the body are priced on the real mesh.

XLA inlines the body of a `shard_map` once it has partitioned the program, and what the body takes and returns stands where
any array of the program does: on the chip, if it is small and read soon after it was made. So a body has two costs, with
these arrays in memory and on the chip, and the program around it says how much of the difference counts. In the schedule
by libtpu 0.0.42 (v5e) of a model of the weather with 267 small bodies in a loop, next to nothing between them goes to
memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np

from cost_models import Objective
from pbqp.vectors import Floats
from planner.compiler.analysis import Model
from planner.compiler.fusion.bytes_accessed import ON_CHIP, array_of
from planner.decisions.groups import Group
from planner.pricing.assignment import Chosen
from planner.pricing.bodies.body_memory import BodyMemory
from planner.pricing.candidates.strategies import Strategies
from planner.pricing.instance import Instance
from planner.pricing.mesh import Mesh
from planner.pricing.op_cost import Work, in_memory, local_bytes_of
from planner.program.graph import Body, Op
from planner.rules.collectives import beside_permutes, collectives_of
from planner.rules.primitives import traits


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyCost:
    """What one run of a body takes on one device, but for its collectives.

    `guessed_bytes` is the part of the memory traffic that is of ops whose work is guessed; `memory` is held meanwhile.
    `beside_seconds` are those of products that run while permutes of the body do, on a TPU.
    """

    seconds: float
    beside_seconds: float
    flops: float
    traffic_bytes: float
    guessed_bytes: float
    memory: BodyMemory


class BodyCosts(NamedTuple):
    """The costs of a body where all that it takes and returns is in memory, and where of that on the chip is what fits.

    `border` are the bytes that it reads of each array that it takes and writes of each that it returns, in these orders.
    """

    in_memory: BodyCost
    on_chip: BodyCost
    border: tuple[float, ...]


def body_cost(alone: Instance) -> BodyCost:
    """The cost of a body, from its problem on a mesh of one device, of which every node has one strategy."""
    chosen = Chosen(instance=alone, choice=(0,) * len(alone.model.flow.nodes))
    beside = beside_permutes(alone.model.graph)
    of_group = [node.group for node in alone.model.flow.nodes]
    products = [
        float(work.seconds[0])
        for work, group in zip(alone.works, of_group, strict=True)
        if work is not None and group is not None and beside.intersection(alone.model.grouping.groups[group].ops)
    ]
    return BodyCost(
        seconds=chosen.total("seconds"),
        beside_seconds=sum(products),
        flops=chosen.total("flops"),
        traffic_bytes=chosen.total("traffic_bytes"),
        guessed_bytes=chosen.total("guessed_bytes"),
        memory=_memory(chosen),
    )


def _memory(chosen: Chosen) -> BodyMemory:
    """What a body holds, all of whose operands its own schedule holds from its start to its end."""
    model = chosen.instance.model
    held, graph = chosen.memory.profile(chosen.choice), model.graph
    made = [tensor for tensor in graph.returned if graph.tensors[tensor].producer is not None]
    return BodyMemory(
        # At the end nothing is held but the operands.
        beside=held - held[-1],
        returned=sum(map(chosen.stored_bytes, made)),
        operands={
            position: (chosen.stored_bytes(tensor), model.compiled.last_use[tensor])
            for position, tensor in enumerate(graph.inputs)
        },
    )


def body_work(
    model: Model,
    op: Op,
    body: Body,
    costs: BodyCosts,
    strategies: Strategies,
    mesh: Mesh,
    objective: Objective,
) -> Work:
    """The work of every strategy of an op with such a body, per call.

    A device that stands for several does the work of all that run it. A body of whole arrays is split evenly.
    """
    trips = model.graph.regions[op.region].trips
    group = model.grouping.groups[model.grouping.group_of[op.id]]
    runs = trips * runs_on_device(group, body, strategies, mesh)
    share = _in_memory(model, group, costs, strategies, mesh)

    def counted(attribute: str) -> Floats:
        low, high = getattr(costs.on_chip, attribute), getattr(costs.in_memory, attribute)
        return (low + share * (high - low)) * runs

    value = seconds = permuted = 0.0
    two_way = mesh.compiler.runs("async-collective-permute")
    for own in collectives_of(body) if runs_by_axes(body, mesh) else ():
        mask = mesh.mask(own.axes)
        kind = mesh.runs_as(own.kind, mask, own.bytes)
        # Of two permutes that run at the same time each is charged half; they take as much energy as one after the other.
        apart = own.trips / 2 if own.two_way and two_way else own.trips
        duration = apart * mesh.collective_seconds(own.kind, mask, own.bytes)
        seconds += duration
        permuted += duration if own.kind == "collective-permute" and two_way else 0.0
        value += own.trips * float(mesh.fixed[kind][mask] + mesh.per_byte[kind][mask] * own.bytes)
    seconds -= min(permuted, costs.on_chip.beside_seconds)
    if objective.name == "time":
        value = seconds
    each = np.full(len(strategies), trips)
    return Work(
        seconds=counted("seconds"),
        flops=counted("flops"),
        traffic_bytes=counted("traffic_bytes"),
        guessed_bytes=counted("guessed_bytes"),
        exchange=value * each,
        exchange_seconds=seconds * each,
    )


def border_bytes(body: Model) -> tuple[float, ...]:
    """The bytes that a body moves of each array that it takes, and of each that it returns, were all of them in memory."""
    graph, found = body.graph, dict[int, float]()
    of_group = {} if body.kernels is None else body.kernels.of_group
    for kernel in (kernel for kernels in of_group.values() for kernel in kernels):
        op = graph.ops[kernel.op]
        for access in chain(*kernel.operands, *kernel.results, kernel.others):
            if access.home in ("border", "border product"):
                own = graph.tensors[access.tensor].aval.bytes
                picked = traits(op.kind).picks and access.tensor == op.operands[0]
                moved = sum(aval.bytes for aval in graph.avals(op.results)) if picked else access.times * own
                found[access.tensor] = found.get(access.tensor, 0.0) + graph.regions[op.region].trips * moved
    return tuple(found.get(tensor, 0.0) for tensor in (*graph.inputs, *graph.outputs))


def _in_memory(model: Model, group: Group, costs: BodyCosts, strategies: Strategies, mesh: Mesh) -> Floats:
    """The share of what a body moves of small arrays that it takes and returns, that comes from memory or goes there.

    All of it where it is not known which kernels the compiler makes; nothing by a device that stands for several.
    """
    kernels = () if model.kernels is None else model.kernels.of_group.get(group.id, ())
    if mesh.pooled_devices > 1:
        return np.zeros(len(strategies))
    accesses = [access for kernel in kernels for access in (*kernel.operands, *kernel.results)]
    if len(accesses) != len(costs.border):
        return np.ones(len(strategies))
    total = moved = np.zeros(len(strategies))
    on_chip = ON_CHIP["border"] * mesh.on_chip_bytes
    for own, border in zip(accesses, costs.border, strict=True):
        for array in map(array_of, own):
            small = border * (local_bytes_of(array, strategies, mesh.compiler) <= on_chip)
            total, moved = total + small, moved + small * in_memory(array, strategies, mesh)
    return np.divide(moved, total, out=np.zeros(len(strategies)), where=total > 0)


def runs_by_axes(body: Body, mesh: Mesh) -> bool:
    """Whether a mesh has the axes along which its devices run a body, each on its own parts."""
    return body.axes is not None and all(size == 1 or axis in mesh.names for axis, size in body.axes.items())


def runs_on_device(group: Group, body: Body, strategies: Strategies, mesh: Mesh) -> np.ndarray:
    """How much of a body's work a device does under each strategy: shape (len(strategies),)."""
    if body.axes is None:
        return 1 / strategies.shards(frozenset(range(len(group.sizes))))
    return np.full(len(strategies), 1.0 if runs_by_axes(body, mesh) else float(min(body.devices, mesh.pooled_devices)))
