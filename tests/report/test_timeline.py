"""The predicted step as trace events, and the figures of a plan as a flat dict."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import planner
from planner.errors import ArgumentError
from planner.plans.plan import Plan
from tests.small import NEVER, shapes, train_args, train_step


def layers(weights: jax.Array, x: jax.Array) -> jax.Array:
    def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        return jnp.tanh(x @ w), None

    return jax.lax.scan(layer, x, weights)[0].sum()


@pytest.fixture(scope="module")
def plan() -> Plan:
    args = shapes((jnp.ones((6, 512, 512)), jnp.ones((256, 512))))
    pins = {"weights": P(None, None, "model")}
    return planner.plan(layers, args, topology="v5e:4x4", mesh={"data": 4, "model": 4}, pins=pins, options=NEVER)


def events(plan: Plan, path: Path) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """The trace as it is written, and its events by track."""
    plan.trace(path)
    trace = json.loads(path.read_text())
    tracks = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    found: dict[str, list[Any]] = {name: [] for name in tracks.values()}
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            found[tracks[event["tid"]]].append(event)
    return trace, found


def test_events_last_as_long_as_the_step_is_predicted_to_take(plan: Plan, tmp_path: Path) -> None:
    trace, tracks = events(plan, tmp_path / "step.json")
    predicted = plan.predicted
    computing = math.fsum(event["dur"] for event in tracks["computing"]) / 1e6
    moving = math.fsum(e["dur"] for name, of in tracks.items() if name.startswith("links") for e in of) / 1e6
    assert trace["otherData"]["seconds"] == pytest.approx(predicted.seconds)
    assert computing == pytest.approx(predicted.compute_seconds)
    assert moving == pytest.approx(predicted.communication_seconds)
    assert set(tracks) >= {"program", "computing"}
    assert all(
        set(name.removeprefix("links of ").split(",")) <= {"data", "model"} for name in tracks if "links" in name
    )
    assert any("links of" in name for name in tracks)


def test_events_follow_one_another_within_loops(plan: Plan, tmp_path: Path) -> None:
    _, tracks = events(plan, tmp_path / "step.json")
    work = sorted((e for name, of in tracks.items() if name != "program" for e in of), key=lambda e: e["ts"])
    assert all(a["ts"] + a["dur"] == pytest.approx(b["ts"]) for a, b in pairwise(work))
    spans = {event["name"]: (event["ts"], event["ts"] + event["dur"]) for event in tracks["program"]}
    scan = next(span for name, span in spans.items() if name.startswith("scan"))
    assert spans["program"][0] <= scan[0] < scan[1] <= spans["program"][1]
    inside = [event for event in tracks["computing"] if event["args"]["trips"] == 6]
    assert inside
    assert all(scan[0] <= event["ts"] + 1e-6 and event["ts"] + event["dur"] <= scan[1] + 1e-6 for event in inside)


def test_a_path_that_cannot_be_written(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="the trace cannot be written"):
        plan.trace(tmp_path)


def test_the_summary_is_flat(plan: Plan) -> None:
    found = plan.summary
    assert all(isinstance(value, (int, float, str)) for value in found.values())
    assert json.loads(json.dumps(found)) == found
    assert found["seconds"] == plan.predicted.seconds
    assert (found["mesh/data"], found["devices"], found["function"]) == (4, 16, "layers")
    moved = math.fsum(one.count * one.bytes for one in plan.predicted.collectives)
    told = [value for name, value in found.items() if name.startswith("collectives/") and name.endswith("/bytes")]
    assert math.fsum(told) == pytest.approx(moved)


def test_a_train_step_on_one_device(tmp_path: Path) -> None:
    plan = planner.plan(train_step, shapes(train_args()), topology="v5e:2x2", mesh={"x": 1}, options=NEVER)
    trace, tracks = events(plan, tmp_path / "one.json")
    assert set(tracks) == {"program", "computing"}
    assert trace["otherData"]["seconds"] == pytest.approx(plan.predicted.seconds)
