"""One mesh: its plan is the same however it is stated, is what its value says, and is put off where memory is short."""

from __future__ import annotations

import math

import pytest

from pbqp.deadline import Deadline
from pbqp.options import GAP, SolveOptions
from planner.pricing.memory.memory_model import MemoryModel
from planner.search.best_on_mesh import Outcome, Postponed, free_plan
from planner.search.shared_layers import SharedInstance
from planner.search.within_limit import OVER
from tests.problems import ALIKE, small_problem

SHAPE = {"x": 4, "y": 2}


def _budget() -> SolveOptions:
    return SolveOptions(deadline=Deadline.after(120.0), gap=GAP)


def test_a_plan_is_the_same_whether_nodes_or_classes_decide() -> None:
    problem = small_problem("bert", ALIKE)
    shared, instance = problem.state(problem.mesh(SHAPE)), problem.instance(SHAPE)
    assert isinstance(shared, SharedInstance)
    values: list[float] = []
    for stated in (instance, shared):
        found = free_plan(stated, math.inf, _budget(), best=1.001 * values[0] if values else math.inf)
        assert isinstance(found, Outcome)
        assert found.candidate is not None
        values.append(found.candidate.value)
        assert instance.problem.evaluate(found.candidate.choice) == pytest.approx(values[-1])
        assert found.bound <= values[-1] * (1 + 1e-9)
    assert values[0] == pytest.approx(values[1])


@pytest.mark.parametrize("part", [0.999, 1.001])
def test_a_known_plan_leaves_only_what_is_better(part: float) -> None:
    instance = small_problem("mlp").instance(SHAPE)
    free = free_plan(instance, math.inf, _budget(), best=math.inf)
    assert isinstance(free, Outcome)
    assert free.candidate is not None
    again = free_plan(instance, math.inf, _budget(), best=part * free.candidate.value)
    assert isinstance(again, Outcome)
    assert (again.candidate is not None) == (part > 1)
    if again.candidate is not None:
        assert again.candidate.value == pytest.approx(free.candidate.value)
        assert instance.problem.evaluate(again.candidate.choice) == pytest.approx(free.candidate.value)


@pytest.mark.sample
@pytest.mark.parametrize("narrowed", [False, True])
def test_a_mesh_whose_plan_is_over_the_limit_is_put_off_and_then_keeps_it(narrowed: bool) -> None:
    instance = small_problem("mlp").instance(SHAPE)
    free = free_plan(instance, math.inf, _budget(), best=math.inf)
    assert isinstance(free, Outcome)
    assert free.candidate is not None
    limit = 0.9 * free.candidate.peak_bytes
    best = 10 * free.candidate.value if narrowed else math.inf
    postponed = free_plan(instance, limit, _budget(), best=best)
    assert isinstance(postponed, Postponed)
    assert postponed.bound <= free.candidate.value * (1 + 1e-9)
    priced = postponed.limited(_budget(), cutoff=best)
    closed = priced if priced.open is None else priced.open.closed(_budget(), cutoff=best)
    limited = closed.candidate or priced.candidate
    assert limited is not None
    assert limited.value >= free.candidate.value
    assert instance.problem.evaluate(limited.choice) == pytest.approx(limited.value)
    assert MemoryModel(instance=instance).profile(limited.choice).max() == limited.peak_bytes <= limit * OVER
