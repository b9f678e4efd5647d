"""The work of an op that stays one op, as a `shard_map`, from that of its body.

The body is a program for one device: stated as any program is, on a mesh of one device, it has one strategy, and what that
takes is what a run of the op takes on each of its devices. The collectives of the body are priced on the real mesh.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.any_mesh.groups import Group
from planner.any_mesh.program_model import Model
from planner.one_mesh.body_memory import BodyMemory
from planner.one_mesh.chosen import Chosen
from planner.one_mesh.costs import Work
from planner.one_mesh.instance import Instance
from planner.one_mesh.memory import MemoryModel
from planner.one_mesh.mesh import Mesh
from planner.one_mesh.strategies import Strategies
from planner.program.graph import Body, Op
from planner.rules.collectives import collectives_of


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyCost:
    """What one run of a body takes on one device, but for its collectives.

    `guessed_bytes` is the part of the memory traffic that is of ops whose work is guessed; `memory` is held meanwhile.
    """

    seconds: float
    flops: float
    traffic_bytes: float
    guessed_bytes: float
    memory: BodyMemory


def body_cost(alone: Instance) -> BodyCost:
    """The cost of a body, from its problem on a mesh of one device, of which every node has one strategy."""
    chosen = Chosen(instance=alone, choice=(0,) * len(alone.model.flow.nodes))
    return BodyCost(
        seconds=chosen.total("seconds"),
        flops=chosen.total("flops"),
        traffic_bytes=chosen.total("traffic_bytes"),
        guessed_bytes=chosen.total("guessed_bytes"),
        memory=_memory(chosen),
    )


def _memory(chosen: Chosen) -> BodyMemory:
    """What a body holds, all of whose operands its own schedule holds from its start to its end."""
    model = chosen.instance.model
    held, graph = MemoryModel(instance=chosen.instance).profile(chosen.choice), model.graph
    made = [tensor for tensor in graph.returned if graph.tensors[tensor].producer is not None]
    return BodyMemory(
        # At the end nothing is held but the operands.
        beside=held - held[-1],
        returned=sum(map(chosen.stored_bytes, made)),
        operands={
            position: (chosen.stored_bytes(tensor), model.liveness.needed_until[tensor])
            for position, tensor in enumerate(graph.inputs)
        },
    )


def body_work(model: Model, op: Op, body: Body, cost: BodyCost, strategies: Strategies, mesh: Mesh) -> Work:
    """The work of every strategy of an op with such a body, per call.

    A device that stands for several does the work of all that run it. A body of whole arrays is split evenly.
    """
    trips = model.graph.regions[op.region].trips
    runs = trips * runs_on_device(model.grouping.groups[model.grouping.group_of[op.id]], body, strategies, mesh)
    value = seconds = 0.0
    for own in collectives_of(body) if runs_by_axes(body, mesh) else ():
        mask = mesh.mask(own.axes)
        kind = mesh.runs_as(own.kind, mask, own.bytes)
        value += own.trips * float(mesh.fixed[kind][mask] + mesh.per_byte[kind][mask] * own.bytes)
        seconds += own.trips * mesh.collective_seconds(own.kind, mask, own.bytes)
    each = np.full(len(strategies), trips)
    return Work(
        seconds=cost.seconds * runs,
        flops=cost.flops * runs,
        traffic_bytes=cost.traffic_bytes * runs,
        guessed_bytes=cost.guessed_bytes * runs,
        exchange=value * each,
        exchange_seconds=seconds * each,
    )


def runs_by_axes(body: Body, mesh: Mesh) -> bool:
    """Whether a mesh has the axes along which its devices run a body, each on its own parts."""
    return body.axes is not None and all(size == 1 or axis in mesh.names for axis, size in body.axes.items())


def runs_on_device(group: Group, body: Body, strategies: Strategies, mesh: Mesh) -> np.ndarray:
    """How much of a body's work a device does under each strategy: shape (len(strategies),)."""
    if body.axes is None:
        return 1 / strategies.shards(frozenset(range(len(group.sizes))))
    return np.full(len(strategies), 1.0 if runs_by_axes(body, mesh) else float(min(body.devices, mesh.stands_for)))
