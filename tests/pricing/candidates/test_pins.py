"""Pins hold: on arguments, results and intermediates, by name or pattern; and a pin that cannot hold says why."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import planner
from planner.errors import PinError
from planner.pricing.candidates.pins import check_pins, pinned_dims
from tests.small import NEVER, mlp, mlp_args, planned, shapes, train_args, train_step

MESH = {"data": 4, "model": 2}


def test_arguments_by_name() -> None:
    p = planned(mlp, mlp_args(), mesh=MESH, pins={"params/w0": P(None, "model"), "x": P("data")})
    assert p.in_specs[0]["w0"] == P(None, "model")
    assert p.in_specs[1] == P("data")


def test_patterns_cross_levels_and_the_last_wins() -> None:
    pins = {"state/*": P(), "*/w?": P("data"), "state/params/w1": P(None, "model")}
    p = planner.plan(train_step, shapes(train_args()), mesh=MESH, pins=pins, options=NEVER)
    state = p.in_specs[0]
    assert {state[k]["w0"] for k in state} == {P("data")}
    assert state["m"]["w1"] == P("data")
    assert state["params"]["w1"] == P(None, "model")
    assert state["v"]["b0"] == P()


def test_results_by_name() -> None:
    p = planned(mlp, mlp_args(), mesh=MESH, pins={"out": P("model", "data")})
    assert p.out_specs == P("model", "data")
    assert p(*mlp_args()).sharding == NamedSharding(p.mesh, P("model", "data"))


def test_a_result_among_several() -> None:
    p = planned(
        lambda x: {"a": x + 1, "b": (x * 2, x.sum())}, (jnp.ones((8, 8)),), mesh=MESH, pins={"out/b/0": P("data")}
    )
    assert p.out_specs["b"][0] == P("data")


def test_a_result_that_is_an_argument() -> None:
    p = planned(lambda x: (x, x), (jnp.ones((8, 8)),), mesh=MESH, pins={"out/1": P(None, "data"), "x": P("data")})
    assert p.in_specs == (P("data"),)
    assert p.out_specs == (P("data"), P(None, "data"))


def test_a_state_may_leave_otherwise_than_it_came() -> None:
    pins = {"state/m/w0": P("data"), "out/0/m/w0": P(None, "data")}
    p = planned(train_step, train_args(), mesh=MESH, pins=pins)
    assert p.in_specs[0]["m"]["w0"] == P("data")
    assert p.out_specs[0]["m"]["w0"] == P(None, "data")


def test_intermediates_by_checkpoint_name_are_so_in_the_compiled_program() -> None:
    def fn(w: jax.Array, x: jax.Array) -> jax.Array:
        return checkpoint_name(jnp.tanh(x @ w), "hidden") @ w

    args = (jnp.ones((64, 64)), jnp.ones((32, 64)))
    free = planner.plan(fn, args, mesh=MESH, options=NEVER)
    p = planned(fn, args, mesh=MESH, pins={"hidden": P("model", "data")})
    assert p.constraints["hidden"] == P("model", "data") != free.constraints.get("hidden")
    assert p.certificate.value >= free.certificate.value
    assert '[{"model"}, {"data"}]' in p.jit.lower(*args).as_text()


def test_a_searched_mesh_has_axes_x_y_z() -> None:
    p = planned(mlp, mlp_args(), pins={"params/w0": P(None, "y")})
    assert "y" in p.mesh.shape
    assert p.in_specs[0]["w0"] == P(None, "y")


def test_an_axis_of_size_one_may_be_pinned() -> None:
    p = planned(
        mlp, mlp_args(), mesh={"data": 8, "model": 1}, pins={"x": P(("data", "model")), "params/w0": P("model")}
    )
    assert p.in_specs[1] == P("data")
    assert p.in_specs[0]["w0"] == P()


SHAPE = (32, 6)


@pytest.mark.parametrize(
    ("spec", "dim_of"),
    [
        (P(), {}),
        (P("a"), {"a": 0}),
        (P(None, "b"), {"b": 1}),
        (P(("a", "b")), {"a": 0, "b": 0}),
        (P("b", None), {"b": 0}),
    ],
)
def test_the_dim_that_an_axis_splits(spec: P, dim_of: dict[str, int]) -> None:
    assert pinned_dims("x", spec, SHAPE, {"a": 4, "b": 2}) == dim_of


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (P("c"), "the pin on x, .* names the axis 'c'; use the mesh's axes, 'a', 'b'"),
        (P(None, "a"), r"splits dim 1 of shape \(32, 6\) into 4 parts, but 6 is not divisible by 4; choose axes"),
        (P(("b", "a")), r"must list the axes of one dim in mesh order \('a', 'b'\)"),
        (P("a", "a"), "uses the axis 'a' twice; let an axis split one dim"),
        (P("a", None, "b"), r"has 3 entries, but its shape is \(32, 6\); give one per dim"),
    ],
)
def test_pins_that_no_tensor_can_have(spec: P, words: str) -> None:
    with pytest.raises(PinError, match=words):
        pinned_dims("x", spec, SHAPE, {"a": 4, "b": 2})


@pytest.mark.parametrize(
    ("pins", "words"),
    [
        ({"x": ("data",)}, r"the pin 'x' has the value \('data',\); give a jax.sharding.PartitionSpec"),
        ({1: P()}, "the pin 1 is no name; its key is a pattern"),
        (["x"], r"pins is \['x'\]; give a mapping"),
        ({"x": P(P.UNCONSTRAINED)}, "has the entry UNCONSTRAINED; an entry is"),
    ],
)
def test_pins_that_are_none(pins: object, words: str) -> None:
    with pytest.raises(PinError, match=words):
        check_pins(pins)


def test_an_indivisible_pin_of_a_plan() -> None:
    params, x = mlp_args()
    words = r"x, .*, splits dim 0 of shape \(30, 64\) into 8 parts, but 30 is not divisible by 8; choose"
    with pytest.raises(PinError, match=words):
        planner.plan(mlp, (params, x[:30]), mesh={"data": 8}, pins={"x": P("data")}, options=NEVER)


def test_axes_that_no_searched_mesh_has() -> None:
    with pytest.raises(PinError, match=r"\['data'\].*x, y, z.*fix mesh"):
        planner.plan(mlp, mlp_args(), pins={"x": P("data")}, options=NEVER)


def test_a_pin_that_matches_nothing_suggests_names() -> None:
    with pytest.raises(PinError, match="'parms/w0' matches no tensor; names look like 'params/w0'"):
        planner.plan(mlp, mlp_args(), mesh=MESH, pins={"parms/w0": P()}, options=NEVER)


def test_a_pin_that_an_op_cannot_make_is_moved_to() -> None:
    def fn(x: jax.Array) -> jax.Array:
        return checkpoint_name(jnp.sort(x, axis=1), "sorted")

    p = planned(fn, (jnp.ones((8, 8)),), mesh=MESH, pins={"sorted": P(None, "data")})
    assert p.constraints["sorted"] == P(None, "data")
