"""A shared instance: the problem with one decision for all copies of a layer, stated without stating the whole one.

What a node's strategies cost, and what a transfer costs for pairs of them, follow on every mesh from the groups that are
alike, the types of tensors and how their dims lie in the factors. So the classes of nodes (see `alike_nodes`) are those
of the program, worked out once; an instance of one member of each class has the tables of all, and the shared problem
is made of them with the numbers of members and of transfers between classes as factors. Building and solving it take as
long for a thousand layers as for ten.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from pbqp.identity import numbered
from pbqp.memory_rows import Indices
from pbqp.problem import Array, Edge, Problem
from pbqp.smaller.alike_nodes import SHARING_PAYS, Classes, Links, classify
from pbqp.smaller.quotient import SMALLEST
from pbqp.smaller.smaller import Choice
from planner.compiler.analysis import PLACED_BY_USER, Model
from planner.decisions.decision_graph import Flow, LoopSum, Transfer
from planner.pricing.instance import Instance
from planner.pricing.mesh import Mesh
from planner.program.tracing.gc_pause import paused


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
def members(model: Model, pinned: Mapping[int, Sequence[Hashable]] | None = None) -> Members | None:
    """The members of a program's classes; None where sharing decisions would lose something, or gain little.

    `pinned` says by node what is asked of its arrays: nodes of which other things are asked are not alike.
    """
    nodes, moving = model.flow.nodes, model.moving
    # Specs that the program demands itself are not told apart by classes.
    if len(nodes) < SMALLEST or model.graph.of_kinds(PLACED_BY_USER):
        return None
    kind_of = model.transfer_kinds
    within = [(transfer, kind_of[transfer.id]) for transfer in moving if _stays(transfer)]
    between = [(transfer, kind_of[transfer.id]) for transfer in moving if not _stays(transfer)]
    sums = model.flow.scattered
    of_sums = _numbered([(kind_of[s.term.id], kind_of[s.read.id], s.share) for s in sums])
    links = Links(
        sources=np.asarray([t.source for t, _ in between] + [s.term.source for s in sums], np.intp),
        targets=np.asarray([t.target for t, _ in between] + [s.read.target for s in sums], np.intp),
        kinds=np.asarray([kind for _, kind in between] + [len(kind_of) + n for n in of_sums], np.intp),
    )
    classes = classify(np.asarray(_numbered(_of_nodes(model, within, pinned or {})), np.intp), links)
    if not classes.lossless or classes.count > SHARING_PAYS * len(nodes):
        return None
    return _cut_down(model, classes)


def _stays(transfer: Transfer) -> bool:
    return transfer.source == transfer.target


def _numbered(keys: list[Hashable]) -> list[int]:
    seen: dict[Hashable, int] = {}
    return [seen.setdefault(key, len(seen)) for key in keys]


def _of_nodes(
    model: Model, within: list[tuple[Transfer, int]], pinned: Mapping[int, Sequence[Hashable]]
) -> list[Hashable]:
    """For every node all that its strategies and their values follow from."""
    graph = model.graph
    parts: list[list[Hashable]] = [[] for _ in model.flow.nodes]
    for transfer, kind in within:
        parts[transfer.source].append(("moves", kind))
    for tensor in graph.tensors:
        home = model.flow.home[tensor.id]
        if tensor.producer is None and home is not None and tensor.aval.size > 1:
            parts[home[0]].append(("stores", home[1], graph.aval_numbers[tensor.id]))
    for node, pins in pinned.items():
        parts[node] += [("pinned", one) for one in pins]
    found: list[Hashable] = []
    for node, of in zip(model.flow.nodes, parts, strict=True):
        shape = graph.tensors[node.tensor].aval.shape if node.tensor is not None else None
        own = shape if node.group is None else model.alike[node.group]
        found.append((own, frozenset(Counter(of).items()) if of else None))
    return found


def _cut_down(model: Model, classes: Classes) -> Members:
    """The model of the first members, numbered as the classes are."""
    kind_of = model.transfer_kinds
    first, of = classes.first.tolist(), classes.of.tolist()
    number = {node: place for place, node in enumerate(first)}
    kept: list[Transfer] = []
    counts: list[int] = []
    seen: dict[tuple[int, int, int], int] = {}

    def key(transfer: Transfer) -> tuple[int, int, int]:
        return of[transfer.source], of[transfer.target], kind_of[transfer.id]

    for transfer in sorted(model.moving, key=_stays, reverse=True):
        if not _stays(transfer) and key(transfer) in seen:
            counts[seen[key(transfer)]] += 1
        elif not _stays(transfer) or transfer.source in number:
            seen[key(transfer)] = len(kept)
            kept.append(transfer)
            counts.append(1)
    shares: dict[tuple[int, int], float] = {}
    for term, read, share in model.flow.scattered:
        pair = seen[key(term)], seen[key(read)]
        shares[pair] = shares.get(pair, 0.0) + share
    home: list[tuple[int, tuple[tuple[int, ...], ...]] | None] = []
    for place in model.flow.home:
        known = None if place is None else number.get(place[0])
        home.append(None if place is None or known is None else (known, place[1]))
    transfers = tuple(
        transfer._replace(id=i, source=of[transfer.source], target=of[transfer.target])
        for i, transfer in enumerate(kept)
    )
    flow = Flow(
        nodes=tuple(model.flow.nodes[node]._replace(id=place) for place, node in enumerate(first)),
        transfers=transfers,
        home=tuple(home),
        fetched=(),
        accumulators=(),
        loop_sums=tuple(LoopSum(transfers[term], transfers[read], share) for (term, read), share in shares.items()),
    )
    spared = None if model.kernels is None else model.savings.of([transfer.id for transfer in kept])
    smaller = replace(model, flow=flow, given_savings=spared)
    return Members(model=smaller, whole=model, classes=classes, counts=tuple(counts))


@dataclass(frozen=True, kw_only=True, eq=False)
class SharedInstance:
    """The shared problem of a program on one mesh, without memory rows, made of the `instance` of the members.

    A `Smaller` form of the problem of all nodes. `given` is the problem where it is known already.
    """

    members: Members
    instance: Instance
    given: Problem | None = None

    bound = math.inf
    """Nothing is lost: copies have one and the same optimum."""

    @property
    def mesh(self) -> Mesh:
        """The mesh."""
        return self.instance.mesh

    def lift(self, choice: Choice) -> Indices:
        """The choice in which all members of a class choose alike."""
        return self.members.classes.lift(choice)

    def whole(self) -> Instance:
        """The instance of the whole program: every node has what the first member of its class has."""
        return self.instance.spread(self.members.whole, self.members.classes.of.tolist())

    def restricted(self, kept: Sequence[Indices], problem: Problem | None = None) -> SharedInstance:
        """The same with these strategies of every class only; `problem` is that of theirs, where it is known."""
        return replace(self, instance=self.instance.restricted(kept), given=problem)

    @property
    def node_values(self) -> tuple[Array, ...]:
        """The costs of every class: those of a member, times how many there are."""
        values = zip(self.members.classes.sizes.tolist(), self.instance.node_values, strict=True)
        return tuple(float(size) * of for size, of in values)

    @property
    def problem(self) -> Problem:
        """The problem with one node per class."""
        return self._stated if self.given is None else self.given

    @cached_property
    def _stated(self) -> Problem:
        model, counts = self.members.model, self.members.counts
        between = [transfer for transfer in model.moving if transfer.source != transfer.target]
        distinct, table_of = numbered(map(self.instance.transfer_values, between))
        known: dict[tuple[int, int], Array] = {}
        edges: list[Edge] = []
        for transfer, number in zip(between, table_of, strict=True):
            table, count = distinct[number], counts[transfer.id]
            if (number, count) not in known:
                known[number, count] = table if count == 1 else count * table
            edges.append(Edge(nodes=(transfer.source, transfer.target), costs=known[number, count]))
        return Problem(
            name=f"mesh {self.instance.mesh.shape}, shared",
            node_costs=self.node_values,
            # Every input is the only one of its class.
            edges=(*edges, *self.instance.after_loops, *self.instance.agreements),
            node_names=tuple(node.name for node in model.flow.nodes),
        )
