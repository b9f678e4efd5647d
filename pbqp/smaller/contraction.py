"""Contraction: nodes of one block choose alike, the first with the first, the second with the second choice of all.

The costs of a block are the sums of those of its nodes and of the edges between them, its bytes in a row likewise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pbqp.memory_rows import Indices
from pbqp.problem import Array, Edge, Problem
from pbqp.smaller.quotient import classes_of
from pbqp.smaller.smaller import Choice
from pbqp.vectors import components, summed_by

RANGES = 8
"""Into how many ranges layers that are alike are divided."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Contraction:
    """The problem with one node per block: a `Smaller` form of the whole one. Nothing is known of what it lacks."""

    problem: Problem
    of: Indices

    bound = -math.inf

    def lift(self, choice: Choice) -> Indices:
        """The choice in which all nodes of a block choose alike."""
        return np.asarray(choice, np.intp)[self.of]


def blocks(problem: Problem, patterns: Sequence[int]) -> Indices:
    """The block of every node: of one pattern, and joined by edges, or of layers that are alike and follow one another."""
    of, classes = np.asarray(patterns, np.intp), classes_of(problem)
    ends = np.asarray([edge.nodes for edge in problem.edges], np.intp).reshape(-1, 2)
    first, second = ends[of[ends[:, 0]] == of[ends[:, 1]]].T
    sizes = classes.sizes[classes.of]
    within = np.where(sizes > 1, classes.copy * RANGES // sizes, RANGES + components(first, second, of.size))
    return np.unique(np.stack((of, within)), axis=1, return_inverse=True)[1].ravel()


def contracted(problem: Problem, of: Indices) -> Contraction:
    """The problem whose nodes are the blocks `of` its nodes, numbered from 0; those of one have equally many choices."""
    block = of.tolist()
    within = [edge for edge in problem.edges if block[edge.nodes[0]] == block[edge.nodes[1]]]
    terms = [*zip(block, problem.node_costs, strict=True)]
    terms += [(block[edge.nodes[0]], np.diagonal(edge.costs)) for edge in within]
    costs = summed_by(terms)
    between: dict[tuple[int, int], Array] = summed_by(
        ((m, n), edge.costs) if m < n else ((n, m), edge.costs.T)
        for edge in problem.edges
        for m, n in [(block[edge.nodes[0]], block[edge.nodes[1]])]
        if m != n
    )
    small = replace(
        problem,
        node_costs=tuple(costs[number] for number in range(len(costs))),
        edges=tuple(Edge(nodes=nodes, costs=table) for nodes, table in between.items()),
        rows=tuple(row.merged(block) for row in problem.rows),
        node_names=(),
    )
    return Contraction(problem=small, of=of)
