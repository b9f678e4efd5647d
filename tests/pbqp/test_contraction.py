"""Blocks of nodes that choose alike: a choice of them is one of all nodes, at the same cost and with the same bytes."""

from __future__ import annotations

import numpy as np
import pytest

from pbqp.memory_rows import Row
from pbqp.problem import Edge, Problem
from pbqp.smaller.contraction import RANGES, blocks, contracted

LAYERS = 12


def layers(rng: np.random.Generator) -> Problem:
    """A hub, and layers of three nodes each that meet it with their first; the last is joined to nobody. One row."""
    tables = rng.integers(0, 9, (3, 2, 2)).astype(float)
    costs = rng.integers(0, 9, (3, 2)).astype(float)
    edges: list[Edge] = []
    for layer in range(LAYERS):
        first = 1 + 3 * layer
        edges += [Edge(nodes=(0, first), costs=tables[0]), Edge(nodes=(first + 1, first), costs=tables[1])]
    nodes = tuple(range(0, 1 + 3 * LAYERS, 2))
    usages = tuple(rng.integers(0, 9, 2).astype(float) for _ in nodes)
    return Problem(
        name="layers",
        node_costs=(costs[0], *(costs[place] for _ in range(LAYERS) for place in range(3))),
        edges=tuple(edges),
        rows=(Row(name="memory", limit=50.0, nodes=nodes, usages=usages),),
    )


@pytest.mark.parametrize("seed", range(5))
def test_a_block_costs_and_takes_what_its_nodes_do(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = layers(rng)
    of = rng.integers(0, 6, len(problem.node_costs))
    of[:6] = range(6)
    small = contracted(problem, of)
    for _ in range(20):
        choice = rng.integers(0, 2, 6).tolist()
        lifted = small.lift(choice).tolist()
        assert small.problem.evaluate(choice) == problem.evaluate(lifted)
        assert small.problem.rows[0].usage(choice) == problem.rows[0].usage(lifted)


def test_layers_that_are_alike_are_divided_into_ranges() -> None:
    problem = layers(np.random.default_rng(0))
    of = blocks(problem, [0] + LAYERS * [1, 1, 2])
    assert len(set(of.tolist())) == 1 + RANGES + RANGES
    joined = of[1::3]
    assert (joined == of[2::3]).all(), "of one pattern, in one layer"
    assert len(set(joined.tolist())) == RANGES
    assert (np.diff(np.unique(joined, return_index=True)[1]) > 0).all(), "layers of a range follow one another"


def test_nodes_that_are_like_no_other_are_of_one_block_where_they_are_joined() -> None:
    table = np.arange(4.0).reshape(2, 2)
    problem = Problem(
        name="path",
        node_costs=tuple(np.array([float(node), 2.5]) for node in range(5)),
        edges=tuple(Edge(nodes=(node, node + 1), costs=table) for node in range(4)),
    )
    assert blocks(problem, [0, 0, 1, 0, 0]).tolist() == [0, 0, 2, 1, 1]
