"""Plans for several TPU slices before the real compiler. Skips where libtpu is missing."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import planner
from cost_models import parse_topology
from planner.verify.aot import unavailable_reason
from planner.verify.step_time import why_not_judged
from tests.small import NEVER

NEEDS_LIBTPU = pytest.mark.skipif(
    bool(unavailable_reason("tpu")), reason=unavailable_reason("tpu") or "libtpu is there"
)
ARGS = (jax.ShapeDtypeStruct((1024, 1024), jnp.bfloat16), jax.ShapeDtypeStruct((1024, 2048), jnp.bfloat16))


def dense(x: jax.Array, w: jax.Array) -> jax.Array:
    return jax.nn.relu(x @ w).sum(axis=0)


def planned(mesh: dict[str, int]) -> planner.Plan:
    pins = {"x": P("data"), "w": P(None, "model")}
    return planner.plan(dense, ARGS, topology="v5e:2x2*2", mesh=mesh, pins=pins, options=NEVER)


def test_an_axis_across_slices_pays_for_the_network() -> None:
    across, inside = planned({"data": 2, "model": 4}), planned({"data": 2, "model": 2})
    assert "v5e:2x2*2" in str(across)
    assert across.predicted.communication_seconds > 10 * inside.predicted.communication_seconds > 0


@NEEDS_LIBTPU
def test_a_plan_across_slices_is_compiled_and_its_collectives_get_no_verdict() -> None:
    found = planned({"data": 2, "model": 4}).verify()
    assert found.memory.arguments[0] == pytest.approx(found.memory.arguments[1], rel=0.01)
    assert (found.collectives.ok, found.seconds) == (None, None)
    assert "between slices" in found.collectives.reason
    assert found.collectives.by_kind is not None


@NEEDS_LIBTPU
def test_a_plan_within_one_of_several_slices_is_compared() -> None:
    found = planned({"data": 2, "model": 2}).verify()
    assert found.collectives.ok is not None
    assert "between slices" not in found.collectives.reason


def test_schedules_of_slices_are_not_judged() -> None:
    assert "between slices" in why_not_judged(parse_topology("v5e:2x2*2"))
    assert why_not_judged(parse_topology("v5e:2x2")) == why_not_judged(parse_topology("h100:2x8")) == ""
