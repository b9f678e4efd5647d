"""What makes large problems without rows smaller, compiled: dominance, and messages that go on where choices are gone."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pbqp.compiled.arrays import Arrays
from pbqp.compiled.dominance import dominated
from pbqp.compiled.multiplicative_weights import Dual
from pbqp.exact import elimination
from pbqp.methods import solve
from pbqp.network.network import Network
from pbqp.problem import Array, Edge, Problem
from pbqp.row_table import NO_ROWS
from pbqp.smaller.prepared import Prepared


def table(random: np.random.Generator, lines: int, columns: int, forbidden: float) -> Array:
    costs = random.integers(0, 4, (lines, columns)).astype(np.float64)
    return np.where(random.random(costs.shape) < forbidden, math.inf, costs)


def margin(a: int, b: int, unary: Array, tables: list[Array]) -> float:
    """By how much a choice costs more than another beside the partners that make the least of it."""
    total = float(unary[a] - unary[b])
    for costs in tables:
        regrets = [x - y for x, y in zip(costs[a].tolist(), costs[b].tolist(), strict=True) if min(x, y) < math.inf]
        if -math.inf in regrets:
            return -math.inf
        total += min(regrets, default=math.inf)
    return total


@pytest.mark.parametrize("forbidden", [0.0, 0.2])
@pytest.mark.parametrize("seed", range(10))
def test_just_what_another_choice_is_as_good_as_is_dominated(seed: int, forbidden: float) -> None:
    random = np.random.default_rng(seed)
    tables = [table(random, 12, columns, forbidden) for columns in (2, 3)]
    tables = [np.where(np.isinf(costs.min(axis=1, keepdims=True)), 1.0, costs) for costs in tables]
    unary = random.integers(0, 12, 12).astype(np.float64)
    gone: list[bool] = dominated(unary, tables).tolist()
    assert 0 < sum(gone) < 12
    stay = [b for b in range(12) if not gone[b]]
    for a in range(12):
        assert gone[a] == any(margin(a, b, unary, tables) >= 0 for b in stay if b != a)


def test_of_choices_that_are_the_same_one_stays() -> None:
    assert dominated(np.ones(3), [np.ones((3, 2)), np.full((3, 4), 0.1)]).sum() == 2
    assert not dominated(np.ones(3), []).any()


def ring(seed: int, count: int = 8, choices: int = 6) -> Problem:
    """Nodes around a ring, each joined to the third after it as well."""
    random = np.random.default_rng(seed)
    ends = [(node, (node + step) % count) for node in range(count) for step in (1, 3)]
    edges = tuple(Edge(nodes=pair, costs=table(random, choices, choices, 0.1) * 7.0) for pair in ends)
    costs = tuple(random.integers(0, 90, choices).astype(np.float64) for _ in range(count))
    return Problem(name=f"ring {seed}", node_costs=costs, edges=edges)


@pytest.mark.parametrize("seed", range(6))
def test_dominance_keeps_an_optimum(seed: int) -> None:
    problem = ring(seed)
    optimum = solve(problem, method="elimination").value
    prepared = Prepared(problem, NO_ROWS)
    assert prepared.reduce(compiled=True)
    assert prepared.counts["dominated"] > 0
    picks = np.zeros(len(problem.node_costs), np.intp)
    elimination.eliminate(prepared.network, elimination.plan_order(prepared.network), picks)
    assert problem.evaluate(prepared.lift(picks).tolist()) == optimum


@pytest.mark.parametrize("seed", range(6))
def test_messages_go_on_where_choices_and_edges_are_gone(seed: int) -> None:
    network = Network.of(ring(seed))
    dual = Dual(Arrays.of(network, NO_ROWS, {}))
    for _ in range(30):
        dual.step()
    for node in (1, 2, 5):
        network.keep(node, np.arange(6) != network.unary[node].argmax())
    arrays = Arrays.of(network, NO_ROWS, {})
    twin, fresh = dual.carried(arrays), Dual(arrays)
    twin.step()
    fresh.step()
    assert twin.bound >= dual.bound
    assert twin.slack().bound >= dual.bound - 1e-9 > fresh.bound
    network.disconnect(0, 3)
    other = dual.carried(Arrays.of(network, NO_ROWS, {}))
    other.step()
    value = other.value(other.pick)
    assert other.slack().bound <= value
