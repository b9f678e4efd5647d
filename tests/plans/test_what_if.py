"""`plan.what_if` prices other pins, meshes and memory limits as a plan made for them would be, without tracing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import pytest
from jax.sharding import PartitionSpec as P

import planner
from planner.errors import ArgumentError, MeshError, PinError
from planner.plans.plan import Plan
from planner.pricing.candidates.specs import spec_text
from tests.small import NEVER, shapes, train_args, train_step

ARGS = shapes(train_args(width=512, batch=256))
MESH = {"data": 4, "model": 4}


def planned(mesh: dict[str, int] = MESH, *, fn: Callable[..., Any] = train_step, **more: Any) -> Plan:
    return planner.plan(fn, ARGS, topology="v5e:4x4", mesh=mesh, donate_argnums=0, options=NEVER, **more)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planned()


def test_nothing_changes_where_what_is_asked_is_so_already(plan: Plan) -> None:
    found = plan.what_if({"state/params/w0": plan.in_specs[0]["params"]["w0"]})
    assert found.comparison.same
    assert found.proven
    assert found.fits
    assert "The plans are the same." in str(found)


@pytest.mark.parametrize("spec", [P(), P("model"), P(None, ("data", "model"))])
def test_a_pin_costs_what_a_plan_with_it_costs(plan: Plan, spec: P) -> None:
    found = plan.what_if({"state/params/w0": spec})
    other = planned(pins={"state/params/w0": spec})
    assert found.proven
    assert found.decision.predicted.seconds == pytest.approx(other.predicted.seconds, rel=2e-3)
    assert found.decision.in_specs[other.decision.in_specs.index(spec)] == spec
    assert found.comparison.b == f"train_step for v5e:4x4 if state/params/w0 is {spec_text(spec)}"
    assert found.decision.request.pins == {"state/params/w0": spec}


def test_a_pin_goes_before_those_of_the_plan() -> None:
    plan = planned(pins={"state/params/w0": P("model"), "x": P("data")})
    found = plan.what_if({"state/params/w0": P()})
    assert found.decision.request.pins == {"state/params/w0": P(), "x": P("data")}
    names = [leaf.name for leaf in found.decision.arguments]
    specs = dict(zip(names, found.decision.in_specs, strict=True))
    assert (specs["state/params/w0"], specs["x"]) == (P(), P("data"))


def test_another_mesh_costs_what_a_plan_on_it_costs(plan: Plan) -> None:
    found, other = plan.what_if(mesh={"data": 16}), planned({"data": 16})
    assert found.decision.mesh_shape == {"data": 16}
    assert found.decision.predicted.seconds == pytest.approx(other.predicted.seconds, rel=2e-3)
    assert "the meshes differ" in str(found)


def test_a_lower_memory_limit_costs_what_a_plan_within_it_costs(plan: Plan) -> None:
    limit = 0.5 * plan.predicted.peak_bytes
    found, other = plan.what_if(memory_limit=limit), planned(memory_limit=limit)
    assert found.fits
    assert found.decision.predicted.peak_bytes <= limit
    assert found.decision.predicted.seconds == pytest.approx(other.predicted.seconds, rel=2e-2)
    assert "by prices of memory" in str(found)


def test_nothing_changes_under_a_limit_either(plan: Plan) -> None:
    limit = 0.5 * plan.predicted.peak_bytes
    tight = planned(memory_limit=limit)
    found = tight.what_if({"x": tight.in_specs[1]})
    assert found.comparison.same
    assert found.fits


def test_what_does_not_fit(plan: Plan) -> None:
    found = plan.what_if({"state/*": P()}, memory_limit=0.3 * plan.predicted.peak_bytes)
    assert not found.fits
    assert "B does not fit: it needs" in str(found)


def test_nothing_is_traced() -> None:
    calls: list[int] = []

    def fn(state: Any, x: jax.Array) -> Any:
        calls.append(1)
        return train_step(state, x)

    plan = planned(fn=fn)
    before = len(calls)
    plan.what_if({"state/params/*": P()})
    plan.what_if(mesh={"data": 8})
    assert len(calls) == before


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({}, ArgumentError, "nothing is asked; give pins"),
        ({"memory_limit": -1}, ArgumentError, "is -1; give positive bytes"),
        ({"pins": {"state/w9": P()}}, PinError, "matches no tensor"),
        ({"pins": {"x": P("rows")}}, PinError, "names the axis 'rows'"),
        ({"pins": {"x": "data"}}, PinError, "give a jax.sharding.PartitionSpec"),
        ({"mesh": {"data": 64}}, MeshError, "64"),
    ],
)
def test_what_cannot_be(plan: Plan, given: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        plan.what_if(**given)


def test_plans_of_least_memory_are_not_priced() -> None:
    with pytest.raises(ArgumentError, match="minimises memory"):
        planned(objective="memory").what_if({"x": P()})


def test_a_loaded_plan(plan: Plan, tmp_path: Any) -> None:
    path = tmp_path / "plan.json"
    plan.save(path)
    again = planner.load(path).bind(train_step)
    pins = {"state/params/w1": P("data")}
    assert str(again.what_if(pins)) == str(plan.what_if(pins))
