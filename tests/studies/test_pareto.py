"""Fronts: plans along memory against time, their order, their checks, and what is saved and printed of them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest
from jax.sharding import PartitionSpec as P

import planner
from planner.errors import ArgumentError, CompileError, InfeasibleError
from planner.request import resolve
from planner.search import problem
from planner.studies import pareto_search
from tests.small import NEVER, assert_same, shapes, train_args, train_step

ARGS = train_args(width=128, batch=512)
MESH = {"data": 4, "model": 2}
ASKED: dict[str, Any] = {"mesh": MESH, "donate_argnums": 0, "topology": "cpu:8"}


@pytest.fixture(scope="module")
def front() -> planner.Front:
    return planner.pareto(train_step, ARGS, points=5, devices=jax.devices(), **ASKED)


def figures(front: planner.Front) -> list[tuple[float, float]]:
    return [(plan.predicted.peak_bytes, plan.predicted.seconds) for plan in front]


def test_less_memory_costs_time_and_no_plan_is_dominated(front: planner.Front) -> None:
    assert 3 <= len(front) <= 5
    peaks, seconds = zip(*figures(front), strict=True)
    assert list(peaks) == sorted(set(peaks))
    assert list(seconds) == sorted(set(seconds), reverse=True)
    assert [plan.predicted.peak_bytes for plan in front[1:-1]] == list(peaks[1:-1])


def test_the_ends_are_those_of_plan(front: planner.Front) -> None:
    best = planner.plan(train_step, shapes(ARGS), options=NEVER, **ASKED)
    least = planner.plan(train_step, shapes(ARGS), options=NEVER, objective="memory", **ASKED)
    assert front[-1].decision.choice == best.decision.choice
    assert front[0].predicted.peak_bytes == least.predicted.peak_bytes
    assert front[0].decision.request.objective == "memory"


def test_between_the_ends_each_is_the_best_of_its_memory(front: planner.Front) -> None:
    between = front[1]
    within = between.certificate.within_bytes
    assert within is not None
    assert between.predicted.peak_bytes <= within < front[2].predicted.peak_bytes
    assert f"no plan of at most {within / 1e3:.0f} kB per device" in " ".join(str(between).split())
    again = planner.plan(train_step, shapes(ARGS), options=NEVER, memory_limit=within, **ASKED)
    assert again.certificate.value == pytest.approx(between.certificate.value, rel=2e-3)
    # What was asked for is what all plans of the front are for.
    assert between.decision.request.memory_limit == front[-1].decision.request.memory_limit


def test_ends_are_run_and_those_between_compiled(front: planner.Front) -> None:
    for plan in (front[0], front[-1]):
        assert all(check.ok for check in plan.checked), plan.checked
    found = {check.what: check for check in front[1].checked}
    assert found["compiling"].ok
    assert found["numerics"].ok is None
    assert "between the ends" in found["numerics"].detail


def test_every_plan_runs_and_explains_itself(front: planner.Front) -> None:
    expected = train_step(*ARGS)
    for plan in front:
        assert_same(plan(*jax.tree.map(lambda leaf: leaf.copy(), ARGS)), expected)
        assert str(plan.explain("x"))


def test_the_table_and_within(front: planner.Front) -> None:
    lines = str(front).splitlines()
    assert lines[0].startswith(
        f"Front of train_step for cpu:8: peak memory per device against time of a call, {len(front)}"
    )
    assert len([line for line in lines if "data=4 x model=2" in line]) == len(front)
    assert "100.0%" in lines[1 + len(front)]
    assert "x 1 " in lines[1 + len(front)]
    assert front.within(front[1].predicted.peak_bytes) is front[1]
    with pytest.raises(ArgumentError, match="the least takes"):
        front.within(1.0)


def test_a_saved_front_is_loaded_plan_by_plan_and_replaced(front: planner.Front, tmp_path: Path) -> None:
    folder = tmp_path / "kept" / "front"
    folder.parent.mkdir()
    front.save(folder)
    shorter = planner.Front(front[:2], objective="time")
    shorter.save(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["front.json", "plan_0.json", "plan_1.json"]
    assert [path.name for path in folder.parent.iterdir()] == ["front"]
    told = json.loads((folder / "front.json").read_text())
    assert [point["peak_bytes"] for point in told["plans"]] == [plan.predicted.peak_bytes for plan in shorter]
    loaded = planner.load(folder / told["plans"][1]["file"])
    assert loaded.decision == front[1].decision
    assert loaded.bind(train_step, ARGS).certificate.within_bytes == front[1].certificate.within_bytes


def test_a_link_to_a_folder_stays_one(front: planner.Front, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    for saved in (front, planner.Front(front[:1], objective="time")):
        saved.save(tmp_path / "link")
        assert (tmp_path / "link").is_symlink()
        assert len(list((tmp_path / "there").iterdir())) == len(saved) + 1


def test_a_folder_of_other_things_is_left_alone(front: planner.Front, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("all of it")
    with pytest.raises(ArgumentError, match="holds other files"):
        front.save(tmp_path)
    with pytest.raises(ArgumentError, match="is a file"):
        front.save(tmp_path / "thesis.tex")
    with pytest.raises(ArgumentError, match=r"thesis.tex is a file; give a folder"):
        front.save(tmp_path / "thesis.tex" / "front")
    with pytest.raises(ArgumentError, match="File name too long; give another folder"):
        front.save(tmp_path / ("a" * 300))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_plot_says_what_to_install(front: planner.Front, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib", "matplotlib.pyplot"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"pip install 'meshwright\[viz\]'"):
        front.plot()


def test_plot_draws_all_plans(front: planner.Front) -> None:
    drawn: list[tuple[str, Any]] = []

    class Axes:
        def __getattr__(self, name: str) -> Any:
            return lambda *found, **more: drawn.append((name, found))

    axes = Axes()
    assert front.plot(axes) is axes
    assert ("plot", tuple(map(list, zip(*figures(front), strict=True)))) in drawn
    assert len([name for name, _ in drawn if name == "annotate"]) == len(front)


def test_pins_and_topologies_without_devices() -> None:
    pins = {"x": P("data")}
    asked = {**ASKED, "topology": "v5e:2x4"}
    front = planner.pareto(train_step, shapes(ARGS), points=3, pins=pins, options=NEVER, **asked)
    assert 2 <= len(front) <= 3
    assert all(plan.in_specs[1] == P("data") and plan.mesh_is_abstract for plan in front)
    assert {check.detail for plan in front for check in plan.checked} == {"Options(check='never')"}


def test_energy_against_memory() -> None:
    front = planner.pareto(train_step, shapes(ARGS), points=3, objective="energy", options=NEVER, **ASKED)
    joules = [point["energy"] for point in front.summary["plans"]]
    assert joules == sorted(joules, reverse=True)
    assert front[-1].certificate.unit == "joules"


def test_where_nothing_is_to_trade_there_is_one_plan() -> None:
    front = planner.pareto(lambda x: x + 1, (jax.ShapeDtypeStruct((), "float32"),), mesh={"x": 1}, options=NEVER)
    assert len(front) == 1
    assert front.notes == ("one plan has both the least memory and the least time",)


def test_a_program_is_made_ready_once(monkeypatch: pytest.MonkeyPatch) -> None:
    traced: list[object] = []
    make = resolve.resolve_request
    monkeypatch.setattr(resolve, "resolve_request", lambda *a, **k: (traced.append(a), make(*a, **k))[1])
    models: list[object] = []
    model_of = problem.model_of
    monkeypatch.setattr(problem, "model_of", lambda *a, **k: (models.append(a), model_of(*a, **k))[1])
    planner.pareto(train_step, shapes(ARGS), points=4, options=NEVER, **ASKED)
    assert len(traced) == 1
    # One of the program, one of its classes of layers.
    assert len(models) <= 2


def test_a_search_ended_by_the_clock_is_told() -> None:
    options = replace(NEVER, time_limit_s=1e-3)
    front = planner.pareto(train_step, shapes(ARGS), options=options, **ASKED)
    assert len(front) >= 1
    assert any("the time limit of 0.001 s" in note for note in front.notes)
    assert "the time limit of 0.001 s" in str(front)


def test_a_plan_between_that_fails_is_left_out_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    best_plan = pareto_search.best_plan

    def failing(request: Any, candidates: Any, *, not_checked: str = "", not_run: str = "") -> planner.Plan:
        if not_run:
            raise CompileError("the compiler died")
        return best_plan(request, candidates)

    monkeypatch.setattr(pareto_search, "best_plan", failing)
    options = planner.Options(affordable_flops=0.0)
    front = planner.pareto(train_step, shapes(ARGS), points=3, options=options, **ASKED)
    assert len(front) == 2
    assert "a plan was left out: the compiler died" in front.notes


def test_no_time_left_for_compiling_is_told() -> None:
    options = planner.Options(affordable_compile_s=1e-3)
    front = planner.pareto(train_step, shapes(ARGS), points=3, devices=jax.devices(), options=options, **ASKED)
    assert front[0].checked[0].ok
    assert front[1].checked[0].ok is None
    assert "as time allows" in front[1].checked[0].detail


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"points": 1}, "points is 1; give a whole number of plans from 2 to 50"),
        ({"points": 2.5}, "points is 2.5"),
        ({"objective": "memory"}, "a front is of memory against 'time' or 'energy'"),
        ({"options": planner.Options(autotune="compile")}, "is for single plans"),
    ],
)
def test_what_cannot_be_asked_for(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        planner.pareto(train_step, shapes(ARGS), **{**ASKED, **more})


def test_nothing_fits_as_in_plan() -> None:
    with pytest.raises(InfeasibleError, match="no plan fits"):
        planner.pareto(train_step, shapes(ARGS), memory_limit=1e4, options=NEVER, **ASKED)


def test_what_fits_in_microbatches_only_has_a_front_of_them() -> None:
    asked: dict[str, Any] = {**ASKED, "options": NEVER}
    args = shapes(train_args(width=64, batch=8192))
    with pytest.raises(InfeasibleError) as told:
        planner.plan(train_step, args, memory_limit=1e3, **{**asked, "options": replace(NEVER, microbatches=1)})
    limit = 0.8 * (told.value.least_bytes or 0)
    front = planner.pareto(train_step, args, points=3, memory_limit=limit, **asked)
    assert len(front) > 1
    assert front[-1].decision.form == planner.plan(train_step, args, memory_limit=limit, **asked).decision.form
    for plan in front:
        assert plan.decision.form.microbatches > 1
        assert plan.predicted.peak_bytes <= limit
        assert any("runs as" in note for note in plan.notes)
    with pytest.raises(InfeasibleError, match="no plan fits"):
        planner.pareto(train_step, args, memory_limit=limit, **{**asked, "options": replace(NEVER, microbatches=1)})
