"""Narrowing gives up no strategy that a plan below the cutoff can choose."""

import numpy as np
import pytest

from pbqp.methods import solve
from pbqp.problem import Edge, Problem
from pbqp.smaller.narrow import swept
from planner.search.narrow import narrow
from tests.problems import small_problem


def _random(seed: int) -> Problem:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 4, size=6)
    pairs = {tuple(sorted(map(int, rng.choice(6, 2, replace=False)))) for _ in range(8)}
    return Problem(
        name=f"random {seed}",
        node_costs=tuple(rng.integers(0, 9, size=size).astype(float) for size in sizes),
        edges=tuple(
            Edge(nodes=(a, b), costs=rng.integers(0, 9, size=(sizes[a], sizes[b])).astype(float)) for a, b in pairs
        ),
        node_names=tuple(map(str, range(6))),
    )


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("seed", range(60))
def test_every_plan_below_the_cutoff_survives(seed: int, compiled: bool) -> None:
    problem = _random(seed)
    every = [tuple(map(int, choice)) for choice in np.ndindex(*(costs.size for costs in problem.node_costs))]
    values = {choice: problem.evaluate(choice) for choice in every}
    cutoff = min(values.values()) + (seed % 4) * 3.0
    kept, bound = swept(problem, cutoff, compiled=compiled)
    below = [choice for choice in every if values[choice] < cutoff]
    assert all(pick in kept[node] for choice in below for node, pick in enumerate(choice))
    if below:
        assert bound <= min(values.values()) + 1e-6


@pytest.mark.parametrize("name", ["mlp", "lstm"])
def test_a_narrowed_instance_has_the_same_optimum(name: str) -> None:
    instance = small_problem(name).instance({"x": 4, "y": 2})
    best = solve(instance.problem, time_limit=30.0)
    assert best.choice is not None
    narrowed = narrow(instance, best.value * 1.01)
    assert sum(map(len, narrowed.kept)) < sum(map(len, instance.strategies))
    again = solve(narrowed.stated.problem, time_limit=30.0)
    assert again.choice is not None
    assert again.value == pytest.approx(best.value)
    assert instance.problem.evaluate(narrowed.lift(again.choice).tolist()) == pytest.approx(best.value)


def test_nothing_below_the_optimum_is_found_out_or_left_to_the_solver() -> None:
    instance = small_problem("mlp").instance({"x": 4, "y": 2})
    best = solve(instance.problem, time_limit=30.0)
    narrowed = narrow(instance, best.value * 0.9)
    assert narrowed.floor >= best.value * 0.9 or solve(narrowed.stated.problem).value >= best.value * (1 - 1e-9)


def test_compiled_messages_narrow_as_well() -> None:
    instance = small_problem("lstm").instance({"x": 4, "y": 2})
    best = solve(instance.problem, time_limit=30.0)
    kept, bound = swept(instance.problem, best.value * 1.001, compiled=True)
    assert sum(map(len, kept)) < 0.5 * sum(map(len, instance.strategies))
    assert bound <= best.value * (1 + 1e-9)
    assert all(pick in labels for pick, labels in zip(best.choice or (), kept, strict=True))
