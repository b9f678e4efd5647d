"""Bounds never lie above what can be reached, however large the costs are, or however far apart."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbqp.methods import METHODS, solve
from pbqp.problem import Array, Edge, Problem, Row
from pbqp.rounding import EXACT, Extent, Rounding

EXACT_METHODS = ("auto", "ilp", "primal_dual")


@st.composite
def problems(draw: st.DrawFn, *, whole: bool) -> Problem:
    """Up to six nodes, whole costs from 1 to 1e13 that nearly tie, or floats of fifteen decades; perhaps a memory row."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = random.integers(1, 5, draw(st.integers(1, 6))).tolist()
    large, small = 10.0 ** draw(st.integers(9, 13)), 10.0 ** draw(st.integers(0, 9))

    def costs(shape: tuple[int, ...]) -> Array:
        tied = random.integers(0, 4, shape) * np.floor(large / 4) + np.floor(random.uniform(0, small, shape))
        values = tied if whole else random.choice([-1, 1, 1, 1], shape) * 10.0 ** random.uniform(-9, 6, shape)
        return np.where(random.random(shape) < 0.05, np.inf, values)

    pairs = [pair for pair in itertools.combinations(range(len(sizes)), 2) if random.random() < 0.7]
    usages = tuple(random.integers(0, 9, size).astype(np.float64) for size in sizes)
    low, high = (sum(float(pick(usage)) for usage in usages) for pick in (np.min, np.max))
    row = Row(
        name="row", limit=low + random.uniform(0, 1) * (high - low), nodes=tuple(range(len(sizes))), usages=usages
    )
    return Problem(
        name="drawn",
        node_costs=tuple(costs((size,)) for size in sizes),
        edges=tuple(Edge(nodes=(m, n), costs=costs((sizes[m], sizes[n]))) for m, n in pairs),
        rows=(row,) if draw(st.booleans()) else (),
    )


def exact_value(problem: Problem, choice: tuple[int, ...]) -> Fraction:
    """The cost of a choice without any rounding."""
    terms = [costs[pick] for costs, pick in zip(problem.node_costs, choice, strict=True)]
    terms += [edge.costs[choice[edge.nodes[0]], choice[edge.nodes[1]]] for edge in problem.edges]
    return sum((Fraction(float(term)) for term in terms), Fraction(0))


@pytest.mark.parametrize("method", EXACT_METHODS)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(problem=problems(whole=True))
def test_whole_costs_are_proven_exactly(method: str, problem: Problem) -> None:
    optimum, found = solve(problem, method="brute"), solve(problem, method=method, time_limit=10.0)
    assert found.status == optimum.status
    assert found.value == optimum.value
    assert found.bound == optimum.bound


@pytest.mark.parametrize("method", sorted(METHODS.keys() - {"brute", "random"}))
@settings(max_examples=40, deadline=None, derandomize=True)
@given(problem=problems(whole=False))
def test_bounds_of_floats_are_rounded_down(method: str, problem: Problem) -> None:
    optimum, found = solve(problem, method="brute"), solve(problem, method=method, time_limit=0.1)
    if optimum.choice is not None:
        assert Fraction(found.bound) <= exact_value(problem, optimum.choice)


def test_a_bound_stays_below_a_value_that_floats_round_up() -> None:
    problem = Problem(name="rounded up", node_costs=(np.asarray([0.1]), np.asarray([0.2])), edges=())
    exact = Fraction(0.1) + Fraction(0.2)
    assert problem.evaluate((0, 0)) > exact
    for method in METHODS:
        assert Fraction(solve(problem, method=method).bound) <= exact


def test_a_program_of_whole_costs_finds_the_last_units() -> None:
    random = np.random.default_rng(43)
    sizes = (4, 3, 4, 4)

    def costs(*shape: int) -> Array:
        return np.asarray(1e12 * random.integers(0, 4, shape) + random.integers(0, 50, shape), np.float64)

    node_costs = tuple(costs(size) for size in sizes)
    edges = tuple(Edge(nodes=(m, n), costs=costs(sizes[m], sizes[n])) for m, n in itertools.combinations(range(4), 2))
    problem = Problem(name="nearly tied", node_costs=node_costs, edges=edges)
    found, optimum = solve(problem, method="ilp"), solve(problem, method="brute")
    assert (found.value, found.bound) == (optimum.value, optimum.value)


def rounding(nodes: list[Array], edges: list[Array]) -> Rounding:
    return Rounding.of(Extent.of(nodes), Extent.of(edges))


def test_sums_beyond_the_precision_of_floats_are_not_exact() -> None:
    small = rounding([np.asarray([1.0, 2.0])], [np.asarray([[3.0, 4.0]])])
    assert small.whole
    assert small.reached(2.3) == 3.0
    assert not rounding([np.asarray([EXACT])], []).whole
    assert not rounding([np.asarray([0.5])], []).whole


def test_the_error_grows_with_terms_and_costs_below_zero() -> None:
    plain = rounding([np.asarray([1.0]), np.asarray([0.5])], [])
    below = rounding([np.asarray([1.0]), np.asarray([-0.5])], [])
    assert 0 < plain.error(2.0) < below.error(2.0) < 1e-12
    assert plain.error(2.0) < plain.priced(1.0, 3).error(2.0)
