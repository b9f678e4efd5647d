"""Corrected prices: an instance as it would be stated if its cost model had known what compilers or runs have shown.

For a program on a mesh, with factors k of computing, f of a collective by kind and axes, and extra seconds d:

    value of a strategy   k * seconds of its group + f(permute) * seconds of its halos + d(group, strategy)
    value of a reshard    sum over its collectives of f(kind, axes) * seconds

All are linear in what the solver sees, so what it proves holds of the corrected prices as of any others. `leaning` makes
some transfers dearer on purpose, to find plans that do without them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from pbqp.identity import numbered
from pbqp.problem import Array, Edge, Problem
from pbqp.vectors import Floats
from planner.decisions.decision_graph import Transfer
from planner.pricing.candidates.strategies import Strategies
from planner.pricing.instance import Instance
from planner.pricing.mesh import COLLECTIVES, Mesh
from planner.pricing.op_cost import Work

Split = tuple[int, tuple[int, ...]]
"""A form of groups (`Model.alike`) and one of its strategies: for every axis the factor that it splits, or -1."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prices:
    """What the prices of one mesh are multiplied by: `computing`, and `collectives` by kind and bit set of axes.

    `extra` seconds per call are added to every group of a form that is split in a way that was found to be dear.
    """

    computing: float = 1.0
    collectives: Mapping[tuple[str, int], float] = field(default_factory=dict[tuple[str, int], float])
    extra: Mapping[Split, float] = field(default_factory=dict[Split, float])


def corrected(instance: Instance, prices: Prices) -> Instance:
    """The instance at these prices; its objective must be the time."""
    distinct, of = numbered(instance.works)
    scaled = [None if work is None else _scaled(work, prices) for work in distinct]
    made = replace(
        instance,
        mesh=_priced(instance.mesh, prices),
        works=tuple(map(scaled.__getitem__, of)),
        node_values=(),
        given=None,
    )
    values = made.stated_values()
    if prices.extra:
        known: dict[tuple[int, int], Floats] = {}
        for node in made.model.flow.nodes:
            if node.group is not None:
                form, kind = made.model.alike[node.group], made.kind_of[node.id]
                if (form, kind) not in known:
                    known[form, kind] = _extra(made.tables[kind], form, prices.extra)
                values[node.id] = values[node.id] + known[form, kind]
    return replace(made, node_values=tuple(values))


def _priced(mesh: Mesh, prices: Prices) -> Mesh:
    """The mesh with the prices of its collectives corrected."""
    masks = range(1 << len(mesh.sizes))
    factors = {kind: np.asarray([prices.collectives.get((kind, mask), 1.0) for mask in masks]) for kind in COLLECTIVES}

    def times(tables: Mapping[str, Floats]) -> dict[str, Floats]:
        return {kind: table * factors[kind] for kind, table in tables.items()}

    return replace(
        mesh,
        fixed=times(mesh.fixed),
        per_byte=times(mesh.per_byte),
        fixed_seconds=times(mesh.fixed_seconds),
        seconds_per_byte=times(mesh.seconds_per_byte),
    )


def _scaled(work: Work, prices: Prices) -> Work:
    return replace(work, seconds=prices.computing * work.seconds)


def _extra(strategies: Strategies, form: int, extra: Mapping[Split, float]) -> Floats:
    """What the strategies of a group of this form cost besides."""
    found = np.zeros(len(strategies))
    for (other, split), seconds in extra.items():
        if other == form and len(split) == strategies.assignment.shape[1]:
            found[(strategies.assignment == np.asarray(split)).all(axis=1)] += seconds
    return found


def leaning(problem: Problem, transfers: list[Transfer], dearer: Callable[[Transfer], float]) -> Problem:
    """The problem with every transfer that many times as dear; `transfers` are those of its first edges, in order."""
    distinct, table_of = numbered(edge.costs for edge in problem.edges)
    known: dict[tuple[int, float], Array] = {}
    edges: list[Edge] = []
    for edge, table, transfer in zip(problem.edges, table_of, transfers, strict=False):
        key = (table, dearer(transfer))
        if key not in known:
            known[key] = distinct[table] if key[1] == 1.0 else key[1] * distinct[table]
        edges.append(Edge(nodes=edge.nodes, costs=known[key]))
    return replace(problem, edges=(*edges, *problem.edges[len(edges) :]))
