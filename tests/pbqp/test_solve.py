"""Every method against brute force on small problems, and what a solution promises: bounds, reasons, determinism."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbqp import auto
from pbqp.bounds.cutting_planes import best_prices
from pbqp.bounds.messages import Messages
from pbqp.deadline import Deadline
from pbqp.errors import SolverError
from pbqp.incumbent import Incumbent
from pbqp.marginals import Effort, cheapest_near, marginals, min_marginals
from pbqp.methods import METHODS, solve
from pbqp.network.network import Network
from pbqp.options import SolveOptions
from pbqp.problem import Edge, Problem, Row
from pbqp.row_table import RowTable
from pbqp.smaller.prepared import Prepared
from pbqp.smaller.reductions import Reducer, undo


@st.composite
def problems(draw: st.DrawFn, rows: bool) -> Problem:
    """A small problem with whole or fractional costs, forbidden entries, parallel edges and perhaps rows."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count = draw(st.integers(1, 6))
    sizes = [draw(st.integers(1, 4)) for _ in range(count)]
    scale = draw(st.sampled_from([1.0, 1e-9, 123.456]))
    whole = draw(st.booleans())

    def costs(shape: tuple[int, ...], forbidden: float) -> np.ndarray:
        values = random.integers(-2, 10, shape).astype(np.float64) if whole else random.exponential(1.0, shape)
        return np.where(random.random(shape) < forbidden, np.inf, values * scale)

    edges: list[Edge] = []
    for _ in range(draw(st.integers(0, 9)) if count > 1 else 0):
        m, n = (int(node) for node in random.choice(count, 2, replace=False))
        edges.append(Edge(nodes=(m, n), costs=costs((sizes[m], sizes[n]), 0.15)))
    held: list[Row] = []
    for index in range(draw(st.integers(1, 3)) if rows else 0):
        nodes = tuple(int(node) for node in random.choice(count, random.integers(1, count + 1), replace=False))
        usages = tuple(random.integers(0, 8, sizes[node]).astype(np.float64) for node in nodes)
        limit = float(np.round(random.random() * sum(usage.max() for usage in usages)))
        held.append(Row(name=f"row {index}", limit=limit, nodes=nodes, usages=usages))
    node_costs = tuple(costs((size,), 0.1) for size in sizes)
    return Problem(name="drawn", node_costs=node_costs, edges=tuple(edges), rows=tuple(held))


def close(a: float, b: float) -> bool:
    return a == b or math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-18)


@pytest.mark.parametrize("method", ["auto", "elimination", "ilp"])
@settings(max_examples=60)
@given(problem=problems(rows=False))
def test_exact_methods_agree_with_brute_force(method: str, problem: Problem) -> None:
    expected = solve(problem, method="brute")
    found = solve(problem, method=method)
    assert found.status == expected.status
    assert close(found.value, expected.value)
    if found.choice is not None:
        assert problem.evaluate(found.choice) == found.value
        assert found.gap <= 1e-6


@settings(max_examples=60)
@given(problem=problems(rows=False), gap=st.sampled_from([0.0, 0.05]))
def test_compiled_messages_and_moves_keep_the_optimum(problem: Problem, gap: float) -> None:
    wanted = solve(problem, method="brute")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(auto, "FEW_CHOICES", 0)
        found = solve(problem, gap=gap, compiled=True)
    assert (found.status == "infeasible") == (wanted.status == "infeasible")
    if wanted.choice is None:
        return
    assert found.bound <= wanted.value + 1e-9 * abs(wanted.value)
    if gap == 0.0:
        assert close(found.value, wanted.value)
    elif found.choice is not None:
        assert close(problem.evaluate(found.choice), found.value)


@pytest.mark.parametrize("method", ["auto", "ilp"])
@settings(max_examples=60)
@given(problem=problems(rows=True))
def test_exact_methods_agree_with_brute_force_under_rows(method: str, problem: Problem) -> None:
    expected = solve(problem, method="brute")
    found = solve(problem, method=method)
    assert found.status == expected.status
    assert close(found.value, expected.value)
    if found.choice is not None:
        assert not problem.violations(found.choice)


