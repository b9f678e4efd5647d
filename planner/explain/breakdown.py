"""Where two choices of one problem differ in what they cost: computing by source line, collectives by kind and axes.

Only nodes that choose otherwise, and what travels to and from them, are looked at. The parts are in the unit of the
objective, and add up to the difference of the values of the two choices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from pbqp.vectors import Floats
from planner.decisions.decision_graph import Node, Transfer
from planner.pricing.assignment import Chosen
from planner.pricing.instance import Instance
from planner.pricing.reshards.reshard import Step

COMPUTING = "computing"
FEEDING = "feeding"
STORING = "storing"
"""What holding arguments adds to a value, so that ties go to what holds less."""
HALO = "collective-permute"


class Part(NamedTuple):
    """What one place in the program costs: `kind` is a collective's, or `COMPUTING`, `FEEDING` or `STORING`.

    `axes` are those of the collective; for computing those by which one of two choices splits and the other does not.
    `bytes` are moved per call, `value` is in the unit of the objective.
    """

    kind: str
    axes: tuple[str, ...]
    source: str
    tensor: str
    value: float
    bytes: float


def differences(mine: Chosen, other: Chosen) -> Iterator[tuple[Part, float]]:
    """What `other` costs otherwise than `mine`: parts of it with sign 1, those of `mine` with sign -1.

    Of computing there is one part for each node that is computed otherwise, with the difference and sign 1.
    """
    instance = mine.instance
    changed = {n for n, (a, b) in enumerate(zip(mine.choice, other.choice, strict=True)) if a != b}
    moving = [t for t in instance.model.moving if t.source in changed or t.target in changed]
    within: dict[int, list[Transfer]] = {}
    for transfer in moving:
        if transfer.source == transfer.target:
            within.setdefault(transfer.source, []).append(transfer)
    for node in sorted(changed):
        yield from _of_node(instance, node, (mine.choice[node], other.choice[node]), within.get(node, ()))
    for edge in instance.agreements:
        one, two = edge.nodes
        apart = float(edge.costs[other.choice[one], other.choice[two]] - edge.costs[mine.choice[one], mine.choice[two]])
        if apart:
            yield Part(FEEDING, (), _source(instance, instance.model.flow.nodes[two]), "", apart, 0.0), 1.0
    for chosen, sign in ((other, 1.0), (mine, -1.0)):
        steps = {transfer.id: taken for transfer, taken in chosen.moves}
        for transfer in moving:
            yield from ((part, sign) for part in _of_transfer(chosen, transfer, steps.get(transfer.id, ())))


def _of_node(
    instance: Instance, node: int, picks: tuple[int, int], within: Sequence[Transfer]
) -> Iterator[tuple[Part, float]]:
    """What a node computes, exchanges with neighbours and stores otherwise; `within` are its own transfers, told apart."""
    where, work, (before, after) = instance.model.flow.nodes[node], instance.works[node], picks
    left = _change(instance.node_values[node], picks)
    left -= math.fsum(_change(np.diagonal(instance.transfer_values(transfer)), picks) for transfer in within)
    source = _source(instance, where)
    if work is not None:
        value = instance.objective.compute(seconds=work.seconds, flops=work.flops, bytes=work.traffic_bytes)
        computed, exchanged = (instance.weight * _change(of, picks) for of in (value, work.exchange))
        left -= computed + exchanged
        axes = _lost(instance, node, before, after) if computed > 0 else _lost(instance, node, after, before)
        yield Part(COMPUTING, axes, source, where.name, computed, 0.0), 1.0
        if exchanged:
            yield Part(HALO, (), source, where.name, exchanged, 0.0), 1.0
    if node in instance.feeding_values:
        fed = _change(instance.feeding_values[node], picks)
        left -= fed
        yield Part(FEEDING, (), source, where.name, fed, 0.0), 1.0
    if left:
        yield Part(STORING, (), source, where.name, left, 0.0), 1.0


def _change(values: Floats, picks: tuple[int, int]) -> float:
    return float(values[picks[1]]) - float(values[picks[0]])


def _lost(instance: Instance, node: int, before: int, after: int) -> tuple[str, ...]:
    """The axes that split something with one strategy of a node, and nothing with another."""
    assignment = instance.strategies[node].assignment
    pairs = zip(instance.mesh.names, assignment[before].tolist(), assignment[after].tolist(), strict=True)
    return tuple(name for name, a, b in pairs if a >= 0 and b < 0)


def _of_transfer(chosen: Chosen, transfer: Transfer, steps: Sequence[Step]) -> Iterator[Part]:
    """The collectives of a transfer and the slices that it copies, with what each adds to the value."""
    instance = chosen.instance
    values = instance.transfer_values(transfer)
    value = float(values[chosen.choice[transfer.source], chosen.choice[transfer.target]])
    value += math.fsum(
        instance.loop_sum_values(s)[chosen.choice[transfer.source], chosen.choice[s.read.target]]
        for s in instance.loop_sums
        if s.term.id == transfer.id
    )
    if not value:
        return
    seconds = chosen.step_seconds(transfer, steps)
    taken = [(step, of) for step, of in zip(steps, seconds, strict=True) if step.kind is not None or of]
    total, trips = math.fsum(seconds), chosen.trips(transfer)
    name = instance.model.graph.tensors[transfer.tensor].name
    for step, own in taken:
        share = own / total if total else 1 / len(taken)
        axes = instance.mesh.axes(step.mask)
        yield Part(step.kind or COMPUTING, axes, transfer.source_line, name, share * value, trips * step.bytes)


def _source(instance: Instance, node: Node) -> str:
    """The source line of a decision: that of its first op, or of the first reader of its tensor."""
    graph = instance.model.graph
    if node.group is not None:
        return graph.ops[instance.model.grouping.groups[node.group].ops[0]].source
    tensor = graph.tensors[node.tensor] if node.tensor is not None else None
    if tensor is None:
        return ""
    if tensor.producer is not None:
        return graph.ops[tensor.producer].source
    readers = graph.consumers[tensor.id]
    return graph.ops[readers[0][0]].source if readers else ""
