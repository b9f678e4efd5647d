"""What a report says of a plan's program: seconds by place, memory over the schedule, and the op graph folded by place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from planner.explain.op_graph import OpGraph
from planner.folded import fold_numbers
from planner.pricing.memory.memory_model import MemoryModel

Node = Mapping[str, Any]
"""The attributes of a node of the op graph."""
By = Literal["by module", "by line"]
"""What a place is: the module that an op's name says, else its file; or its source line."""
StageKey = tuple[str, str]
"""The region and the name of a stage."""
MOST_POINTS = 320
"""Points of the memory profile that are drawn: the fullest of each part of the schedule."""
MOST_HELD = 12
MOST_STAGES = 120
"""Places of the drawn op graph; those that take least are joined by region."""
MOST_FLOWS = 260
MOST_KINDS = 6
ENDS = ("argument", "constant", "result")
"""Nodes that are no ops."""
OTHERS = "other places"
PHASES = ("backward", "recomputed")
"""What a module's name may end with, before the kind of the op."""
OUTSIDE = "program"
"""The region of arguments and results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What the ops and collectives at one place take; seconds per call."""

    source: str
    compute_seconds: float
    communication_seconds: float

    @property
    def seconds(self) -> float:
        """Both."""
        return self.compute_seconds + self.communication_seconds

    def order(self) -> tuple[float, str]:
        """The key of an order: those that take longest first."""
        return -self.seconds, self.source


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """An array that is in memory at the peak, in bytes per device."""

    name: str
    bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOverTime:
    """Bytes per device over the schedule, as (step, bytes) points that keep the peak, and the arrays that make the peak."""

    points: tuple[tuple[int, float], ...]
    steps: int
    peak_step: int
    peak_bytes: float
    where: str
    held: tuple[Held, ...]
    held_more: int
    held_more_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The ops of one place in one region: what they compute, and how the longest of them is split."""

    id: int
    region: str
    trips: float
    source: str
    ops: int
    kinds: tuple[str, ...]
    seconds: float
    flops: float
    strategy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFlow:
    """The arrays that one stage makes and another reads; `collective` are the kinds of collectives that take them there.

    `tensor` and the specs are those of the array that takes longest.
    """

    source: int
    target: int
    tensor: str
    arrays: int
    bytes: float
    moved_bytes: float
    seconds: float
    collective: str
    spec_from: str
    spec_to: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """The op graph with the ops of one place as one stage; `name` says what a place is."""

    name: By
    stages: tuple[Stage, ...]
    flows: tuple[StageFlow, ...]


# ---------------------------------------------------------------- time


def seconds_by_place(graph: OpGraph, by: By) -> tuple[Line, ...]:
    """Seconds by place, most first: computing at the place of an op, collectives at that of the op that reads.

    Modules whose names differ in their numbers, those of repeated layers, are one.
    """
    place, found = _PLACES[by], defaultdict[str, list[float]](lambda: [0.0, 0.0])
    for _, node in graph.nodes(data=True):
        if node["seconds"]:
            found[place(node)][0] += node["seconds"]
    for source, target, edge in graph.edges(data=True):
        if edge["seconds"]:
            reader, maker = graph.nodes[target], graph.nodes[source]
            found[place(reader if reader["op"] not in ENDS or maker["op"] in ENDS else maker)][1] += edge["seconds"]
    names = list(found)
    alike = [None if by == "by module" else name for name in names]
    lines = [
        Line(
            source=name,
            compute_seconds=sum(found[names[i]][0] for i in members),
            communication_seconds=sum(found[names[i]][1] for i in members),
        )
        for name, members in fold_numbers(names, alike)
    ]
    return tuple(sorted(lines, key=Line.order))


def _source(node: Node) -> str:
    """The source line of an op."""
    return node["source"] or node["op"]


def _module(node: Node) -> str:
    """The module of an op, as its name says it, else the file of its source line."""
    if "/" in node["label"] and " " not in node["label"]:
        parts = node["label"].split("/")[:-1]
        while parts and parts[-1] in PHASES:
            parts.pop()
        if parts:
            return "/".join(parts)
    return node["source"].rpartition(":")[0] or _source(node)


_PLACES: Mapping[By, Callable[[Node], str]] = {"by module": _module, "by line": _source}


# ---------------------------------------------------------------- memory


def memory_over_time(memory: MemoryModel, choice: Sequence[int]) -> MemoryOverTime:
    """The memory profile of a choice, and what is alive at its peak."""
    profile = memory.profile(choice)
    peak = int(profile.argmax())
    alive = [(name, size) for name, size in memory.alive(peak, choice) if size > 0]
    width = max(1, -(-profile.size // MOST_POINTS))
    steps = [start + int(np.argmax(profile[start : start + width])) for start in range(0, profile.size, width)]
    return MemoryOverTime(
        points=tuple((step, float(profile[step])) for step in steps),
        steps=int(profile.size),
        peak_step=peak,
        peak_bytes=float(profile[peak]),
        where=memory.describe(peak).removeprefix("memory at "),
        held=tuple(Held(name=name, bytes=size) for name, size in alive[:MOST_HELD]),
        held_more=len(alive[MOST_HELD:]),
        held_more_bytes=sum(size for _, size in alive[MOST_HELD:]),
    )


# ---------------------------------------------------------------- the op graph, folded


def fold_ops(graph: OpGraph, by: By) -> Fold:
    """The ops by region and place in program order, between the arguments and the results, and the arrays they pass on."""
    places = _places(graph, by)
    nodes = defaultdict[StageKey, list[Node]](list)
    for place in places.values():
        nodes[place] = []
    for name, node in graph.nodes(data=True):
        nodes[places[name]].append(node)
    ids = {place: i for i, place in enumerate(nodes)}
    edges = defaultdict[tuple[int, int], list[Any]](list)
    for source, target, edge in graph.edges(data=True):
        pair = ids[places[source]], ids[places[target]]
        if pair[0] != pair[1] or edge["collective"]:
            edges[pair].append(edge)
    flows = sorted(
        (_flow(*pair, passed) for pair, passed in edges.items()),
        key=lambda flow: (-flow.seconds, -flow.bytes, flow.source, flow.target),
    )
    stages = tuple(_stage(ids[place], place, inside) for place, inside in nodes.items())
    return Fold(name=by, stages=stages, flows=tuple(flows[:MOST_FLOWS]))


def _places(graph: OpGraph, by: By) -> dict[str, StageKey]:
    """For every node the place it is drawn at, results last; of more than are drawn those that take least are one."""
    places: dict[str, StageKey] = {}
    results: dict[str, StageKey] = {}
    weight = defaultdict[StageKey, float](float)
    for name, node in graph.nodes(data=True):
        if node["op"] == "result":
            results[name] = (OUTSIDE, "results")
        elif node["op"] in ENDS:
            places[name] = (OUTSIDE, "arguments")
        else:
            places[name] = (node["region"], _PLACES[by](node))
            weight[places[name]] += node["seconds"]
    for _, target, edge in graph.edges(data=True):
        if target in places:
            weight[places[target]] += edge["seconds"]
    small = set(sorted(weight, key=lambda place: (-weight[place], place))[MOST_STAGES:])
    return {name: (at[0], OTHERS) if at in small else at for name, at in places.items()} | results


def _stage(number: int, place: StageKey, nodes: Sequence[Node]) -> Stage:
    by_time = sorted(nodes, key=lambda node: -node["seconds"])
    kinds = dict.fromkeys(node["op"] for node in by_time if node["op"] not in ENDS)
    return Stage(
        id=number,
        region=place[0],
        trips=float(by_time[0]["trips"]),
        source=place[1],
        ops=len(nodes),
        kinds=tuple(kinds)[:MOST_KINDS],
        seconds=sum(node["seconds"] for node in nodes),
        flops=sum(node["flops"] for node in nodes),
        strategy=str(by_time[0]["strategy"]),
    )


def _flow(source: int, target: int, edges: Sequence[Any]) -> StageFlow:
    largest = max(edges, key=lambda edge: (edge["seconds"], edge["tensor_bytes"]))
    kinds = dict.fromkeys(kind for edge in edges for kind in edge["collective"].split("+") if kind)
    sizes = {edge["tensor"]: edge["tensor_bytes"] for edge in edges}
    return StageFlow(
        source=source,
        target=target,
        tensor=largest["tensor"],
        arrays=len(sizes),
        bytes=sum(sizes.values()),
        moved_bytes=sum(edge["bytes"] for edge in edges),
        seconds=sum(edge["seconds"] for edge in edges),
        collective=" + ".join(kinds),
        spec_from=largest["spec_from"],
        spec_to=largest["spec_to"],
    )
