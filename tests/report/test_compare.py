"""`planner.compare` tells where two plans differ, from their files as from the plans, and nothing of a plan and itself."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from jax.sharding import PartitionSpec as P

import planner
from planner.errors import ArgumentError, PlanFileError
from planner.report.collectives import collective_uses
from planner.report.compare import compare_decisions
from tests.small import NEVER, mlp, mlp_args, shapes, train_args, train_step

MESH = {"data": 4, "model": 2}
ARGS = shapes(train_args(width=256, batch=1024))


def planned(**more: object) -> planner.Plan:
    asked = {"mesh": MESH, "topology": "cpu:8", "donate_argnums": 0, "options": NEVER, **more}
    return planner.plan(train_step, ARGS, **asked)  # pyright: ignore[reportArgumentType]


@pytest.fixture(scope="module")
def free() -> planner.Plan:
    return planned()


@pytest.fixture(scope="module")
def pinned() -> planner.Plan:
    return planned(pins={"state/params/w0": P("model"), "x": P("data")})


def test_a_plan_is_the_same_as_itself_and_as_its_file(free: planner.Plan, tmp_path: Path) -> None:
    free.save(tmp_path / "a.json")
    for other in (free, planner.load(tmp_path / "a.json"), tmp_path / "a.json", str(tmp_path / "a.json")):
        found = planner.compare(free, other)
        assert found.same
        assert not found.notes
        assert "The plans are the same." in str(found)


def test_what_differs_is_told_from_files_as_from_plans(
    free: planner.Plan, pinned: planner.Plan, tmp_path: Path
) -> None:
    for name, plan in (("a", free), ("b", pinned)):
        plan.save(tmp_path / f"{name}.json")
    found = planner.compare(free, pinned)
    assert found == planner.compare(tmp_path / "a.json", tmp_path / "b.json")
    assert not found.same
    placed = {one.name.split(" ")[0]: (one.a, one.b) for one in found.arrays}
    mine, its = free.in_specs[0]["params"]["w0"], pinned.in_specs[0]["params"]["w0"]
    assert placed["state/params/w0"] == (mine, its)
    figures = {one.name: (one.a, one.b) for one in found.figures}
    assert figures["seconds"] == (free.predicted.seconds, pinned.predicted.seconds)
    assert figures["peak_bytes"] == (free.predicted.peak_bytes, pinned.predicted.peak_bytes)
    for plan, runs, size in ((free, "runs_a", "bytes_a"), (pinned, "runs_b", "bytes_b")):
        collectives = plan.predicted.collectives
        assert sum(getattr(one, runs) for one in found.collectives) == pytest.approx(sum(c.count for c in collectives))
        moved = math.fsum(c.count * c.bytes for c in collectives)
        assert math.fsum(getattr(one, size) for one in found.collectives) == pytest.approx(moved)
    text = str(found)
    assert "state/params/w0" in text
    assert str(mine) in text.replace("PartitionSpec", "P") or "P(" in text


def test_plans_whose_intervals_overlap_are_a_tie(free: planner.Plan) -> None:
    near, far = (
        replace(free.decision, predicted=replace(free.predicted, seconds=2.0, seconds_range=interval))
        for interval in ((free.predicted.seconds, 2.0), (1.9, 2.1))
    )
    assert any("a tie" in note for note in compare_decisions(free.decision, near).notes)
    assert not any("a tie" in note for note in compare_decisions(free.decision, far).notes)


def test_every_difference_turns_around_with_the_plans(free: planner.Plan, pinned: planner.Plan) -> None:
    there, back = planner.compare(free, pinned), planner.compare(pinned, free)
    assert {(one.name, str(one.a), str(one.b)) for one in there.arrays} == {
        (one.name, str(one.b), str(one.a)) for one in back.arrays
    }
    assert {(m.kind, m.over, m.bytes_a, m.bytes_b) for m in there.collectives} == {
        (m.kind, m.over, m.bytes_b, m.bytes_a) for m in back.collectives
    }


def test_on_other_meshes_specs_are_compared_by_the_parts_they_cut(free: planner.Plan) -> None:
    renamed = planned(mesh={"a": 4, "b": 2})
    found = planner.compare(free, renamed)
    assert not found.arrays, "the same cuts by axes of other names"
    assert any("meshes differ" in note for note in found.notes)
    assert all(one.over.endswith("devices") for one in found.collectives)
    assert planner.compare(free, planned(mesh={"x": 8})).arrays


def test_plans_of_other_functions_and_chips_are_compared_as_far_as_that_goes(free: planner.Plan) -> None:
    other = planner.plan(mlp, mlp_args(), topology="v5e:2x4", mesh=MESH, options=NEVER)
    found = planner.compare(free, other)
    assert any("different functions" in note for note in found.notes)
    assert any("different chips" in note for note in found.notes)
    assert "params/w0" in found.only_b
    assert "state/params/w0" in found.only_a
    assert str(found)


def test_what_is_no_plan_is_refused(free: planner.Plan, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="b is 3; give a plan"):
        planner.compare(free, 3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(PlanFileError, match="cannot be read"):
        planner.compare(tmp_path / "none.json", free)


def test_seconds_of_collectives_are_about_those_of_the_plan(pinned: planner.Plan) -> None:
    uses = collective_uses(pinned.decision)
    assert len(uses) == len(pinned.predicted.collectives)
    assert math.fsum(use.seconds or 0.0 for use in uses) >= pinned.predicted.communication_seconds * (1 - 1e-6)
