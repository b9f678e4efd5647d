"""Workers: the plan does not depend on how many there are, and none that ends, hangs or fails is passed over in silence."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pbqp.deadline import Deadline
from pbqp.errors import SolverError
from planner.machine import cores
from planner.options import Options
from planner.search import workers as pool
from planner.search.mesh_search import SearchOptions, SearchResult, search
from planner.search.mesh_steps import Desk
from planner.search.problem import PlanningProblem
from planner.search.workers import Report, Task, Workers
from tests.problems import ALIKE, small_problem

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="workers are forked on Linux only")

MESHES: tuple[dict[str, int], ...] = ({"x": 8}, {"x": 4, "y": 2}, {"x": 2, "y": 2, "z": 2}, {"x": 4}, {"x": 2, "y": 2})
THREE = ({"x": 8}, {"x": 4, "y": 2}, {"x": 2, "y": 4})
HERE = os.getpid()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "FORKED_AFTER_SECONDS", 0.0)


def _due() -> Deadline:
    return Deadline.after(60.0)


def _tasks(count: int) -> list[Task]:
    return [Task(mesh=mesh, step="free", cutoff=math.inf) for mesh in range(count)]


def _answer(task: Task, due: Deadline) -> Report:
    return Report(bound=float(task.mesh), note=str(os.getpid()))


def _each(do: Callable[[Task, Deadline], Report], most: int = 2, count: int = 6) -> tuple[dict[int, Report], list[str]]:
    with Workers(do, _due, most, planning=Deadline.never()) as workers:
        found = {task.mesh: report for task, report in workers.each(_tasks(count))}
    assert not multiprocessing.active_children()
    assert {mesh: report.bound for mesh, report in found.items()} == {mesh: float(mesh) for mesh in range(count)}
    return found, workers.notes


def test_steps_are_taken_by_as_many_processes_as_asked_for() -> None:
    def slow(task: Task, due: Deadline) -> Report:
        time.sleep(0.05)
        return _answer(task, due)

    found, notes = _each(slow, most=3, count=7)
    assert len({report.note for report in found.values()} - {str(HERE)}) == 3
    assert not notes


def test_what_one_step_learns_workers_know() -> None:
    learnt: list[int] = []

    def learning(task: Task, due: Deadline) -> Report:
        learnt.append(task.mesh)
        return replace(_answer(task, due), note=f"{os.getpid()} {learnt[0]}")

    found, _ = _each(learning)
    assert found[5].note == f"{HERE} 5"
    assert {report.note.split()[1] for report in found.values()} == {"5"}
    assert sum(report.note.startswith(str(HERE)) for report in found.values()) == 1


def test_one_worker_is_this_process() -> None:
    found, _ = _each(_answer, most=1)
    assert {report.note for report in found.values()} == {str(HERE)}


def test_a_worker_that_is_killed_is_told_and_its_step_taken_by_another(tmp_path: Path) -> None:
    def killed(task: Task, due: Deadline) -> Report:
        if task.mesh == 3 and not (tmp_path / "once").exists():
            (tmp_path / "once").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return _answer(task, due)

    _, notes = _each(killed)
    assert notes == ["a worker process of the search ended by SIGKILL; the others go on"]


def test_without_any_worker_left_the_search_goes_on_here() -> None:
    def deadly(task: Task, due: Deadline) -> Report:
        if os.getpid() != HERE:
            os.kill(os.getpid(), signal.SIGKILL)
        return _answer(task, due)

    found, notes = _each(deadly)
    assert {report.note for report in found.values()} == {str(HERE)}
    assert len(notes) == 2
    assert notes[-1].endswith("the search goes on without any")


def test_a_worker_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "GRACE_SECONDS", 0.2)

    def hanging(task: Task, due: Deadline) -> Report:
        if os.getpid() != HERE:
            time.sleep(600)
        return _answer(task, due)

    with Workers(hanging, lambda: Deadline.after(0.0), 2, planning=Deadline.never()) as workers:
        found = {task.mesh for task, _ in workers.each(_tasks(3))}
    assert found == {0, 1, 2}
    assert len(workers.notes) == 2
    assert "late" in workers.notes[0]


def test_what_a_step_raises_is_raised() -> None:
    def failing(task: Task, due: Deadline) -> Report:
        raise SolverError(f"step {task.mesh}")

    with pytest.raises(SolverError, match="step"):
        _each(failing)
    assert not multiprocessing.active_children()


def test_memory_bounds_how_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left() -> float:
        return 1.0

    monkeypatch.setattr(cores, "bytes_left", none_left)
    monkeypatch.setattr(pool, "bytes_left", none_left)
    found, notes = _each(_answer, most=2)
    assert {report.note for report in found.values()} == {str(HERE)}
    assert notes == ["memory has room for 1 of 2 worker processes (1 B free)"]


def test_a_control_group_of_less_time_has_fewer_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cores, "GROUP", tmp_path)
    free = cores.usable_cores()
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    assert cores.usable_cores() == 1
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert cores.usable_cores() == free


def test_the_plan_is_the_same_for_any_number_of_workers() -> None:
    problem = small_problem("bert", ALIKE)
    found = [_searched(problem, math.inf, workers) for workers in (1, 2, 4)]
    for other in found[1:]:
        assert [plan.choice for plan in other.candidates] == [plan.choice for plan in found[0].candidates]
        assert (other.bound, other.tried) == (found[0].bound, found[0].tried)
    best = found[-1].candidates[0]
    assert best.instance.problem.evaluate(best.choice) == pytest.approx(best.value)


def test_a_search_goes_on_from_steps_that_a_killed_worker_took(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = small_problem("mlp")
    limit = 0.9 * _searched(problem, math.inf, 1, THREE).candidates[0].peak_bytes
    alone, do = _searched(problem, limit, 1, THREE), Desk.do

    def killed(self: Desk, task: Task, due: Deadline) -> Report:
        if task.step == "limited" and os.getpid() != HERE:
            os.kill(os.getpid(), signal.SIGKILL)
        return do(self, task, due)

    monkeypatch.setattr(Desk, "do", killed)
    found = _searched(problem, limit, 2, THREE)
    assert found.candidates[0].value == pytest.approx(alone.candidates[0].value)
    assert found.bound == pytest.approx(alone.bound)
    assert any("ended by SIGKILL" in note for note in found.notes)


def _searched(
    problem: PlanningProblem, limit: float, workers: int, meshes: Sequence[Mapping[str, int]] = MESHES
) -> SearchResult:
    return search(
        meshes, problem, SearchOptions(limit_bytes=limit, options=Options(time_limit_s=300.0, workers=workers))
    )
