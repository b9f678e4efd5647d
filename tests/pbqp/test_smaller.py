"""Every smaller form of a problem leads back: what it says a choice costs, the lifted choice costs in the larger one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pbqp.bounds.messages import Messages
from pbqp.compiled.arrays import Arrays
from pbqp.compiled.multiplicative_weights import Dual
from pbqp.methods import solve
from pbqp.network.network import Network, normalise
from pbqp.network.table_cache import TableCache
from pbqp.problem import Array, Edge, Problem, Row
from pbqp.row_table import RowTable
from pbqp.smaller.folding import Tied
from pbqp.smaller.narrow import cheap, restricted, swept
from pbqp.smaller.prepared import Prepared
from pbqp.smaller.quotient import classes_of, quotient
from pbqp.smaller.smaller import Chain, floor_of
from planner.search.narrow import narrow
from planner.search.shared_layers import SharedInstance
from tests.problems import ALIKE, small_problem


def _random(seed: int, *, rows: bool = False, nodes: int = 8, forbidden: float = 0.1) -> Problem:
    """A random problem, some pairs of whose choices are forbidden; one edge lets the first node decide the second."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 5, size=nodes).tolist()
    sizes[1] = sizes[0]

    def costs(*shape: int) -> Array:
        return np.where(rng.random(shape) < forbidden, np.inf, rng.integers(0, 20, shape).astype(float))

    edges = [Edge(nodes=(0, 1), costs=np.where(np.eye(sizes[0], dtype=bool), 1.0, np.inf))]
    for _ in range(2 * nodes):
        a, b = sorted(rng.choice(nodes, 2, replace=False).tolist())
        table = costs(sizes[a], sizes[b])
        table[0] = np.where(np.isinf(table[0]), 3.0, table[0])
        table[:, 0] = np.where(np.isinf(table[:, 0]), 3.0, table[:, 0])
        edges.append(Edge(nodes=(a, b), costs=table))
    usages = tuple(rng.integers(0, 9, size=size).astype(float) for size in sizes)
    limit = 0.8 * sum(float(of.max()) for of in usages)
    row = Row(name="row", limit=limit, nodes=tuple(range(nodes)), usages=usages)
    return Problem(
        name=f"random {seed}",
        node_costs=tuple(rng.integers(0, 9, size=size).astype(float) for size in sizes),
        edges=tuple(edges),
        rows=(row,) if rows else (),
    )


def _drawn(network: Network, rng: np.random.Generator) -> np.ndarray:
    """A choice of all nodes that is some remaining one of every live node."""
    choice = np.zeros(len(network.labels), np.intp)
    for node in sorted(network.live):
        choice[node] = rng.choice(network.labels[node])
    return choice


def same(a: float, b: float) -> bool:
    return a == b or math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_a_choice_of_a_reduced_network_costs_the_problem_what_it_costs_there(seed: int) -> None:
    problem, rng = _random(seed, rows=bool(seed % 2)), np.random.default_rng(seed)
    prepared = Prepared(problem, RowTable.of(problem))
    assert prepared.reduce()
    for _ in range(5):
        choice = _drawn(prepared.network, rng)
        assert same(problem.evaluate(prepared.lift(choice).tolist()), prepared.network.value(choice))


@pytest.mark.parametrize("seed", range(20))
def test_a_choice_of_arrays_without_ties_costs_the_problem_what_it_costs_there(seed: int) -> None:
    problem, rng = _random(seed, rows=True, forbidden=0.0), np.random.default_rng(seed)
    prepared = Prepared(problem, RowTable.of(problem))
    assert prepared.reduce(dominance=False)
    tied = Tied(prepared.network.copy(), prepared.rows)
    assert tied.possible
    assert len(tied.network.live) < len(prepared.network.live)
    arrays = Arrays.of(tied.network, prepared.rows, tied.carried)
    dual, steps = Dual(arrays), Chain((prepared, tied, arrays))
    for _ in range(5):
        pick = np.asarray([rng.integers(size) for size in arrays.net.size], np.int64)
        lifted = steps.lift(pick)
        assert same(problem.evaluate(lifted.tolist()), dual.value(pick))
        assert same(float(arrays.over(pick).sum()), float((prepared.rows.used(lifted) - prepared.rows.limits).sum()))
        again = arrays.picked(lifted.tolist())
        assert again is not None
        assert np.array_equal(again, pick)


