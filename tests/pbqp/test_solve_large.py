"""The parts of the method for large problems: rows of a schedule, ties, flat arrays, prices, block moves."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from pbqp.compiled import branching, cores, primal_dual, rising
from pbqp.compiled.arrays import Arrays
from pbqp.compiled.block_moves import Primal
from pbqp.compiled.branching import Tree
from pbqp.compiled.cores import Cores
from pbqp.compiled.multiplicative_weights import Dual
from pbqp.deadline import Deadline
from pbqp.errors import SolverError
from pbqp.exact.lazy_rows import LazyRows
from pbqp.incumbent import Incumbent
from pbqp.memory_rows import Row, Schedule
from pbqp.methods import solve
from pbqp.network.network import Network
from pbqp.options import SolveOptions
from pbqp.problem import Edge, Problem
from pbqp.row_table import RowTable
from pbqp.smaller.folding import Tied
from pbqp.smaller.prepared import Prepared
from pbqp.smaller.smaller import Chain


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


def priced(problem: Problem) -> Dual | None:
    """The dual after some steps on the arrays of a whole problem; None where no choice is left."""
    rows = RowTable.of(problem)
    tied = Tied(Network.of(problem), rows)
    if not tied.possible:
        return None
    dual = Dual(Arrays.of(tied.network, rows, tied.carried))
    for _ in range(20):
        dual.step()
    return dual


@pytest.mark.parametrize("seed", range(10))
def test_fewer_choices_as_arrays_cost_and_take_the_same(seed: int) -> None:
    dual = priced(scheduled(seed))
    assert dual is not None
    arrays = dual.arrays
    random = np.random.default_rng(seed)
    possible = random.random(arrays.net.unary.size) < 0.6
    possible[arrays.net.offset] |= ~np.logical_or.reduceat(possible, arrays.net.offset)
    narrow = arrays.narrowed(possible)
    network, rows, carried = narrow.unfolded()
    again = Arrays.of(network, rows, carried)
    chosen = [np.flatnonzero(part) for part in np.split(possible, arrays.net.offset[1:])]
    for _ in range(20):
        few = np.asarray([random.integers(part.size) for part in chosen])
        pick = np.asarray([part[place] for part, place in zip(chosen, few.tolist(), strict=True)])
        assert Dual(narrow).value(few) == Dual(again).value(few) == dual.value(pick)
        assert narrow.over(few).tolist() == again.over(few).tolist() == arrays.over(pick).tolist()
        assert narrow.lift(few).tolist() == arrays.lift(pick).tolist()
    following = Dual.following(dual, narrow, possible)
    following.step()
    assert following.bound >= dual.bound - 1e-6 * abs(dual.bound)


@pytest.mark.parametrize("programs", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_branches_end_at_the_optimum(seed: int, programs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not programs:
        monkeypatch.setattr(branching, "MOST_PAIRS", -1)
    problem = scheduled(seed, count=8, tied=0.2)
    best = solve(problem, method="brute").value
    dual = priced(problem)
    if dual is None:
        assert best == np.inf
        return
    met: list[float] = []

    def offer(pick: np.ndarray) -> None:
        if dual.arrays.over(pick).max(initial=0.0) <= 0:
            met.append(dual.value(pick))

    beyond = 1000.0
    tree = Tree(dual, beyond, Deadline.after(10), offer)
    for _ in range(1000):
        if not tree.grows:
            break
        assert tree.bound <= best + 1e-6
        tree.grow(min([beyond, *met]), Deadline.after(10))
    assert not tree.grows
    assert min([beyond, *met]) == min(tree.bound, beyond) == min(best, beyond)


@pytest.mark.parametrize("seed", range(12))
def test_the_core_of_everything_holds_the_best_choice(seed: int) -> None:
    problem = scheduled(seed, count=8)
    best = solve(problem, method="brute").value
    dual = priced(problem)
    assert dual is not None
    net = dual.arrays.net
    picks = itertools.product(*(range(size) for size in net.size.tolist()))
    within = [np.asarray(pick) for pick in picks if dual.arrays.over(np.asarray(pick)).max(initial=0.0) <= 0]
    if not within:
        assert best == np.inf
        return
    value = dual.value(within[0])
    found = Cores(dual.arrays, seed).better(within[0], value, dual, Deadline.after(100.0))
    assert min(value, np.inf if found is None else dual.value(found)) == best


@pytest.mark.parametrize("seed", range(6))
def test_cores_are_no_larger_than_they_may_be(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "PAIRS", 12)
    dual = priced(scheduled(seed, count=10))
    assert dual is not None
    sizes: list[int] = []
    narrowed = Arrays.narrowed

    def noted(arrays: Arrays, possible: np.ndarray) -> Arrays:
        sizes.append(int(possible.sum()))
        return narrowed(arrays, possible)

    monkeypatch.setattr(Arrays, "narrowed", noted)
    some = Cores(dual.arrays, seed)
    for _ in range(3):
        some.better(dual.pick, dual.value(dual.pick), dual, Deadline.after(100.0))
    assert sizes
    assert max(sizes) < dual.arrays.net.unary.size


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


@pytest.mark.parametrize("seed", range(20))
def test_a_program_that_adds_rows_as_they_are_violated_ends_at_the_optimum(seed: int) -> None:
    problem = scheduled(seed, count=7, tied=0.4)
    best = solve(problem, method="brute")
    rows = RowTable.of(problem)
    prepared = Prepared(problem, rows)
    if not prepared.fit() or not prepared.reduce(dominance=False):
        assert best.choice is None
        return
    tied = Tied(prepared.network.copy(), rows)
    assert tied.possible
    incumbent = Incumbent(problem, rows, SolveOptions(deadline=Deadline.after(10)))

    def found(choice: dict[int, int]) -> None:
        whole = np.zeros(len(problem.node_costs), dtype=np.intp)
        for node, label in choice.items():
            whole[node] = label
        incumbent.offer(Chain((prepared, tied)).lift(whole))

    program = LazyRows(tied.network, rows, tied.carried, np.inf)
    program.solve(Deadline.after(10), np.inf, 0.0, found, incumbent.raise_bound)
    assert incumbent.choice is None if best.choice is None else incumbent.value == best.value
    assert incumbent.bound == pytest.approx(best.value, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("seed", range(10))
def test_what_is_ruled_out_of_ties_is_ruled_out_of_all_they_tie(seed: int) -> None:
    problem = scheduled(seed, tied=0.7)
    rows = RowTable.of(problem)
    tied = Tied(Network.of(problem), rows)
    if not tied.possible:
        return
    arrays = Arrays.of(tied.network, rows, tied.carried)
    kept = {node: tied.network.labels[node][: (seed + node) % 2 + 1] for node in tied.network.live}
    labels = tied.labels_of(kept)
    assert labels.keys() == set(range(len(problem.node_costs)))
    for picks in itertools.product(*(range(min(size, 3)) for size in arrays.net.size.tolist())):
        choice = tied.lift(arrays.lift(picks))
        left = all(choice[node] in kept[node] for node in kept)
        if left:
            assert all(choice[node] in of for node, of in labels.items())


@pytest.mark.parametrize("seed", [4, 32])
def test_the_search_goes_on_without_what_its_bounds_rule_out(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = scheduled(seed, count=9)
    monkeypatch.setattr(primal_dual, "PAIRS_PER_SECOND", 0)
    monkeypatch.setattr(rising, "PAYS", -1.0)
    monkeypatch.setattr(primal_dual, "SETTLED_SECONDS", 0.2)
    found = solve(problem, method="primal_dual", time_limit=30.0, gap=1e-9)
    assert found.value == solve(problem, method="brute").value
    assert found.bound <= found.value
    assert "pruned" in found.detail


def test_a_search_says_why_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = scheduled(17, count=9)
    # Bounds of whole costs are rounded up, which ends the search early.
    problem = replace(
        whole,
        node_costs=tuple(0.1 * costs for costs in whole.node_costs),
        edges=tuple(replace(edge, costs=0.1 * edge.costs) for edge in whole.edges),
    )
    assert solve(problem).detail["ended"] == "gap"
    assert solve(problem, method="primal_dual", time_limit=10.0).detail["ended"] == "gap"
    monkeypatch.setattr(primal_dual, "PAIRS_PER_SECOND", 0)
    monkeypatch.setattr(rising, "PAYS", -1.0)
    assert solve(problem, method="primal_dual", time_limit=0.5).detail["ended"] == "time"
    monkeypatch.setattr(primal_dual, "SETTLED_SECONDS", 0.2)
    assert solve(problem, method="primal_dual", time_limit=30.0, gap=1e-9).detail["ended"] == "stall"


def test_a_row_that_nothing_satisfies_is_no_choice() -> None:
    problem = scheduled(1)
    rows = tuple(Row(name=row.name, limit=-1.0, nodes=row.nodes, usages=row.usages) for row in problem.rows)
    hopeless = Problem(name="hopeless", node_costs=problem.node_costs, edges=problem.edges, rows=rows)
    found = solve(hopeless, method="primal_dual", time_limit=1.0)
    assert found.choice is None
    assert found.status == "infeasible"


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 4, 7])
def test_counted_sweeps_and_moves_bound_and_find_the_same_every_time(seed: int) -> None:
    problem = scheduled(seed, count=8)
    within = [choice for choice in choices(problem) if not problem.violations(choice)]
    optimum = min(map(problem.evaluate, within))
    met: list[tuple[float, float]] = []
    for seconds in (30.0, 300.0):
        options = SolveOptions(deadline=Deadline.after(seconds), gap=1e-9)
        best = Incumbent(problem, RowTable.of(problem), options)
        primal_dual.search_counted(problem, RowTable.of(problem), best, options)
        met.append((best.value, best.bound))
    assert met[0] == met[1]
    assert met[0][1] <= optimum * (1 + 1e-9) <= met[0][0] * (1 + 2e-9)
    assert met[0][0] <= 1.1 * optimum
