"""Edges as small as they can be written: what one end alone decides moves into the node, equal lines are kept once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pbqp.identity import numbered
from pbqp.network.network import Indices, Network, classes, firsts
from pbqp.problem import Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CompactEdge:
    """A table between classes of choices: `costs[classes[0][p], classes[1][q]]` for choices p, q of its nodes."""

    nodes: tuple[int, int]
    classes: tuple[Indices, Indices]
    costs: Array


def normalise(network: Network) -> tuple[dict[int, Array], list[CompactEdge]]:
    """Unary costs and nonnegative compact edges that add up to the network's cost, less its constant.

    A choice without a possible partner costs infinitely much alone. Edges left with nothing are gone.
    """
    unary = {node: network.unary[node].copy() for node in sorted(network.live)}
    edges: list[CompactEdge] = []
    joined = list(network.edges())
    tables, table_of = numbered(table for _, _, table in joined)
    compact = list(map(_compact, tables))
    for (m, n, _), number in zip(joined, table_of, strict=True):
        row, column, ends, costs = compact[number]
        unary[m] += row
        unary[n] += column
        if costs.any():
            edges.append(CompactEdge(nodes=(m, n), classes=ends, costs=costs))
    return unary, edges


def _compact(table: Array) -> tuple[Array, Array, tuple[Indices, Indices], Array]:
    """The least cost of every line, then of every column, the classes of both, and the table between classes."""
    row = table.min(axis=1)
    rest = table - np.where(np.isfinite(row), row, 0.0)[:, None]
    column = rest.min(axis=0)
    rest = rest - np.where(np.isfinite(column), column, 0.0)
    of_rows, of_columns = classes(rest), classes(rest.T)
    return row, column, (of_rows, of_columns), rest[np.ix_(firsts(of_rows), firsts(of_columns))]
