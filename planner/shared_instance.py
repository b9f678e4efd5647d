"""A shared instance: the problem with one decision for all copies of a layer, stated without stating the whole one.

What a node's strategies cost, and what a transfer costs for pairs of them, follow on every mesh from the groups that are
alike, the types of tensors and how their dims lie in the factors. So the classes of nodes (see `classes`) are those of the
program, worked out once; an instance of one member of each class has the tables of all, and the shared problem is made of
them with the numbers of members and of transfers between classes as factors. Building and solving it take as long for a
thousand layers as for ten.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from planner.classes import WORTHWHILE, Classes, Links, classify
from planner.collector import paused
from planner.flow import Flow, Transfer
from planner.identity import numbered
from planner.instance import Instance
from planner.model import PLACED_BY_USER, Model
from planner.narrow import ROUNDING, restricted, swept
from planner.problem import Array, Edge, Problem
from planner.shared_layers import SMALLEST
from planner.solve import Solution, solve
from planner.solve.sharing import Sharing


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Members:
    """A program's model cut down to the first member of every class; `classes` lead back to all nodes of the `whole`.

    `counts[i]` is how many transfers of the program transfer i of the smaller one stands for.
    """

    model: Model
    whole: Model
    classes: Classes
    counts: tuple[int, ...]


@paused()
def members(model: Model) -> Members | None:
    """The members of a program's classes; None where sharing decisions would lose something, or gain little."""
    nodes, moving = model.flow.nodes, model.moving
    # Specs that the program demands itself are not told apart by classes.
    if len(nodes) < SMALLEST or model.graph.of_kinds(PLACED_BY_USER):
        return None
    kinds = _numbered([_of_transfer(model, transfer) for transfer in moving])
    within = [(transfer, kind) for transfer, kind in zip(moving, kinds, strict=True) if _stays(transfer)]
    between = [(transfer, kind) for transfer, kind in zip(moving, kinds, strict=True) if not _stays(transfer)]
    links = Links(
        sources=np.asarray([transfer.source for transfer, _ in between], np.intp),
        targets=np.asarray([transfer.target for transfer, _ in between], np.intp),
        kinds=np.asarray([kind for _, kind in between], np.intp),
    )
    classes = classify(np.asarray(_numbered(_of_nodes(model, within)), np.intp), links)
    if not classes.lossless or classes.count > WORTHWHILE * len(nodes):
        return None
    return _cut_down(model, classes, [transfer for transfer, _ in within], between)


def _stays(transfer: Transfer) -> bool:
    return transfer.source == transfer.target


def _numbered(keys: list[Hashable]) -> list[int]:
    seen: dict[Hashable, int] = {}
    return [seen.setdefault(key, len(seen)) for key in keys]


def _of_transfer(model: Model, transfer: Transfer) -> Hashable:
    """All that its values follow from, but for the strategies of its ends."""
    aval = model.graph.aval_numbers[transfer.tensor]
    return transfer.source_dims, transfer.reduced, transfer.target_dims, aval, transfer.trips


def _of_nodes(model: Model, within: list[tuple[Transfer, int]]) -> list[Hashable]:
    """For every node all that its strategies and their values follow from."""
    graph = model.graph
    parts: list[list[Hashable]] = [[] for _ in model.flow.nodes]
    for transfer, kind in within:
        parts[transfer.source].append(("moves", kind))
    for tensor in graph.tensors:
        home = model.flow.home[tensor.id]
        if tensor.producer is None and home is not None and tensor.aval.size > 1:
            parts[home[0]].append(("stores", home[1], graph.aval_numbers[tensor.id]))
    found: list[Hashable] = []
    for node, of in zip(model.flow.nodes, parts, strict=True):
        shape = graph.tensors[node.tensor].aval.shape if node.tensor is not None else None
        own = shape if node.group is None else model.alike[node.group]
        found.append((own, frozenset(Counter(of).items()) if of else None))
    return found