@pytest.mark.parametrize("method", sorted(METHODS))
@settings(max_examples=40)
@given(problem=problems(rows=True))
def test_bounds_and_values_enclose_the_optimum(method: str, problem: Problem) -> None:
    optimum = solve(problem, method="brute").value
    found = solve(problem, method=method, time_limit=5.0)
    slack = 1e-9 * abs(optimum) if math.isfinite(optimum) else 0.0
    assert found.bound <= optimum + slack
    assert found.value >= optimum - slack
    if found.choice is not None:
        assert found.value == problem.evaluate(found.choice)
        assert not problem.violations(found.choice)


@settings(max_examples=60)
@given(problem=problems(rows=False))
def test_reductions_keep_the_optimum(problem: Problem) -> None:
    optimum = solve(problem, method="brute").value
    network = Network.of(problem)
    reducer = Reducer(network)
    if not reducer.run():
        assert optimum == math.inf
        return
    live = sorted(network.live)
    best = math.inf
    for picks in itertools.product(*(network.labels[node].tolist() for node in live)):
        choice = np.zeros(len(problem.node_costs), dtype=np.intp)
        choice[live] = picks
        value = network.value(choice)
        undo(reducer.trail, choice)
        assert close(problem.evaluate(choice.tolist()), value)
        best = min(best, value)
    assert close(best, optimum)


@settings(max_examples=40)
@given(problem=problems(rows=False))
def test_messages_bound_every_choice(problem: Problem) -> None:
    network = Network.of(problem)
    if not Reducer(network).run(dominance=False, eliminate=False):
        return
    messages = Messages(network)
    for _ in range(3):
        messages.sweep()
    whole = messages.bounds
    for node, bounds in whole.items():
        exact = min_marginals(problem, node)[network.labels[node]]
        assert (bounds <= exact + 1e-9 * np.maximum(1e-9, np.abs(exact))).all()


@settings(max_examples=40)
@given(problem=problems(rows=False), data=st.data())
def test_min_marginals_agree_with_forcing_each_choice(problem: Problem, data: st.DataObject) -> None:
    node = data.draw(st.integers(0, len(problem.node_costs) - 1))
    totals = min_marginals(problem, node)
    for pick, total in enumerate(totals):
        forced = np.where(np.arange(totals.size) == pick, problem.node_costs[node], np.inf)
        costs = tuple(forced if other == node else values for other, values in enumerate(problem.node_costs))
        assert close(total, solve(replace(problem, node_costs=costs), method="brute").value)


@settings(max_examples=40)
@given(problem=problems(rows=False), affordable=st.booleans())
def test_the_cheapest_near_a_choice_is_no_dearer_than_it(problem: Problem, affordable: bool) -> None:
    start = [0] * len(problem.node_costs)
    with pytest.MonkeyPatch.context() as patched:
        if not affordable:
            patched.setattr("pbqp.exact.elimination.MAX_WORK", -1)
        value, choice = cheapest_near(problem, start, seconds=0.05)
    best = solve(problem, method="brute").value
    if affordable:
        assert close(value, best)
    if np.isfinite(value):
        assert value == pytest.approx(problem.evaluate(choice), rel=1e-9, abs=1e-9)
        assert value <= problem.evaluate(start) + 1e-9 * (1.0 + abs(best))


@settings(max_examples=60)
@given(problem=problems(rows=False), data=st.data())
def test_marginals_of_classes_come_with_a_choice_that_costs_so_much(problem: Problem, data: st.DataObject) -> None:
    node = data.draw(st.integers(0, len(problem.node_costs) - 1))
    count = problem.node_costs[node].size
    classes = np.asarray(data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)))
    if not data.draw(st.booleans(), label="affordable"):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("pbqp.exact.elimination.MAX_WORK", -1)
            found = marginals(problem, node, classes=classes, effort=Effort(most=2, seconds=0.05))
    else:
        found = marginals(problem, node, classes=classes)
    totals = min_marginals(problem, node)
    for of in set(classes.tolist()):
        least = totals[classes == of].min()
        if found.exact[of]:
            assert close(found.values[of], least)
        if np.isfinite(found.values[of]):
            choice = found.choice(of)
            assert classes[choice[node]] == of
            assert found.values[of] == pytest.approx(problem.evaluate(choice), rel=1e-9, abs=1e-9)
            assert found.values[of] >= least - 1e-9 * (1.0 + abs(least))