@pytest.mark.parametrize("seed", range(20))
def test_one_choice_per_class_costs_the_same_for_all_members(seed: int) -> None:
    one, rng = _random(seed, nodes=5), np.random.default_rng(seed)
    shifted = tuple(
        Edge(nodes=(edge.nodes[0] + 5 * copy, edge.nodes[1] + 5 * copy), costs=edge.costs)
        for copy in range(3)
        for edge in one.edges
    )
    problem = Problem(name="copies", node_costs=one.node_costs * 3, edges=shifted)
    small = quotient(problem, classes_of(problem), TableCache())
    assert (small.lossless, small.bound) == (True, math.inf)
    assert len(small.problem.node_costs) <= 5
    for _ in range(5):
        choice = [int(rng.integers(costs.size)) for costs in small.problem.node_costs]
        assert same(problem.evaluate(small.lift(choice).tolist()), small.problem.evaluate(choice))


@pytest.mark.parametrize("seed", range(20))
def test_what_is_left_below_a_cutoff_costs_the_same_and_nothing_below_it_is_lost(seed: int) -> None:
    problem = _random(seed)
    optimum = solve(problem)
    assert optimum.choice is not None
    cutoff = optimum.value + 4.0
    first = cheap(problem.node_costs, cutoff)
    kept, _ = swept(restricted(problem, first), cutoff)
    both = [positions[after] for positions, after in zip(first, kept, strict=True)]
    once, twice = restricted(problem, both), restricted(restricted(problem, first), kept)
    again = solve(once)
    assert again.choice is not None
    assert same(again.value, optimum.value)
    lifted = [int(positions[pick]) for positions, pick in zip(both, again.choice, strict=True)]
    assert same(problem.evaluate(lifted), again.value)
    assert [edge.costs.tobytes() for edge in once.edges] == [edge.costs.tobytes() for edge in twice.edges]


def test_a_chain_leads_back_step_by_step_and_is_worth_its_weakest_bound() -> None:
    planning = small_problem("bert", ALIKE)
    shared = planning.state(planning.mesh({"x": 4, "y": 2}))
    assert isinstance(shared, SharedInstance)
    optimum = solve(shared.problem, time_limit=60.0)
    narrowed = narrow(shared, 1.001 * optimum.value)
    assert isinstance(narrowed.stated, SharedInstance)
    steps = Chain((shared, narrowed))
    assert steps.bound == narrowed.bound == 1.001 * optimum.value
    assert narrowed.floor >= floor_of(shared.node_values)
    found = solve(narrowed.stated.problem, time_limit=60.0)
    assert found.choice is not None
    assert same(found.value, optimum.value)
    assert same(shared.whole().problem.evaluate(steps.lift(found.choice).tolist()), optimum.value)
    assert np.array_equal(Chain(()).lift(found.choice), found.choice)
    assert Chain(()).bound == math.inf


@pytest.mark.parametrize("seed", range(10))
def test_compiled_sweeps_bound_a_network_as_the_others_do(seed: int) -> None:
    problem = _normal(_random(seed, nodes=12, forbidden=0.0))
    network, rows = Network.of(problem), RowTable.of(problem)
    tied = Tied(network.copy(), rows)
    dual, messages = Dual(Arrays.of(tied.network, rows, tied.carried)), Messages(network)
    best = -math.inf
    for _ in range(12):
        dual.step()
        best = max(best, messages.sweep())
        assert dual.bound == pytest.approx(best, rel=1e-12)
        of_choices = np.concatenate([messages.bounds[node] for node in sorted(messages.bounds)])
        assert dual.bounds == pytest.approx(of_choices, rel=1e-12)
    assert best <= solve(problem).value + 1e-9


def _normal(problem: Problem) -> Problem:
    """The problem with its ties folded, and in the nodes' costs what one end of an edge decides alone."""
    tied = Tied(Network.of(problem), RowTable.of(problem))
    unary, edges = normalise(tied.network)
    place = {node: i for i, node in enumerate(sorted(unary))}
    return Problem(
        name=problem.name,
        node_costs=tuple(unary[node] for node in sorted(unary)),
        edges=tuple(
            Edge(nodes=(place[edge.nodes[0]], place[edge.nodes[1]]), costs=edge.costs[np.ix_(*edge.classes)])
            for edge in edges
        ),
    )