def _cut_down(model: Model, classes: Classes, within: list[Transfer], between: list[tuple[Transfer, int]]) -> Members:
    """The model of the first members, numbered as the classes are."""
    first, of = classes.first.tolist(), classes.of.tolist()
    number = {node: place for place, node in enumerate(first)}
    kept = [t for t in within if t.source in number]
    counts = [1] * len(kept)
    seen: dict[tuple[int, int, int], int] = {}
    for transfer, kind in between:
        key = (of[transfer.source], of[transfer.target], kind)
        if key in seen:
            counts[seen[key]] += 1
        else:
            seen[key] = len(kept)
            kept.append(transfer)
            counts.append(1)
    home: list[tuple[int, tuple[tuple[int, ...], ...]] | None] = []
    for place in model.flow.home:
        known = None if place is None else number.get(place[0])
        home.append(None if place is None or known is None else (known, place[1]))
    flow = Flow(
        nodes=tuple(model.flow.nodes[node]._replace(id=place) for place, node in enumerate(first)),
        transfers=tuple(
            transfer._replace(id=i, source=of[transfer.source], target=of[transfer.target])
            for i, transfer in enumerate(kept)
        ),
        home=tuple(home),
        fetched=(),
    )
    return Members(model=replace(model, flow=flow), whole=model, classes=classes, counts=tuple(counts))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SharedInstance:
    """The shared problem of a program on one mesh, without memory rows, and the instance of the members it is made of."""

    members: Members
    instance: Instance
    problem: Problem

    @property
    def classes(self) -> Classes:
        """What leads from the members back to all nodes."""
        return self.members.classes

    @property
    def shape(self) -> Mapping[str, int]:
        """The mesh."""
        return self.instance.mesh.shape

    def whole(self) -> Instance:
        """The instance of the whole program: every node has what the first member of its class has."""
        return self.instance.spread(self.members.whole, self.classes.of.tolist())

    @property
    def floor(self) -> float:
        """The least value of computing: no plan of the mesh is below it."""
        return sum(float(np.min(costs)) for costs in self.problem.node_costs)

    def solve(self, *, cutoff: float, time_limit: float, seed: int, sharing: Sharing) -> Solution:
        """The solution of the whole problem without rows that `solve` would hand back: sharing loses nothing."""
        problem, kept = self.problem, None
        if math.isfinite(cutoff):
            room = max(cutoff - self.floor, 0.0) + ROUNDING * abs(cutoff)
            first = [np.flatnonzero(costs <= np.min(costs) + room) for costs in problem.node_costs]
            cheap = restricted(problem, first)
            left, bound = swept(cheap, cutoff)
            if bound >= cutoff:
                return Solution(
                    choice=None, value=math.inf, bound=cutoff, status="unknown", seconds=0.0, method="messages"
                )
            problem = restricted(cheap, left)
            kept = [positions[still] for positions, still in zip(first, left, strict=True)]
        found = solve(problem, time_limit=time_limit, seed=seed, cutoff=cutoff, sharing=sharing)
        decisions = {"decisions": int(self.classes.of.size), "shared_decisions": self.classes.count}
        choice = found.choice
        if choice is not None and kept is not None:
            choice = tuple(int(positions[pick]) for positions, pick in zip(kept, choice, strict=True))
        return replace(
            found,
            choice=None if choice is None else self.classes.lift(choice),
            bound=min(found.bound, cutoff),
            detail={**found.detail, **decisions, "lost_at_most": 0.0},
        )


def shared_instance(found: Members, instance: Instance) -> SharedInstance:
    """The shared problem of an instance of the members' model."""
    values = zip(found.classes.sizes.tolist(), instance.node_values, strict=True)
    between = [transfer for transfer in found.model.moving if transfer.source != transfer.target]
    distinct, table_of = numbered(map(instance.transfer_values, between))
    known: dict[tuple[int, int], Array] = {}
    edges: list[Edge] = []
    for transfer, number in zip(between, table_of, strict=True):
        table, count = distinct[number], found.counts[transfer.id]
        if (number, count) not in known:
            known[number, count] = table if count == 1 else count * table
        edges.append(Edge(nodes=(transfer.source, transfer.target), costs=known[number, count]))
    problem = Problem(
        name=f"mesh {instance.mesh.shape}, shared",
        node_costs=tuple(float(size) * of for size, of in values),
        edges=tuple(edges),
        node_names=tuple(node.name for node in found.model.flow.nodes),
    )
    return SharedInstance(members=found, instance=instance, problem=problem)
