"""Plans keep some memory free where the compiler would else compute values again, and take all of it where they must."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.compiler.targets.table import TPU
from planner.errors import InfeasibleError
from planner.options import Options
from planner.planning.mesh_candidates import room_note
from planner.search.mesh_search import SearchOptions, search
from planner.search.problem import PlanningProblem, planning_problem
from planner.variants.variant_search import search_with_room
from tests.problems import small_problem

MESHES = [{"x": 8}]


def problem_of(share: float) -> tuple[PlanningProblem, float]:
    """A problem of a chip that has so much more memory than the fastest plan takes, and the bytes of that."""
    problem = small_problem("mlp")
    free = search(MESHES, problem, SearchOptions(limit_bytes=1e15)).candidates[0].peak_bytes
    return _with_memory(problem, share * free), free


def _with_memory(problem: PlanningProblem, size: float) -> PlanningProblem:
    topology = problem.request.topology
    chip = replace(topology.chip, hbm_bytes=int(size))
    request = replace(problem.request, topology=replace(topology, chip=chip), memory_limit=size)
    return planning_problem(program=problem.program, target=problem.target, request=request)


def test_there_is_room_on_tpus_alone() -> None:
    tpu, cpu = small_problem("mlp"), small_problem("mlp", "cpu:8")
    assert _with_memory(tpu, 1e9).roomy_limit == pytest.approx(TPU.room * 1e9)
    assert _with_memory(cpu, 1e9).roomy_limit == 1e9


def test_a_lower_limit_of_the_user_stands() -> None:
    problem = small_problem("mlp")
    assert problem.roomy_limit == min(problem.request.memory_limit, 0.95 * problem.request.topology.chip.hbm_bytes)
    lower = planning_problem(
        program=problem.program, target=problem.target, request=replace(problem.request, memory_limit=1e6)
    )
    assert lower.roomy_limit == 1e6


def test_plans_keep_to_it_and_say_so() -> None:
    problem, free = problem_of(1.08)
    found, limit = search_with_room(problem, MESHES, Options())
    assert limit == problem.roomy_limit < problem.request.memory_limit
    assert found.candidates[0].peak_bytes <= limit
    (note,) = room_note(problem, limit, free)
    assert "keeps to 95% of the memory" in note
    assert room_note(problem, limit, 0.5 * free) == ()


def test_all_of_it_is_taken_where_nothing_else_fits() -> None:
    problem = small_problem("mlp")
    with pytest.raises(InfeasibleError) as told:
        search(MESHES, problem, SearchOptions(limit_bytes=1.0))
    least = told.value.least_bytes
    assert least is not None
    # The least memory leaves few plans, and the best of them takes long to prove.
    found, limit = search_with_room(_with_memory(problem, 1.02 * least), MESHES, Options(gap=0.1))
    assert limit == pytest.approx(1.02 * least)
    assert found.candidates[0].peak_bytes <= limit
    with pytest.raises(InfeasibleError):
        search_with_room(_with_memory(problem, 0.5 * least), MESHES, Options())
