"""Every pass of a compiler can be switched off, to measure what it is worth."""

from __future__ import annotations

import pytest

from benchmarks.ablation import errors, gains
from planner.emit.predict import predict
from planner.pricing.assignment import Chosen
from planner.search.problem import PlanningProblem
from tests.problems import small_problem

MESH = {"x": 8}


def predicted(problem: PlanningProblem) -> tuple[float, float]:
    """The seconds and the peak of the first strategy of every node."""
    instance = problem.instance(MESH)
    found = predict(Chosen(instance=instance, choice=(0,) * len(instance.strategies)), problem.request.topology)
    return found.seconds, found.peak_bytes


@pytest.mark.parametrize("topology", ["v5e:2x4", "h100:8"])
def test_every_pass_can_be_switched_off(topology: str) -> None:
    problem = small_problem("mlp", topology)
    whole = predicted(problem)
    found = {one.name: predicted(problem.without(one.name)) for one in problem.model.compiler.passes}
    assert all(seconds > 0 and peak > 0 for seconds, peak in found.values())
    assert any(without != whole for without in found.values())
    assert predicted(problem) == whole


def test_a_gain_is_the_error_without_a_pass_less_that_with_it() -> None:
    compiled = {"seconds": 1.0, "peak_bytes": 100.0, "collectives": {"all-gather x": 10.0}}
    near = {"seconds": 1.1, "peak_bytes": 100.0, "collectives": {"all-gather x": 10.0}}
    assert errors(near, compiled) == pytest.approx({"seconds": 0.0953, "peak": 0.0, "collectives": 0.0}, abs=1e-4)
    rows = [
        {"topology": "v5e:4x4", "without": {"cse": {"seconds": 0.2, "peak": 0.0}}},
        {"topology": "h100:8", "without": {"cse": {"seconds": 0.4}}},
    ]
    assert gains(rows, "tpu", "cse") == {"seconds": [0.2], "peak": [], "collectives": []}
