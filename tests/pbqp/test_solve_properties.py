"""Thousands of random problems, the same every time: exact methods agree with brute force, bounds hold."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest

from pbqp.methods import METHODS, solve
from pbqp.problem import Array, Edge, Problem, Row
from pbqp.solution import Solution

EXACT = tuple(sorted(METHODS.keys() - {"brute", "random", "lagrangian", "elimination", "primal_dual"}))
"""Methods that prove the optimum of a small problem under rows."""
SLACK = 1e-9
"""Rounding of sums, as a part of the largest of them."""
FAST = 30
"""Problems of each kind in the fast tests."""
SLOW = 1500


def costs(random: np.random.Generator, shape: tuple[int, ...], style: str, forbidden: float) -> Array:
    """Costs that are whole (many ties), spread over six decades, or mostly zero; some are forbidden."""
    if style == "whole":
        values = random.integers(-2, 6, shape).astype(np.float64)
    elif style == "spread":
        values = 10.0 ** random.uniform(-9, -3, shape)
    else:
        values = random.exponential(1.0, shape) * (random.random(shape) < 0.4)
    return np.where(random.random(shape) < forbidden, np.inf, values)


def edges_of(random: np.random.Generator, count: int, shape: str) -> list[tuple[int, int]]:
    """The pairs of nodes that have an edge; several edges may join the same pair."""
    if shape == "chain":
        return [(n + 1, n) if random.random() < 0.5 else (n, n + 1) for n in range(count - 1)]
    if shape == "star":
        return [(0, n) for n in range(1, count)]
    if shape == "ring":
        return [(n, (n + 1) % count) for n in range(count)] if count > 2 else []
    if shape == "complete":
        return list(itertools.combinations(range(count), 2))
    pairs = random.integers(0, count, (random.integers(0, 2 * count + 1), 2)).tolist()
    return [(m, n) for m, n in pairs if m != n]


def problem_of(seed: int, shape: str, *, rows: int) -> Problem:
    """One random problem of up to seven nodes with up to four choices, `rows` memory rows among them."""
    random = np.random.default_rng([seed, rows, len(shape)])
    count = int(random.integers(1, 8))
    sizes = random.integers(1, 5, count).tolist()
    style, forbidden = str(random.choice(["whole", "spread", "sparse"])), float(random.choice([0.0, 0.05, 0.2]))
    edges = [
        Edge(nodes=pair, costs=costs(random, (sizes[pair[0]], sizes[pair[1]]), style, forbidden))
        for pair in edges_of(random, count, shape)
    ]
    held: list[Row] = []
    for index in range(rows):
        nodes = tuple(random.integers(0, count, random.integers(1, count + 1)).tolist())
        scale = float(random.choice([1.0, 1e9]))
        usages = tuple(scale * random.integers(0, 9, sizes[node]).astype(np.float64) for node in nodes)
        low, high = (sum(float(pick(usage)) for usage in usages) for pick in (np.min, np.max))
        held.append(
            Row(name=f"row {index}", limit=low + random.uniform(-0.05, 1.0) * (high - low), nodes=nodes, usages=usages)
        )
    node_costs = tuple(costs(random, (size,), style, forbidden) for size in sizes)
    return Problem(name=f"{shape} {seed}", node_costs=node_costs, edges=tuple(edges), rows=tuple(held))


SHAPES = ("chain", "complete", "ring", "star", "tangle")


def problems(count: int, *, rows: bool) -> Iterator[Problem]:
    """`count` problems of every shape."""
    for seed in range(count):
        for shape in SHAPES:
            yield problem_of(seed, shape, rows=1 + seed % 3 if rows else 0)


@functools.cache
def solved(count: int, *, rows: bool) -> tuple[tuple[Problem, Solution], ...]:
    """The same problems with their optimum by brute force."""
    return tuple((problem, solve(problem, method="brute")) for problem in problems(count, rows=rows))


def scale_of(problem: Problem) -> float:
    """The sum of the largest possible terms of a problem's cost."""
    tables = [*problem.node_costs, *(edge.costs for edge in problem.edges)]
    return sum(float(np.abs(table[np.isfinite(table)]).max(initial=0.0)) for table in tables)


