"""What a page shows, gathered from a decision and, where the program is there, from its op graph and its memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from jax.sharding import PartitionSpec

from planner.decision import Decision
from planner.explain.explain import Alternatives
from planner.explain.op_graph import OpGraph
from planner.pricing.candidates.specs import entries_of
from planner.pricing.memory import MemoryModel
from planner.program.spec_entries import parts_over
from planner.program.tracing.traced import Leaf
from planner.report.collective_seconds import collective_seconds
from planner.report.html.page_data import (
    Flow,
    Folded,
    Held,
    Line,
    MemoryOverStep,
    Moved,
    PageData,
    Placed,
    Stage,
)
from planner.report.rows import returned_as_taken, rows_of

Node = Mapping[str, Any]
"""The attributes of a node of the op graph."""
MOST_POINTS = 320
"""Points of the memory profile that are drawn: the fullest of each part of the schedule."""
MOST_HELD = 12
MOST_STAGES = 120
"""Source lines of the drawn op graph; those that take least are joined by module."""
MOST_FLOWS = 260
MOST_KINDS = 6
ENDS = ("argument", "constant", "result")
"""Nodes that are no ops."""
OTHERS = "other places"
STAGES = ("backward", "recomputed")
"""What a module's name may end with, before the kind of the op."""
OUTSIDE = "program"
"""The region of arguments and results."""


def page_data(decision: Decision, behind: Alternatives | None) -> PageData:
    """The data of a plan's page; `behind` is what its program adds, None where only the plan is there."""
    taken = returned_as_taken(decision.arguments, decision.in_specs, decision.results, decision.out_specs)
    left = [i for i in range(len(decision.results)) if i not in taken]
    network = None if behind is None else behind.network
    folds = () if network is None else (_folded(network, "by module"), _folded(network, "by line"))
    return PageData(
        decision=decision,
        lines=_lines_of_plan(decision) if network is None else _lines(network, _source),
        modules=() if network is None else _lines(network, _module),
        memory=None if behind is None else _memory(behind.memory, behind.choice),
        moved=_moved(decision),
        folds=folds,
        arguments=_placed(decision.arguments, decision.in_specs, decision.mesh_shape),
        results=_placed(
            [decision.results[i] for i in left], [decision.out_specs[i] for i in left], decision.mesh_shape
        ),
        has_program=behind is not None,
    )


# ---------------------------------------------------------------- time


def _lines(network: OpGraph, place: Callable[[Node], str]) -> tuple[Line, ...]:
    """Seconds by place, most first: computing at the place of an op, moves at that of the op that reads."""
    found: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for _, node in network.nodes(data=True):
        if node["seconds"]:
            found[place(node)][0] += node["seconds"]
    for source, target, edge in network.edges(data=True):
        if edge["seconds"]:
            reader, maker = network.nodes[target], network.nodes[source]
            found[place(reader if reader["op"] not in ENDS or maker["op"] in ENDS else maker)][1] += edge["seconds"]
    return _sorted(found)


def _lines_of_plan(decision: Decision) -> tuple[Line, ...]:
    """Seconds of communication by source line, from what a plan says alone."""
    found: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for one, seconds in zip(decision.predicted.collectives, collective_seconds(decision) or (), strict=False):
        found[one.source or one.tensor][1] += seconds
    return _sorted(found)


def _sorted(found: Mapping[str, Sequence[float]]) -> tuple[Line, ...]:
    lines = [Line(source=source, compute_seconds=c, communication_seconds=m) for source, (c, m) in found.items()]
    return tuple(sorted(lines, key=lambda line: (-line.seconds, line.source)))


