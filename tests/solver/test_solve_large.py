"""The parts of the method for large problems: rows of a schedule, ties, flat arrays, prices, block moves."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from planner.errors import SolverError
from planner.solver.compiled.arrays import Arrays
from planner.solver.compiled.block_moves import Primal
from planner.solver.compiled.multiplicative_weights import Dual
from planner.solver.deadline import Deadline
from planner.solver.memory_rows import Row, Schedule
from planner.solver.methods import solve
from planner.solver.network.network import Network
from planner.solver.problem import Edge, Problem
from planner.solver.row_table import RowTable
from planner.solver.smaller.folding import Tied
from planner.solver.smaller.prepared import Prepared


def scheduled(seed: int, count: int = 6, times: int = 5, *, tied: float = 0.0) -> Problem:
    """A small random problem whose rows are a schedule; a part of its edges leave one end no choice."""
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 4, count)
    edges: list[Edge] = []
    for m, n in itertools.combinations(range(count), 2):
        if random.random() < 0.5:
            costs = random.integers(0, 9, (sizes[m], sizes[n])).astype(np.float64)
            if random.random() < tied:
                decided = random.integers(0, sizes[m], sizes[n])
                costs[np.arange(sizes[m])[:, None] != decided] = np.inf
            edges.append(Edge(nodes=(m, n), costs=costs))
    begins = random.integers(0, times, count)
    usages = tuple(random.integers(0, 9, size).astype(np.float64) for size in sizes)
    schedule = Schedule(
        names=tuple(f"time {time}" for time in range(times)),
        limit=float(random.integers(8, 20)),
        nodes=np.arange(count),
        usages=usages,
        begins=begins,
        ends=np.minimum(times, begins + random.integers(0, times, count)),
    )
    costs = tuple(random.integers(0, 9, size).astype(np.float64) for size in sizes)
    return Problem(name=f"scheduled {seed}", node_costs=costs, edges=tuple(edges), rows=schedule)


def choices(problem: Problem) -> list[tuple[int, ...]]:
    return list(itertools.product(*(range(costs.size) for costs in problem.node_costs)))


@pytest.mark.parametrize("seed", range(8))
def test_rows_of_a_schedule_are_those_one_by_one(seed: int) -> None:
    problem = scheduled(seed)
    rows = tuple(problem.rows)
    assert [row.name for row in rows] == [f"time {time}" for time in range(5)]
    listed = Problem(name="listed", node_costs=problem.node_costs, edges=problem.edges, rows=rows)
    for choice in choices(problem)[::7]:
        over = [(row.name, used) for row, used in problem.violations(choice)]
        assert over == [(row.name, used) for row, used in listed.violations(choice)]
    one, other = RowTable.of(problem), RowTable.of(listed)
    assert one.origin.tolist() == other.origin.tolist()
    labels = [np.arange(costs.size) for costs in problem.node_costs]
    assert one.least(labels).tolist() == other.least(labels).tolist()
    for choice in choices(problem)[::7]:
        assert one.used(choice).tolist() == other.used(choice).tolist()
        assert one.used(choice).tolist() == [rows[row].usage(choice) for row in one.origin.tolist()]
    prices = np.arange(1.0, one.count + 1)
    first, second = one.price(prices), other.price(prices)
    assert first.keys() == second.keys()
    assert all(np.array_equal(first[node], second[node]) for node in first)
    half = np.arange(0, one.count, 2)
    assert one.subset(half).used(choices(problem)[-1]).tolist() == one.used(choices(problem)[-1])[half].tolist()


def test_a_schedule_outside_its_rows_is_refused() -> None:
    problem = scheduled(0)
    assert isinstance(problem.rows, Schedule)
    wrong = Schedule(
        names=("only",),
        limit=1.0,
        nodes=np.array([0]),
        usages=(np.zeros(problem.node_costs[0].size),),
        begins=np.array([0]),
        ends=np.array([2]),
    )
    with pytest.raises(SolverError, match=r"interval 0 .. 2: give rows 0 .. 1"):
        Problem(name="wrong", node_costs=problem.node_costs, edges=(), rows=wrong)


@pytest.mark.parametrize("seed", range(30))
def test_ties_change_neither_cost_nor_memory(seed: int) -> None:
    problem = scheduled(seed, tied=0.7)
    rows = RowTable.of(problem)
    network = Network.of(problem)
    tied = Tied(network, rows)
    if not tied.possible:
        assert solve(problem, method="brute").choice is None
        return
    arrays = Arrays.of(tied.network, rows, tied.carried)
    dual = Dual(arrays)
    costs: list[float] = []
    for picks in itertools.product(*(range(size) for size in arrays.net.size.tolist())):
        pick = np.asarray(picks, dtype=np.int64)
        choice = tied.lift(arrays.lift(pick))
        value = problem.evaluate(choice.tolist())
        if np.isfinite(value):
            assert dual.value(pick) == value
            assert arrays.over(pick).tolist() == (rows.used(choice) - rows.limits).tolist()
            assert np.array_equal(arrays.picked(choice.tolist()), pick)
            costs.append(value)
    free = Problem(name="free", node_costs=problem.node_costs, edges=problem.edges)
    assert min(costs, default=np.inf) == solve(free, method="brute").value


def test_some_ties_are_found() -> None:
    folded = 0
    for seed in range(10):
        problem = scheduled(seed, tied=0.7)
        network = Network.of(problem)
        before = len(network.live)
        folded += before - len(Tied(network, RowTable.of(problem)).network.live)
    assert folded > 10


@pytest.mark.parametrize("seed", range(10))
def test_prices_bound_and_blocks_find(seed: int) -> None:
    problem = scheduled(seed, count=7, tied=0.2)
    best = solve(problem, method="brute")
    rows = RowTable.of(problem)
    prepared = Prepared(problem, rows)
    if best.choice is None or not prepared.fit() or not prepared.reduce(dominance=False) or not prepared.network.live:
        return
    tied = Tied(prepared.network.copy(), rows)
    arrays = Arrays.of(tied.network, rows, tied.carried)
    dual = Dual(arrays)
    for _ in range(60):
        dual.step()
        assert dual.bound <= best.value + 1e-9 * max(abs(best.value), 1.0)
    primal = Primal(arrays, dual, seed)
    for _ in range(5):
        primal.round(Deadline.after(10))
        over = arrays.over(primal.pick)
        assert primal.fullest == pytest.approx(float(over.max()) if over.size else -1.0)
    if np.isfinite(primal.value):
        assert primal.value == pytest.approx(dual.value(primal.best))
        assert arrays.over(primal.best).max(initial=-1.0) <= 0
        assert primal.value >= best.value - 1e-9


def test_a_row_that_nothing_satisfies_is_no_choice() -> None:
    problem = scheduled(1)
    rows = tuple(Row(name=row.name, limit=-1.0, nodes=row.nodes, usages=row.usages) for row in problem.rows)
    hopeless = Problem(name="hopeless", node_costs=problem.node_costs, edges=problem.edges, rows=rows)
    found = solve(hopeless, method="primal_dual", time_limit=1.0)
    assert found.choice is None
    assert found.status == "infeasible"
