"""Under a memory limit: what prices leave of the gap is closed as far as was asked for, over all meshes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from planner.errors import InfeasibleError
from planner.options import Options
from planner.pricing.memory.memory_model import MemoryModel, whole_bytes
from planner.pricing.mesh import shape_key
from planner.search.infeasible import with_reason
from planner.search.mesh_search import SearchOptions, SearchResult, search
from planner.search.problem import PlanningProblem
from tests.problems import small_problem

MESHES = ({"x": 8}, {"x": 4, "y": 2})
LESS = 0.8
"""Of the memory of the best plan without a limit."""


@pytest.fixture(scope="module")
def problem() -> PlanningProblem:
    return small_problem("mlp")


def _found(problem: PlanningProblem, limit_bytes: float, gap: float) -> SearchResult:
    return search(MESHES, problem, SearchOptions(limit_bytes=limit_bytes, options=Options(time_limit_s=60.0, gap=gap)))


@pytest.mark.parametrize("gap", [0.0, 0.3])
def test_no_more_than_the_gap_is_left(problem: PlanningProblem, gap: float) -> None:
    limit = LESS * _found(problem, math.inf, 0.0).candidates[0].peak_bytes
    best = _found(problem, limit, 0.0)
    found = _found(problem, limit, gap)
    value = found.candidates[0].value
    assert found.candidates[0].peak_bytes <= limit
    assert found.bound <= best.candidates[0].value * (1 + 1e-9)
    assert value - found.bound <= max(gap, 2e-6) * value


def test_of_many_plans_of_the_least_peak_the_fastest_is_sought_when_it_is_asked_for(problem: PlanningProblem) -> None:
    least = problem.with_objective("memory", math.inf)
    how = SearchOptions(limit_bytes=math.inf, options=Options(time_limit_s=60.0))
    at_once = search(MESHES, least, how)
    found = search(MESHES, least, replace(how, tie_break_by_time=False))
    assert at_once.tie_broken is None
    assert found.tie_broken is not None
    slow, *fast = (of.candidates[0] for of in (found, found.tie_broken(), at_once))
    # How far each is sought is a matter of time: they need not be the same plan.
    for one in fast:
        assert one.peak_bytes <= slow.peak_bytes
        assert one.instance.problem.evaluate(one.choice) < slow.instance.problem.evaluate(slow.choice)


@pytest.mark.parametrize(("part", "short"), [(1.0, False), (LESS, True)])
def test_a_result_says_whether_memory_keeps_plans_from_being_better(
    problem: PlanningProblem, part: float, short: bool
) -> None:
    free = _found(problem, math.inf, 0.0).candidates[0]
    assert _found(problem, part * free.peak_bytes, 0.0).memory_bound is short
    # Nothing is below half of the least value: memory is not why.
    how = SearchOptions(limit_bytes=free.peak_bytes, options=Options(time_limit_s=60.0), below=0.5 * free.value)
    nothing = search(MESHES, problem, how)
    assert not nothing.candidates
    assert not nothing.memory_bound


def test_strategies_may_be_taken_in_another_order(problem: PlanningProblem) -> None:
    instance = problem.instance(MESHES[0])
    kept = [np.arange(len(table))[::-1] for table in instance.strategies]
    turned = instance.restricted(kept)
    for choice in ([0] * len(kept), [len(of) - 1 for of in kept]):
        whole = [int(of[pick]) for of, pick in zip(kept, choice, strict=True)]
        assert turned.problem.evaluate(choice) == instance.problem.evaluate(whole)
        np.testing.assert_array_equal(
            MemoryModel(instance=turned).profile(choice), MemoryModel(instance=instance).profile(whole)
        )


def test_what_cannot_fit_is_told_without_pricing_and_explained_when_it_is_asked_for(
    problem: PlanningProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 0.9 * whole_bytes(problem.model, 0.0) / 8
    how = SearchOptions(limit_bytes=limit, options=Options(time_limit_s=60.0), explained=False)

    def priced(*_: object) -> None:
        pytest.fail("a mesh was priced")

    with monkeypatch.context() as patched:
        patched.setattr(PlanningProblem, "state", priced)
        with pytest.raises(InfeasibleError) as caught:
            search(MESHES, problem, how)
    assert caught.value.least_bytes is None
    reason = with_reason(caught.value)
    assert reason.least_bytes is not None
    assert reason.least_bytes > limit
    assert with_reason(reason) is reason


def test_a_mesh_whose_bound_is_known_to_be_no_better_is_not_looked_at(problem: PlanningProblem) -> None:
    meshes = [{"x": 8}, {"x": 4, "y": 2}]
    every = search(meshes, problem, SearchOptions(limit_bytes=math.inf))
    assert set(every.free_bounds) == {shape_key(mesh) for mesh in meshes}
    assert every.unlimited == min(every.free_bounds.values())
    known = {shape_key(mesh): math.inf for mesh in meshes[:1]}
    found = search(
        meshes, problem, SearchOptions(limit_bytes=math.inf, below=2 * every.candidates[0].value, free_bounds=known)
    )
    assert [tuple(candidate.instance.mesh.sizes) for candidate in found.candidates] == [(4, 2)]
    assert found.free_bounds[shape_key(meshes[0])] == math.inf