def _moved(decision: Decision) -> tuple[Moved, ...]:
    """The collectives by kind and axes, those that take longest first."""
    seconds = collective_seconds(decision)
    links = _links(decision)
    totals: dict[tuple[str, tuple[str, ...]], list[float]] = defaultdict(lambda: [0.0] * 3)
    for i, one in enumerate(decision.predicted.collectives):
        total = totals[one.kind, one.axes]
        total[0] += one.count
        total[1] += one.count * one.bytes
        total[2] += seconds[i] if seconds is not None else 0.0
    found = [
        Moved(
            kind=kind,
            axes=axes,
            devices=parts_over(axes, decision.mesh_shape),
            links=", ".join(dict.fromkeys(links[axis] for axis in axes if links.get(axis))),
            runs=runs,
            bytes=size,
            seconds=taken if seconds is not None else None,
        )
        for (kind, axes), (runs, size, taken) in totals.items()
    ]
    return tuple(sorted(found, key=lambda m: (-(m.seconds or 0.0), -m.bytes, m.kind, m.axes)))


KINDS_OF_LINKS = {"torus": "neighbours' wires", "switch": "switch", "full": "wires between all", "network": "network"}


def _links(decision: Decision) -> dict[str, str]:
    """For every axis what it runs along: the kind of its wires and the dims of the machine."""
    links = decision.request.topology.links(tuple(decision.mesh_shape.values())) or ()
    found: dict[str, str] = {}
    for name, link in zip(decision.mesh_shape, links, strict=False):
        kinds = dict.fromkeys(KINDS_OF_LINKS[segment.kind] for segment in link.dims if segment.extent > 1)
        rings = any(segment.wrap and segment.kind == "torus" for segment in link.dims)
        found[name] = " and ".join(kinds) + (" in rings" if rings else "")
    return found


# ---------------------------------------------------------------- memory