@settings(max_examples=40)
@given(problem=problems(rows=True))
def test_prices_prove_bounds(problem: Problem) -> None:
    optimum = solve(problem, method="brute").value
    rows = RowTable.of(problem)
    options = SolveOptions(deadline=Deadline.after(10.0))
    prepared = Prepared(problem, rows)
    if rows.count and prepared.fit() and prepared.reduce():
        priced = best_prices(prepared, Incumbent(problem, rows, options), options, 1.0)
        assert (priced.prices >= 0).all()
        assert priced.bound <= optimum + 1e-9 * abs(optimum) if math.isfinite(optimum) else True


def chain(limit: float) -> Problem:
    """Two tied nodes: the fast choice of either takes 10 bytes, the slow one 4."""
    costs, usage = np.asarray([1.0, 5.0]), np.asarray([10.0, 4.0])
    tie = np.asarray([[0.0, np.inf], [np.inf, 0.0]])
    row = Row(name="peak", limit=limit, nodes=(0, 1), usages=(usage, usage))
    return Problem(name="chain", node_costs=(costs, costs), edges=(Edge(nodes=(0, 1), costs=tie),), rows=(row,))


def test_memory_decides_where_it_must() -> None:
    assert solve(chain(20.0)).choice == (0, 0)
    assert solve(chain(19.0)).choice == (1, 1)


def test_an_infeasible_limit_names_rows_and_the_least_limit() -> None:
    found = solve(chain(7.0))
    assert (found.status, found.choice, found.bound) == ("infeasible", None, math.inf)
    assert found.detail["conflict"] == ("peak",)
    assert found.detail["least_limit"] == 8.0
    assert found.detail["least_limit_is"] == "proven"


def test_rows_that_only_conflict_together_are_all_named() -> None:
    up, down = np.asarray([0.0, 10.0]), np.asarray([10.0, 0.0])
    rows = tuple(Row(name=n, limit=4.0, nodes=(0,), usages=(u,)) for n, u in (("first", up), ("second", down)))
    found = solve(Problem(name="torn", node_costs=(np.zeros(2),), edges=(), rows=rows))
    assert found.status == "infeasible"
    assert found.detail["conflict"] == ("first", "second")
    assert found.detail["least_limit"] == 10.0


def test_forbidden_choices_alone_are_told_from_memory() -> None:
    problem = replace(chain(20.0), node_costs=(np.asarray([1.0, np.inf]), np.asarray([np.inf, 1.0])))
    found = solve(problem)
    assert found.status == "infeasible"
    assert found.detail["conflict"] == ()


def test_empty_problems_cost_nothing() -> None:
    found = solve(Problem(name="empty", node_costs=(), edges=()))
    assert (found.choice, found.value, found.bound, found.status) == ((), 0.0, 0.0, "optimal")


def test_progress_hears_of_improvements() -> None:
    heard: list[tuple[float, float]] = []
    found = solve(chain(19.0), progress=lambda value, bound: heard.append((value, bound)))
    assert heard[-1][0] == found.value
    assert all(later[0] <= earlier[0] for earlier, later in itertools.pairwise(heard))


def test_wrong_arguments_are_refused_in_a_sentence() -> None:
    with pytest.raises(SolverError, match="choose one of auto, brute"):
        solve(chain(20.0), method="magic")
    with pytest.raises(SolverError, match="positive number of seconds"):
        solve(chain(20.0), time_limit=0.0)
    with pytest.raises(SolverError, match="does not exist"):
        min_marginals(chain(20.0), 2)
    large = Problem(name="large", node_costs=tuple(np.zeros(10) for _ in range(10)), edges=())
    with pytest.raises(SolverError, match="use method='auto'"):
        solve(large, method="brute")
