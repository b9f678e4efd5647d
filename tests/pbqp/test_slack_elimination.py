"""Elimination within slack: messages leave slack that is never below zero; what fits is found, else a bound proven."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pbqp.compiled import slack_elimination
from pbqp.compiled.arrays import Arrays
from pbqp.compiled.multiplicative_weights import Dual
from pbqp.compiled.slack_elimination import eliminate, is_likely
from pbqp.exact import elimination
from pbqp.methods import solve
from pbqp.network.network import Network
from pbqp.problem import Edge, Problem
from pbqp.row_table import NO_ROWS


def wheel(seed: int, rim: int = 9, choices: int = 6) -> Problem:
    """A ring of nodes around a hub, in which messages leave a gap; a part of the pairs is forbidden."""
    random = np.random.default_rng(seed)

    def table() -> np.ndarray:
        costs = random.integers(0, 30, (choices, choices)).astype(np.float64)
        return np.where(random.random(costs.shape) < 0.1, math.inf, costs)

    ring = [Edge(nodes=(node, (node + 1) % rim), costs=table()) for node in range(rim)]
    spokes = [Edge(nodes=(node, rim), costs=table()) for node in range(rim)]
    costs = tuple(random.integers(0, 9, choices).astype(np.float64) for _ in range(rim + 1))
    return Problem(name=f"wheel {seed}", node_costs=costs, edges=(*ring, *spokes))


def swept(problem: Problem) -> tuple[Arrays, Dual]:
    arrays = Arrays.of(Network.of(problem), NO_ROWS, {})
    dual = Dual(arrays)
    for _ in range(20):
        dual.step()
    return arrays, dual


@pytest.mark.parametrize("seed", range(6))
def test_slack_and_bound_are_the_costs(seed: int) -> None:
    problem = wheel(seed)
    arrays, dual = swept(problem)
    slack, net = dual.slack(), arrays.net
    tables = [slack.table(edge) for edge in range(net.first.size)]
    assert min(slack.unary.min(), *(float(table.min()) for table in tables)) >= -1e-9
    random = np.random.default_rng(seed)
    for _ in range(20):
        pick = random.integers(0, net.size)
        ends = zip(net.first.tolist(), net.second.tolist(), tables, strict=True)
        total = float(slack.unary[net.offset + pick].sum()) + sum(float(t[pick[m], pick[n]]) for m, n, t in ends)
        assert slack.bound + total == pytest.approx(dual.value(pick), rel=1e-9)


@pytest.mark.parametrize("plain", [0, 30_000])
@pytest.mark.parametrize("seed", range(6))
def test_the_optimum_is_found_below_the_target_and_else_nothing_is(
    seed: int, plain: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slack_elimination, "PLAIN", plain)
    problem = wheel(seed)
    optimum = solve(problem, method="elimination").value
    arrays, dual = swept(problem)
    assert dual.bound < optimum - 0.5
    for above in (0.5, 20.0):
        found = eliminate(arrays, dual, optimum + above)
        assert found.pick is not None
        assert problem.evaluate(arrays.lift(found.pick.tolist()).tolist()) == optimum
        assert found.bound == pytest.approx(optimum, rel=1e-9)
    target = optimum - 0.1
    found = eliminate(arrays, dual, target)
    assert found.pick is None
    assert found.bound == target


@pytest.mark.parametrize("limit", ["MOST_ENTRIES", "MOST_HELD", "MOST_WORK"])
def test_what_would_be_too_large_leaves_a_bound(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = wheel(0)
    optimum = solve(problem, method="elimination").value
    arrays, dual = swept(problem)
    monkeypatch.setattr(slack_elimination, limit, 10)
    found = eliminate(arrays, dual, optimum + 1.0)
    assert found.pick is None
    assert dual.bound * (1 - 1e-9) <= found.bound < optimum


def test_large_tables_are_told_beforehand() -> None:
    assert is_likely(Network.of(wheel(0)))
    edges = [Edge(nodes=(m, n), costs=np.ones((20, 20))) for n in range(8) for m in range(n)]
    assert not is_likely(Network.of(Problem(name="all with all", node_costs=(np.zeros(20),) * 8, edges=tuple(edges))))


def test_what_messages_leave_open_of_a_large_problem_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = wheel(1, rim=60, choices=40)
    optimum = solve(problem, method="elimination").value
    monkeypatch.setattr(elimination, "MAX_ENTRIES", 10)
    found = solve(problem, compiled=True, gap=1e-3)
    assert found.value - found.bound <= 1e-3 * found.value
    assert found.bound <= optimum <= found.value * (1 + 1e-9)