def _memory(memory: MemoryModel, choice: Sequence[int]) -> MemoryOverStep:
    profile = memory.profile(choice)
    top = int(profile.argmax())
    alive = [(name, size) for name, size in memory.alive(top, choice) if size > 0]
    width = max(1, -(-profile.size // MOST_POINTS))
    starts = range(0, profile.size, width)
    kept = [start + int(np.argmax(profile[start : start + width])) for start in starts]
    rest = alive[MOST_HELD:]
    return MemoryOverStep(
        points=tuple((step, float(profile[step])) for step in kept),
        steps=int(profile.size),
        peak_step=top,
        peak_bytes=float(profile[top]),
        where=memory.describe(top).removeprefix("memory at "),
        held=tuple(Held(name=name, bytes=size) for name, size in alive[:MOST_HELD]),
        held_more=len(rest),
        held_more_bytes=sum(size for _, size in rest),
    )


# ---------------------------------------------------------------- the op graph, folded


def _folded(network: OpGraph, by: Literal["by module", "by line"]) -> Folded:
    """The ops by body and place in program order, between the arguments and the results, and what travels."""
    keys = _keys(network, _module if by == "by module" else _source)
    order = list(dict.fromkeys(keys.values()))
    ids = {key: i for i, key in enumerate(order)}
    made: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for name, node in network.nodes(data=True):
        made[keys[name]].append(node)
    stages: list[Stage] = []
    for key in order:
        nodes = made[key]
        longest = max(nodes, key=lambda node: node["seconds"])
        stages.append(
            Stage(
                id=ids[key],
                region=key[0],
                trips=float(longest["trips"]),
                source=key[1],
                ops=len(nodes),
                kinds=_kinds(nodes),
                seconds=sum(node["seconds"] for node in nodes),
                flops=sum(node["flops"] for node in nodes),
                strategy=str(longest["strategy"]),
            )
        )
    joined: dict[tuple[int, int], list[Any]] = defaultdict(list)
    for source, target, edge in network.edges(data=True):
        pair = ids[keys[source]], ids[keys[target]]
        if pair[0] != pair[1] or edge["collective"]:
            joined[pair].append(edge)
    flows = [_flow(pair, edges) for pair, edges in joined.items()]
    flows.sort(key=lambda flow: (-flow.seconds, -flow.bytes, flow.source, flow.target))
    return Folded(name=by, stages=tuple(stages), flows=tuple(flows[:MOST_FLOWS]))


def _kinds(nodes: Sequence[Any]) -> tuple[str, ...]:
    """The kinds of some ops, those that take longest first."""
    kinds = dict.fromkeys(node["op"] for node in sorted(nodes, key=lambda node: -node["seconds"]))
    return tuple(kind for kind in kinds if kind not in ENDS)[:MOST_KINDS]


def _keys(network: OpGraph, place: Callable[[Node], str]) -> dict[str, tuple[str, str]]:
    """For every node the body and place it is drawn at; of more places than are drawn those that take least are one."""
    plain: dict[str, tuple[str, str]] = {}
    weight: dict[tuple[str, str], float] = defaultdict(float)
    results: dict[str, tuple[str, str]] = {}
    for name, node in network.nodes(data=True):
        if node["op"] in ENDS:
            side = plain if node["op"] != "result" else results
            side[name] = (OUTSIDE, "results" if node["op"] == "result" else "arguments")
            continue
        plain[name] = (node["region"], place(node))
        weight[plain[name]] += node["seconds"]
    for _, target, edge in network.edges(data=True):
        if target in plain:
            weight[plain[target]] += edge["seconds"]
    kept = set(sorted(weight, key=lambda key: (-weight[key], key))[:MOST_STAGES])
    fold = len(weight) > MOST_STAGES
    found = {
        name: key if not fold or key in kept or key[1] == "arguments" else (key[0], OTHERS)
        for name, key in plain.items()
    }
    return found | results


def _source(node: Node) -> str:
    """The source line of an op."""
    return node["source"] or node["op"]


def _module(node: Node) -> str:
    """The module of an op, as its name tells it, else the file of its source line."""
    if "/" in node["label"] and " " not in node["label"]:
        parts = node["label"].split("/")[:-1]
        while parts and parts[-1] in STAGES:
            parts.pop()
        if parts:
            return "/".join(parts)
    return node["source"].rpartition(":")[0] or _source(node)


def _flow(pair: tuple[int, int], edges: Sequence[Any]) -> Flow:
    largest = max(edges, key=lambda edge: (edge["seconds"], edge["tensor_bytes"]))
    kinds = dict.fromkeys(kind for edge in edges for kind in edge["collective"].split("+") if kind)
    return Flow(
        source=pair[0],
        target=pair[1],
        tensor=largest["tensor"],
        arrays=len({edge["tensor"] for edge in edges}),
        bytes=sum({edge["tensor"]: edge["tensor_bytes"] for edge in edges}.values()),
        moved_bytes=sum(edge["bytes"] for edge in edges),
        seconds=sum(edge["seconds"] for edge in edges),
        collective=" + ".join(kinds),
        spec_from=largest["spec_from"],
        spec_to=largest["spec_to"],
    )


# ---------------------------------------------------------------- arrays


def _placed(leaves: Sequence[Leaf], specs: Sequence[PartitionSpec], mesh: Mapping[str, int]) -> tuple[Placed, ...]:
    """The arrays, those that are alike as one, the largest first."""
    found: list[Placed] = []
    for row in rows_of(leaves, specs, mesh):
        shape = _shape(row.type)
        axes = [tuple(axis for axis in entry if mesh[axis] > 1) for entry in entries_of(row.spec)]
        axes += [()] * (len(shape) - len(axes))
        found.append(
            Placed(
                name=row.name,
                type=row.type,
                shape=shape,
                axes=tuple(axes),
                bytes=row.bytes,
                count=row.count,
                also=row.also,
            )
        )
    return tuple(sorted(found, key=lambda placed: -placed.bytes))


def _shape(kind: str) -> tuple[int, ...]:
    """The shape in a type as jaxprs print it: `f32[4, 64]`."""
    inside = kind[kind.index("[") + 1 : -1]
    return tuple(int(extent) for extent in inside.split(",") if extent.strip())
