"""Layers that share their decisions: never below the optimum, at it where that is claimed, and told to the user."""

from __future__ import annotations

import dataclasses
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import planner
from pbqp.deadline import Deadline
from pbqp.methods import solve
from pbqp.network.table_cache import TableCache
from pbqp.options import GAP, SolveOptions
from pbqp.problem import Array, Edge, Problem, Row
from pbqp.smaller.quotient import SMALLEST, classes_of, quotient, solve_shared
from planner.errors import ArgumentError
from planner.options import Share
from planner.pricing.assignment import Chosen
from planner.pricing.build_instance import Terms, state
from planner.pricing.memory.memory_model import MemoryModel
from planner.search.best_on_mesh import Outcome, free_plan
from planner.search.shared_layers import SharedInstance
from tests.problems import ALIKE, small_problem
from tests.small import shapes


@st.composite
def repeated(draw: st.DrawFn, *, chained: bool, rows: bool = False) -> Problem:
    """Copies of a random layer that all meet the same random hubs; `chained` layers also meet the next one."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    whole = draw(st.booleans())
    layers, inner, hubs = draw(st.integers(2, 5)), draw(st.integers(1, 4)), draw(st.integers(0, 2))
    sizes = [int(size) for size in random.integers(1, 4, hubs + inner)]

    def costs(*shape: int) -> Array:
        values = random.integers(-1, 6, shape).astype(np.float64) if whole else random.exponential(1.0, shape)
        return np.where(random.random(shape) < 0.05, np.inf, values)

    kinds = [costs(size) for size in sizes]
    place = [[n if n < hubs else n + layer * inner for n in range(hubs + inner)] for layer in range(layers)]
    node_costs = (*kinds[:hubs], *(costs for _ in range(layers) for costs in kinds[hubs:]))
    edges: list[Edge] = []
    for _ in range(draw(st.integers(0, 8)) if hubs + inner > 1 else 0):
        m, n = (int(node) for node in random.choice(hubs + inner, 2, replace=False))
        table = costs(sizes[m], sizes[n])
        copies = place[:1] if max(m, n) < hubs else place
        edges += [Edge(nodes=(where[m], where[n]), costs=table) for where in copies]
    if chained:
        m, n = (int(node) for node in random.integers(hubs, hubs + inner, 2))
        table = costs(sizes[m], sizes[n])
        edges += [Edge(nodes=(place[i][m], place[i + 1][n]), costs=table) for i in range(layers - 1)]
    held: list[Row] = []
    for index in range(draw(st.integers(1, 2)) if rows else 0):
        usages = tuple(random.integers(0, 8, values.size).astype(np.float64) for values in node_costs)
        limit = float(np.round(random.uniform(0.2, 1.0) * sum(usage.max() for usage in usages)))
        held.append(Row(name=f"row {index}", limit=limit, nodes=tuple(range(len(node_costs))), usages=usages))
    order = random.permutation(len(node_costs)) if draw(st.booleans()) else np.arange(len(node_costs))
    new = np.argsort(order)
    return Problem(
        name="repeated",
        node_costs=tuple(node_costs[old] for old in order.tolist()),
        edges=tuple(dataclasses.replace(e, nodes=(int(new[e.nodes[0]]), int(new[e.nodes[1]]))) for e in edges),
        rows=tuple(dataclasses.replace(row, nodes=tuple(int(new[node]) for node in row.nodes)) for row in held),
    )


def close(a: float, b: float) -> bool:
    return a == b or math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)


@pytest.mark.parametrize("chained", [False, True])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_sharing_is_an_upper_bound_and_exact_where_it_says_so(chained: bool, data: st.DataObject) -> None:
    problem = data.draw(repeated(chained=chained))
    classes = classes_of(problem)
    small = solve(quotient(problem, classes, TableCache()).problem)
    optimum = solve(problem).value
    if small.choice is not None:
        assert close(problem.evaluate(classes.lift(small.choice).tolist()), small.value)
        assert small.value >= optimum - 1e-9 * abs(optimum)
    if classes.lossless:
        assert close(small.value, optimum)


@settings(max_examples=100, deadline=None)
@given(problem=repeated(chained=False))
def test_copies_that_meet_only_what_all_share_lose_nothing(problem: Problem) -> None:
    classes = classes_of(problem)
    assert classes.lossless


def test_layers_that_meet_two_hubs_of_one_kind_share_their_decisions() -> None:
    layers, costs, table = 30, np.asarray([1.0, 2.0]), np.asarray([[0.0, 1.0], [3.0, 0.0]])
    # Nodes 0 and 1 are the hubs; of every layer one node meets both, and another one.
    edges = [(hub, 2 + 2 * layer) for layer in range(layers) for hub in (0, 1)]
    edges += [(2 + 2 * layer, 3 + 2 * layer) for layer in range(layers)]
    problem = Problem(
        name="two hubs",
        node_costs=(costs,) * (2 + 2 * layers),
        edges=tuple(Edge(nodes=pair, costs=table) for pair in edges),
    )
    classes = classes_of(problem)
    assert classes.lossless
    assert classes.count == 4


@pytest.mark.parametrize("share", ["auto", True, False])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_shared_solves_keep_the_promises_of_solve(share: bool, data: st.DataObject) -> None:
    problem = data.draw(repeated(chained=data.draw(st.booleans()), rows=data.draw(st.booleans())))
    problem = _enough(problem)
    optimum = solve(problem, time_limit=20.0)
    found = solve_shared(problem, _budget(20.0, share))
    assert found.bound <= optimum.value + 1e-9 * abs(optimum.value) or math.isinf(optimum.value)
    assert close(found.value, optimum.value)
    assert (found.choice is None) == (optimum.choice is None)
    if found.choice is not None:
        assert found.value == problem.evaluate(found.choice)
        assert not problem.violations(found.choice)
        assert found.status == "optimal"


def _budget(seconds: float, share: Share) -> SolveOptions:
    return SolveOptions(deadline=Deadline.after(seconds), gap=GAP, share=share)


def _enough(problem: Problem) -> Problem:
    """The problem among so many separate nodes, all alike, that sharing is tried at all."""
    more = (np.asarray([1.0, 2.0]),) * SMALLEST
    return dataclasses.replace(problem, node_costs=(*problem.node_costs, *more))


def ring(count: int) -> Problem:
    """An even ring of nodes that each want to differ from their neighbours: alike, but not to be decided alike."""
    apart = np.asarray([[1.0, 0.0], [0.0, 1.0]])
    edges = tuple(Edge(nodes=(node, (node + 1) % count), costs=apart) for node in range(count))
    return Problem(name="ring", node_costs=(np.zeros(2),) * count, edges=edges)


def test_nodes_that_are_alike_but_choose_differently_are_not_claimed_to_lose_nothing() -> None:
    problem = ring(2 * SMALLEST)
    assert not classes_of(problem).lossless
    found = solve_shared(problem, _budget(300.0, share=True))
    assert (found.value, found.status) == (0.0, "optimal")


def test_what_sharing_loses_is_bounded() -> None:
    # Each of two copies may keep 10 bytes and be fast, but not both: sharing makes both slow.
    fast = Problem(
        name="rows",
        node_costs=(np.asarray([1.0, 2.0]),) * (2 * SMALLEST),
        edges=(),
        rows=(
            Row(
                name="peak",
                limit=10.0 * SMALLEST,
                nodes=tuple(range(2 * SMALLEST)),
                usages=(np.asarray([10.0, 0.0]),) * (2 * SMALLEST),
            ),
        ),
    )
    found = solve_shared(fast, _budget(300.0, share=True))
    assert (found.value, found.status) == (3.0 * SMALLEST, "optimal")


def layers_apart(weights: list[tuple[jax.Array, jax.Array]], x: jax.Array) -> jax.Array:
    """A stack of residual layers, written out."""
    for first, second in weights:
        x = x + jax.nn.gelu(x @ first) @ second
    return (x * x).mean()


def _plan(depth: int, share: bool | str) -> planner.Plan:
    weights = [(jnp.zeros((64, 256)), jnp.zeros((256, 64)))] * depth
    step = jax.value_and_grad(layers_apart)
    options = planner.Options(check="never", remat="as written", share_layers=share)  # pyright: ignore[reportArgumentType]
    return planner.plan(step, shapes((weights, jnp.zeros((1 << 16, 64)))), topology="v5e:2x4", options=options)


def test_a_plan_of_shared_layers_is_that_of_the_whole_problem_and_says_so() -> None:
    shared, whole = _plan(24, "auto"), _plan(24, False)
    assert close(shared.certificate.value, whole.certificate.value)
    assert shared.certificate.status == whole.certificate.status == "optimal"
    assert shared.mesh.shape == whole.mesh.shape
    assert [note for note in shared.notes if "share their decisions" in note and "loses nothing" in note]
    assert not [note for note in whole.notes if "share" in note]
    assert len(set(map(str, shared.in_specs[0][1:]))) == 1, "but for the first, which has no layer before it"


def test_the_shared_problem_does_not_grow_with_the_layers() -> None:
    told = [next(note for note in _plan(depth, "auto").notes if "share" in note) for depth in (12, 24)]
    made = {re.findall(r"(\d+) are made for (\d+)", note)[0] for note in told}
    assert len({shared for shared, _ in made}) == 1
    assert len(made) == 2


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("bert", {"x": 4, "y": 2}),
        ("vit", {"x": 8}),
        pytest.param("gpt_unrolled", {"x": 4, "y": 2}, marks=pytest.mark.slow),
        pytest.param("bert", {"x": 2, "y": 2, "z": 2}, marks=pytest.mark.slow),
        pytest.param("moe", {"x": 4, "y": 2}, marks=pytest.mark.slow),
    ],
)
def test_a_problem_stated_from_one_member_of_each_class_is_the_whole_one(name: str, shape: dict[str, int]) -> None:
    planning = small_problem(name, ALIKE)
    shared = planning.state(planning.mesh(shape))
    assert isinstance(shared, SharedInstance)
    whole = planning.instance(shape).problem
    optimum = solve(whole, time_limit=60.0)
    found = solve(shared.problem, time_limit=60.0)
    assert found.choice is not None
    assert close(found.value, whole.evaluate(shared.lift(found.choice).tolist()))
    assert found.value <= optimum.value * (1 + 1e-6)
    assert found.bound <= optimum.value * (1 + 1e-9)
    for part in (1 + 1e-3, 1 - 1e-3):
        found = free_plan(shared, math.inf, _budget(60.0, share="auto"), best=part * optimum.value)
        assert isinstance(found, Outcome)
        assert (found.candidate is not None) == (part > 1)
        assert found.bound <= optimum.value * (1 + 1e-9)


def test_the_whole_instance_made_of_members_is_the_one_stated_at_once() -> None:
    planning = small_problem("bert", ALIKE)
    shape = {"x": 4, "y": 2}
    shared = planning.state(planning.mesh(shape))
    assert isinstance(shared, SharedInstance)
    made, fields = shared.whole(), shared.instance
    terms = Terms(
        mesh=fields.mesh,
        cost_model=planning.analysis.cost_model,
        objective=fields.objective,
        hbm_bytes_per_s=fields.hbm_bytes_per_s,
        feeding=fields.feeding,
    )
    alone = state(planning.model, terms)
    for mine, theirs in zip(made.problem.node_costs, alone.problem.node_costs, strict=True):
        assert np.array_equal(mine, theirs)
    for edge, other in zip(made.problem.edges, alone.problem.edges, strict=True):
        assert edge.nodes == other.nodes
        assert np.array_equal(edge.costs, other.costs)
    choice = tuple(0 for _ in made.strategies)
    assert np.array_equal(MemoryModel(instance=made).profile(choice), MemoryModel(instance=alone).profile(choice))
    assert Chosen(instance=made, choice=choice).seconds == Chosen(instance=alone, choice=choice).seconds


def test_pins_and_constraints_leave_every_node_its_own_decision() -> None:
    weights = [(jnp.zeros((64, 256)), jnp.zeros((256, 64)))] * 12
    args = shapes((weights, jnp.zeros((1 << 16, 64))))
    pinned = planner.plan(
        layers_apart,
        args,
        topology="v5e:2x4",
        mesh={"x": 4, "y": 2},
        pins={"weights/3/0": P(None, "y")},
        options=planner.Options(check="never"),
    )
    assert pinned.in_specs[0][3][0] == P(None, "y")


@pytest.mark.parametrize("value", ["always", 2, None])
def test_other_values_of_the_option_are_refused(value: object) -> None:
    with pytest.raises(ArgumentError, match="share_layers"):
        planner.Options(share_layers=value)  # type: ignore[arg-type]
