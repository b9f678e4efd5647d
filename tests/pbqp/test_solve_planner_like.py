"""The solver on instances built like the planner's own: layers, hubs, choices that assign mesh axes to factors."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from pbqp.deadline import Deadline
from pbqp.heuristics.local_search import LocalSearch
from pbqp.methods import solve
from pbqp.network.network import Network
from pbqp.options import SolveOptions
from pbqp.problem import Array, Edge, Problem, Row
from pbqp.smaller.reductions import Reducer

FACTORS_IN_TENSOR = 3
SECONDS_PER_BYTE = 1e-11
LATENCY_SECONDS = 1e-6
SECONDS_PER_FLOP = 5e-15


class Builder:
    """Adds ops whose choices are the assignments of mesh axes to factors, and edges priced as reshards."""

    def __init__(self, axes: tuple[int, ...], factors: int, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.axes = np.asarray(axes, dtype=np.float64)
        self.factors = factors
        self.choices = np.asarray(list(itertools.product(range(-1, factors), repeat=len(axes))))
        self.node_costs: list[Array] = []
        self.usages: list[Array] = []
        self.edges: list[Edge] = []
        self.tables: dict[tuple[tuple[int, ...], float], Array] = {}

    def parts(self, which: Array) -> Array:
        return np.where(which, self.axes, 1.0).prod(axis=-1)

    def op(self, flops: float, size: float) -> int:
        split = self.choices >= 0
        partial = self.choices >= FACTORS_IN_TENSOR
        shard = size / self.parts(split & ~partial)
        seconds = flops * SECONDS_PER_FLOP / self.parts(split) + LATENCY_SECONDS
        seconds += np.where(partial.any(axis=1), LATENCY_SECONDS + 2 * shard * SECONDS_PER_BYTE, 0.0)
        seconds[1:][self.random.random(len(self.choices) - 1) < 0.05] = np.inf
        self.node_costs.append(seconds)
        self.usages.append(np.ceil(shard))
        return len(self.node_costs) - 1

    def link(self, producer: int, consumer: int, size: float, order: tuple[int, ...]) -> None:
        if (order, size) not in self.tables:
            inside = self.choices < FACTORS_IN_TENSOR
            has = np.where(inside, self.choices, -1)[:, None, :]
            wants = np.where(self.choices >= 0, np.asarray(order)[self.choices], -1)[None, :, :]
            wants = np.where(wants < FACTORS_IN_TENSOR, wants, -1)
            gathered, moved = (has >= 0) & (wants < 0), (has >= 0) & (wants >= 0) & (has != wants)
            shard = size / self.parts(has >= 0)
            cost = np.where(gathered.any(-1), LATENCY_SECONDS + shard * self.parts(gathered) * SECONDS_PER_BYTE, 0.0)
            cost += np.where(moved.any(-1), LATENCY_SECONDS + shard * SECONDS_PER_BYTE, 0.0)
            self.tables[order, size] = cost
        self.edges.append(Edge(nodes=(producer, consumer), costs=self.tables[order, size]))


def layered(
    axes: tuple[int, ...], factors: int, layers: int, rows: int = 0, tight: float = 0.1, seed: int = 0
) -> Problem:
    """A transformer-like stack with residual edges, weights, and four hubs that every layer reads."""
    build = Builder(axes, factors, seed)
    straight = tuple(range(factors))
    crossed = (1, 0, *range(2, factors))
    hubs = [build.op(0.0, 1e8 * (number + 1)) for number in range(4)]
    stream, kept = build.op(0.0, 64e6), list(hubs)
    for _ in range(layers):
        weight, wide = build.op(0.0, 5e7), build.op(0.0, 2e8)
        heads = [build.op(1e12, 64e6) for _ in range(3)]
        for head in heads:
            build.link(stream, head, 64e6, straight)
            build.link(weight, head, 5e7, crossed)
        scores, mixed, inner = build.op(3e11, 256e6), build.op(3e11, 64e6), build.op(4e12, 256e6)
        build.link(heads[0], scores, 64e6, straight)
        build.link(heads[1], scores, 64e6, crossed)
        build.link(scores, mixed, 256e6, straight)
        build.link(heads[2], mixed, 64e6, crossed)
        build.link(mixed, inner, 64e6, straight)
        build.link(wide, inner, 2e8, crossed)
        following = build.op(4e12, 64e6)
        build.link(inner, following, 256e6, straight)
        build.link(stream, following, 64e6, straight)
        for hub in hubs:
            for node in build.random.choice([*heads, scores, inner], 2, replace=False).tolist():
                build.link(hub, node, 1e8, straight)
        kept += [weight, wide, inner, following]
        stream = following
    low, high = (sum(float(pick(build.usages[node])) for node in kept) for pick in (np.min, np.max))
    limit = math.floor(low + tight * (high - low))
    held = tuple(
        Row(name=f"point {point}", limit=limit, nodes=nodes, usages=tuple(build.usages[node] for node in nodes))
        for point in range(rows)
        for nodes in [tuple(kept[: 4 + (len(kept) - 4) * (point + 1) // rows])]
    )
    return Problem(name="layered", node_costs=tuple(build.node_costs), edges=tuple(build.edges), rows=held)


@pytest.mark.parametrize(("axes", "factors", "seconds"), [((4, 4), 4, 5.0), ((4, 2, 2), 5, 30.0)])
def test_instances_without_binding_rows_are_solved_to_the_optimum(
    axes: tuple[int, ...], factors: int, seconds: float
) -> None:
    found = solve(layered(axes, factors, layers=12), time_limit=60.0)
    assert found.status == "optimal"
    assert found.seconds < seconds


def test_binding_rows_leave_a_small_gap() -> None:
    problem = layered((4, 4), 4, layers=12, rows=20)
    found = solve(problem, time_limit=10.0)
    assert found.choice is not None
    assert not problem.violations(found.choice)
    assert found.gap < 0.02
    free = solve(layered((4, 4), 4, layers=12))
    assert free.choice is not None
    assert problem.violations(free.choice)
    assert found.value >= free.value * (1 - 1e-6)


def test_the_same_seed_gives_the_same_answer() -> None:
    problem = layered((2, 2), 2, layers=6, rows=6, tight=0.3)
    first, second = (solve(problem, seed=3) for _ in range(2))
    assert (first.choice, first.value, first.bound) == (second.choice, second.value, second.bound)


def test_local_search_keeps_its_sums_right() -> None:
    problem = layered((4, 2), 4, layers=4)
    network = Network.of(problem)
    assert Reducer(network).run(dominance=False, eliminate=False)
    search = LocalSearch(network, None)
    options = SolveOptions(deadline=Deadline.after(5.0))
    found = search.run(options, 1.0, 20)
    assert found is not None
    value, choice = found
    assert math.isclose(problem.evaluate([choice[node] for node in range(len(choice))]), value, rel_tol=1e-9)
