"""What a plan's file says of arrays by itself: the same as the plan with its program does, of what the file holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jax.sharding import PartitionSpec as P

import planner
from planner.errors import ArgumentError
from planner.plan_file.codec import as_json
from planner.report.recorded import MOST_LARGEST, MOST_MATCHES
from tests.small import NEVER, shapes, train_args, train_step


@pytest.fixture(scope="module")
def plan() -> planner.Plan:
    args = shapes(train_args(256, 512))
    pins = {"state/params/w0": P("x")}
    return planner.plan(train_step, args, topology="v5e:2x4", mesh={"x": 4, "y": 2}, pins=pins, options=NEVER)


@pytest.fixture(scope="module")
def loaded(plan: planner.Plan, tmp_path_factory: pytest.TempPathFactory) -> planner.LoadedPlan:
    path = tmp_path_factory.mktemp("recorded") / "plan.json"
    plan.save(path)
    return planner.load(path)


def test_an_argument_lies_as_the_plan_says(plan: planner.Plan, loaded: planner.LoadedPlan) -> None:
    (told,), (known,) = loaded.explain("state/params/w0").arrays, plan.explain("state/params/w0").tensors
    chosen = next(one for one in known.alternatives if one.chosen)
    assert (told.spec, told.bytes, told.pinned) == (chosen.spec, chosen.bytes, True)
    assert told.peak_share == chosen.bytes / plan.predicted.peak_bytes
    assert told.logical == plan.logical_axes.names["state/params/w0"]
    assert [(move.kind, move.bytes) for move in told.moves] == [(m.collective, m.bytes) for m in known.moves]
    assert [move.seconds for move in told.moves] == pytest.approx([m.seconds for m in known.moves], rel=0.05)
    text = str(loaded.explain("state/params/w0"))
    assert "argument, pinned\n  -> P('x'), 65.5 kB on each device" in text
    assert "moved by all-gather over x: 131 kB" in text
    assert "With its program (meshwright explain PLAN.json FILE.py:FUNCTION" in text


def test_patterns_results_and_intermediates(plan: planner.Plan, loaded: planner.LoadedPlan) -> None:
    assert [array.kind for array in loaded.explain("*w0").arrays] == ["argument"] * 3 + ["result"] * 3
    name, spec = next(iter(plan.constraints.items()))
    (inside,) = [array for array in loaded.explain(name).arrays if array.name == name]
    assert (inside.kind, inside.spec, inside.bytes, inside.type) == ("intermediate", spec, None, "")
    everything = loaded.explain("*")
    assert len(everything.arrays) == MOST_MATCHES
    assert f"and {everything.left} more" in str(everything)
    assert everything.left == 20 + len(plan.constraints) - MOST_MATCHES


def test_unasked_it_tells_the_largest_arguments_no_two_alike(loaded: planner.LoadedPlan) -> None:
    told = loaded.explain().arrays
    assert told[0].name == "x"
    assert len(told) <= MOST_LARGEST
    assert len({(array.type, array.spec) for array in told}) == len(told)
    assert [array.bytes for array in told] == sorted((array.bytes or 0 for array in told), reverse=True)


def test_it_is_data_too(loaded: planner.LoadedPlan) -> None:
    told = json.loads(json.dumps(as_json(loaded.explain("state/params/w0"))))
    assert told["arrays"][0]["spec"] == [["x"]]
    assert told["arrays"][0]["moves"][0]["kind"] == "all-gather"


def test_prices_that_were_measured_are_in_no_file(loaded: planner.LoadedPlan, tmp_path: Path) -> None:
    record = json.loads((tmp_path / "..").resolve().joinpath("recorded0", "plan.json").read_text())
    record["request"]["cost_model"] = "measured"
    (tmp_path / "plan.json").write_text(json.dumps(record))
    (told,) = planner.load(tmp_path / "plan.json").explain("state/params/w0").arrays
    assert told.moves[0].seconds is None
    assert " in " not in str(told.moves[0])


def test_what_the_file_does_not_name(loaded: planner.LoadedPlan) -> None:
    with pytest.raises(
        ArgumentError, match=r"says nothing of 'state/param/w0'; names look like '.*w0'.*FILE.py:FUNCTION"
    ):
        loaded.explain("state/param/w0")