def check(problem: Problem, method: str, optimum: Solution, *, exact: bool) -> None:
    """What every method promises of its solution; that it is the optimum where the method is exact."""
    # These go on until their time is over, or until their own bound proves the optimum.
    found = solve(problem, method=method, time_limit=0.02 if method in ("random", "primal_dual") else 10.0)
    slack = SLACK * scale_of(problem)
    where = f"{problem.name} by {method}: {found} for {optimum}"
    assert found.bound <= optimum.value, where
    assert found.value >= optimum.value - slack, where
    assert found.bound <= found.value, where
    if found.choice is None:
        assert found.value == math.inf, where
        assert found.status in ("infeasible", "unknown"), where
    else:
        assert found.value == problem.evaluate(found.choice), where
        assert not problem.violations(found.choice), where
    if found.status == "infeasible":
        assert optimum.choice is None, where
    if found.status == "optimal":
        assert abs(found.value - optimum.value) <= 1e-6 * abs(optimum.value) + slack, where
    if exact:
        assert found.status == optimum.status, where


def compare(count: int, method: str, *, rows: bool) -> None:
    """A method against brute force on `count` problems of every shape."""
    exact = method in EXACT or method == "brute" or (method == "elimination" and not rows)
    for problem, optimum in solved(count, rows=rows):
        check(problem, method, optimum, exact=exact)


@pytest.mark.parametrize("rows", [False, True], ids=["free", "rows"])
@pytest.mark.parametrize("method", sorted(METHODS))
def test_methods_keep_their_promises(method: str, rows: bool) -> None:
    compare(FAST, method, rows=rows)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [False, True], ids=["free", "rows"])
@pytest.mark.parametrize("method", sorted(METHODS))
def test_methods_keep_their_promises_on_thousands(method: str, rows: bool) -> None:
    compare(SLOW, method, rows=rows)


@pytest.mark.parametrize("rows", [False, True], ids=["free", "rows"])
def test_a_cutoff_is_a_proof_or_is_beaten(rows: bool) -> None:
    for problem, optimum in solved(FAST, rows=rows):
        scale = scale_of(problem)
        if optimum.choice is None or not scale:
            continue
        slack = SLACK * scale
        step = 1e-3 * abs(optimum.value) + 10 * slack
        above = solve(problem, cutoff=optimum.value + step)
        assert abs(above.value - optimum.value) <= 1e-6 * abs(optimum.value) + slack, problem.name
        below = solve(problem, cutoff=optimum.value - step)
        assert below.choice is None, problem.name
        assert below.bound >= optimum.value - step - slack, problem.name


@pytest.mark.parametrize("rows", [False, True], ids=["free", "rows"])
def test_a_gap_is_kept(rows: bool) -> None:
    gap = 0.2
    for problem, optimum in solved(FAST, rows=rows):
        found = solve(problem, gap=gap)
        assert (found.choice is None) == (optimum.choice is None), problem.name
        if optimum.choice is None:
            continue
        slack = SLACK * scale_of(problem)
        assert found.value - optimum.value <= gap * abs(found.value) + slack, problem.name
        assert found.bound <= optimum.value + slack, problem.name
        assert found.value - found.bound <= gap * abs(found.value) + slack, problem.name


def test_names_and_order_of_nodes_change_nothing() -> None:
    random = np.random.default_rng(0)
    for problem in problems(10, rows=True):
        place = random.permutation(len(problem.node_costs))
        moved = Problem(
            name=problem.name,
            node_costs=tuple(problem.node_costs[node] for node in np.argsort(place).tolist()),
            edges=tuple(
                Edge(nodes=(int(place[e.nodes[1]]), int(place[e.nodes[0]])), costs=e.costs.T) for e in problem.edges
            ),
            rows=tuple(
                Row(name=row.name, limit=row.limit, nodes=tuple(place[list(row.nodes)].tolist()), usages=row.usages)
                for row in reversed(problem.rows)
            ),
        )
        first, second = solve(problem), solve(moved)
        assert first.status == second.status, problem.name
        if first.choice is not None:
            tolerance = 2e-6 * abs(first.value) + SLACK * scale_of(problem)
            assert abs(first.value - second.value) <= tolerance, problem.name
