"""Ties go to fewer devices, nothing else does; and a plan that uses fewer than there are says how many and why."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import planner
from planner.testing import free_wires
from tests.small import NEVER, notes_of_placing, planned

F32 = jnp.float32


def shifted(x: jax.Array) -> jax.Array:
    return jnp.sin(x) + 1


def plan_of(shape: tuple[int, ...], **more: Any) -> planner.Plan:
    struct = jax.ShapeDtypeStruct(shape, F32)
    return planner.plan(shifted, (struct,), **{"topology": free_wires(6), "options": NEVER, **more})


def first_rows(plan: planner.Plan) -> str:
    return " ".join(str(plan).splitlines()[:3])


@pytest.mark.parametrize("objective", ["time", "memory"])
def test_an_axis_that_nothing_divides_by_is_left_out(objective: str) -> None:
    plan = plan_of((2, 5), objective=objective)
    assert plan.decision.mesh_shape == {"x": 2}
    assert "x=2: 2 of 6 devices" in first_rows(plan)
    assert any("uses 2 of 6 devices: no mesh of 3 or 6 devices" in note for note in plan.notes)


@pytest.mark.parametrize("objective", ["time", "energy", "memory"])
def test_what_nothing_divides_is_for_one_device(objective: str) -> None:
    plan = plan_of((5, 7), objective=objective)
    assert plan.decision.mesh_shape == {"x": 1}
    assert any("uses 1 of 6 devices: none of its arrays has a dim" in note for note in plan.notes)


def test_energy_says_why_it_uses_few_devices() -> None:
    plan = planner.plan(
        lambda x: x @ x, (jax.ShapeDtypeStruct((512, 512), F32),), topology="v5e:4x2", objective="energy", options=NEVER
    )
    assert plan.decision.mesh_shape == {"x": 1}
    assert "1 of 8 devices" in first_rows(plan)
    assert any("2, 4 or 8 devices takes less energy: a further device costs" in note for note in plan.notes)


@pytest.mark.parametrize("shape", [(6, 5), (12, 2), (24, 24)])
def test_what_gains_by_all_devices_uses_all(shape: tuple[int, ...]) -> None:
    plan = plan_of(shape)
    assert plan.mesh.size == 6
    assert ": 6 devices" in first_rows(plan)
    assert notes_of_placing(plan) == ()


def test_no_plan_is_worse_for_using_fewer_devices() -> None:
    for shape in ((2, 5), (3, 5), (4, 10), (9, 4), (8, 8)):
        searched = plan_of(shape)
        fixed = [plan_of(shape, mesh=mesh).certificate.value for mesh in ({"x": 6}, {"x": 3, "y": 2}, {"x": 3})]
        assert searched.certificate.value <= min(fixed) * (1 + 1e-9)
        assert searched.certificate.status == "optimal"


def test_a_fixed_mesh_is_kept_and_says_which_axis_splits_nothing() -> None:
    plan = plan_of((2, 5), mesh={"a": 3, "b": 2})
    assert plan.decision.mesh_shape == {"a": 3, "b": 2}
    assert [note for note in plan.notes if "'a' of 3 devices splits nothing" in note and "divisible by 3" in note]
    assert not any("'b'" in note for note in plan.notes)
    few = plan_of((2, 5), mesh={"a": 2})
    assert "a=2: 2 of 6 devices" in first_rows(few)
    assert notes_of_placing(few) == ()


def test_pins_that_name_an_axis_keep_it() -> None:
    plan = plan_of((6, 5), pins={"x": P("y")})
    assert plan.in_specs == (P("y"),)
    assert "y" in plan.decision.mesh_shape


def test_a_plan_taken_over_to_fewer_devices_runs_and_explains() -> None:
    x = jnp.arange(10.0).reshape(2, 5)
    plan = planned(shifted, (x,), topology=free_wires(6), devices=jax.devices()[:6])
    assert plan.mesh.size == 2
    assert plan.verify(x).ok
    assert "P('x'" in str(plan.explain("x"))
