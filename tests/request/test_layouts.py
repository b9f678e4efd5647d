"""A layout that is asked for is had: a mesh of devices, pins as pytrees of specs or shardings, that of another plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

import planner
from planner.errors import ArgumentError, MeshError, PinError
from tests.small import NEVER, WIDTH, assert_same, mlp, mlp_args, mlp_params, shapes, train_args, train_step

SHAPE = {"data": 4, "model": 2}
MESH = Mesh(np.array(jax.devices()[::-1]).reshape(4, 2), ("data", "model"))
SPECS = {"w0": P(None, "model"), "b0": P("model"), "w1": P("model")}


def init(key: jax.Array) -> dict[str, Any]:
    params = jax.tree.map(lambda p: jax.random.normal(key, p.shape), mlp_params())
    return {"params": params, "m": jax.tree.map(jnp.zeros_like, params), "v": jax.tree.map(jnp.zeros_like, params)}


def order(mesh: Any) -> list[int]:
    return [device.id for device in mesh.devices.flat]


# ---------------------------------------------------------------- a mesh of devices


@pytest.mark.parametrize("kinds", [(AxisType.Auto,) * 2, (AxisType.Explicit,) * 2])
def test_a_mesh_lies_as_it_is_given(kinds: tuple[AxisType, ...]):
    mesh = Mesh(MESH.devices, MESH.axis_names, axis_types=kinds)
    p = planner.plan(mlp, mlp_args(), mesh=mesh)
    assert order(p.mesh) == order(MESH)
    assert dict(p.mesh.shape) == SHAPE
    assert all(check.ok for check in p.checked)
    placed = jax.device_put(mlp_args()[1], NamedSharding(mesh, P("data")))
    assert_same(p(mlp_args()[0], placed), mlp(*mlp_args()))


def test_a_mesh_of_some_devices():
    some = Mesh(np.array(jax.devices()[5:1:-1]), ("data",))
    p = planner.plan(mlp, shapes(mlp_args()), mesh=some, options=NEVER)
    assert order(p.mesh) == [5, 4, 3, 2]
    assert p.decision.topology == "cpu:4"


def test_an_abstract_mesh_says_names_and_sizes():
    p = planner.plan(mlp, shapes(mlp_args()), mesh=AbstractMesh((4, 2), ("data", "model")), topology="v5e:2x4")
    assert p.mesh_is_abstract
    assert p.decision.mesh_shape == SHAPE


def test_devices_may_be_given_beside_their_mesh_and_no_others():
    p = planner.plan(mlp, shapes(mlp_args()), mesh=MESH, devices=jax.devices(), options=NEVER)
    assert order(p.mesh) == order(MESH)
    with pytest.raises(MeshError, match=r"are not those of mesh=.*leave devices out"):
        planner.plan(mlp, shapes(mlp_args()), mesh=MESH, devices=jax.devices()[:4], options=NEVER)


def test_a_program_may_name_the_same_mesh_and_no_other_order():
    def fn(x: jax.Array, mesh: Mesh) -> jax.Array:
        return jax.lax.with_sharding_constraint(x * 2, NamedSharding(mesh, P("data")))

    x = jnp.ones((8, 8))
    p = planner.plan(lambda x: fn(x, MESH), (x,), mesh=MESH)
    assert order(p.mesh) == order(MESH)
    other = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
    with pytest.raises(MeshError, match=r"names the mesh .* itself, of other devices, or in another order"):
        planner.plan(lambda x: fn(x, other), (x,), mesh=MESH)


@pytest.mark.parametrize("mesh", [8, ["data"], jax.devices()])
def test_what_is_no_mesh(mesh: Any):
    with pytest.raises(MeshError, match=r"mesh must map axis names to sizes, or be a jax.sharding.Mesh"):
        planner.plan(mlp, shapes(mlp_args()), mesh=mesh, options=NEVER)


def test_across_nodes_a_mesh_that_lies_otherwise_is_told():
    note = "the mesh lies on its devices as it was given"
    for devices, told in ((jax.devices(), False), (jax.devices()[::-1], True)):
        mesh = Mesh(np.array(devices).reshape(2, 4), ("a", "b"))
        p = planner.plan(mlp, shapes(mlp_args()), mesh=mesh, topology="h100:2x4", options=NEVER)
        assert any(words.startswith(note) for words in p.notes) is told


# ---------------------------------------------------------------- pins as pytrees


@pytest.mark.parametrize("key", ["params", 0, -2])
def test_a_pytree_of_specs_by_name_or_position(key: Any):
    p = planner.plan(mlp, shapes(mlp_args()), mesh=SHAPE, pins={key: SPECS}, options=NEVER)
    assert p.in_specs[0] == SPECS


def test_prefixes_and_what_is_left_free():
    pins = {"state": {"params": SPECS, "m": P("data"), "v": None}, "x": P("data")}
    free = planner.plan(train_step, shapes(train_args()), mesh=SHAPE, pins={"x": P("data")}, options=NEVER)
    p = planner.plan(train_step, shapes(train_args()), mesh=SHAPE, pins=pins, options=NEVER)
    assert p.in_specs[0]["params"] == SPECS
    assert set(p.in_specs[0]["m"].values()) == {P("data")}
    assert set(p.decision.request.pins) == {f"state/{part}/{name}" for part in ("params", "m") for name in SPECS} | {
        "x"
    }
    assert p.certificate.value > free.certificate.value


def test_specs_mapped_over_arguments_that_hold_none():
    args = {"a": jax.ShapeDtypeStruct((64, 8), jnp.float32), "contact": None}, {"ema": None}

    def step(state: Any, extra: Any) -> Any:
        return {"a": state["a"] * 2, "contact": state["contact"]}

    specs = [jax.tree.map(lambda x: P("data"), arg) for arg in args]
    p = planner.plan(step, args, mesh=SHAPE, pins={"state": specs[0], "extra": specs[1]}, options=NEVER)
    assert p.in_specs == (specs[0], specs[1])
    assert list(p.decision.request.pins) == ["state/a"]


def test_a_part_of_an_argument_and_of_the_result():
    pins = {"state/params": SPECS, "out": ({"params": P(), "m": None, "v": None}, None)}
    p = planner.plan(train_step, shapes(train_args()), mesh=SHAPE, pins=pins, options=NEVER)
    assert p.in_specs[0]["params"] == SPECS
    assert set(p.out_specs[0]["params"].values()) == {P()}


def test_a_spec_for_all_of_an_argument():
    p = planner.plan(mlp, shapes(mlp_args()), mesh=SHAPE, pins={"params": P("data")}, options=NEVER)
    assert set(p.in_specs[0].values()) == {P("data")}


@flax.struct.dataclass
class State:
    params: Any
    step: Any


def test_a_dict_of_specs_serves_for_an_object_with_these_fields():
    p = planner.plan(
        lambda state, x: mlp(state.params, x) + state.step,
        (State(params=mlp_params(), step=jnp.ones(())), jnp.ones((32, WIDTH))),
        mesh=SHAPE,
        pins={"state": {"params": SPECS, "step": None}},
        options=NEVER,
    )
    assert p.in_specs[0].params == SPECS


def test_shardings_say_the_mesh():
    pins = {"params": jax.tree.map(lambda spec: NamedSharding(MESH, spec), SPECS)}
    for mesh in (None, SHAPE, MESH):
        p = planner.plan(mlp, shapes(mlp_args()), mesh=mesh, pins=pins, options=NEVER)
        assert order(p.mesh) == order(MESH)
        assert p.in_specs[0] == SPECS


def test_shardings_on_another_mesh_than_the_plans():
    pins = {"params/w0": NamedSharding(MESH, P("data"))}
    straight = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
    for mesh in ({"data": 8}, straight):
        with pytest.raises(
            PinError, match=r"the pins are shardings on the mesh data=4,model=2 of the devices 7, 6, .*"
        ):
            planner.plan(mlp, shapes(mlp_args()), mesh=mesh, pins=pins, options=NEVER)
    pins["x"] = NamedSharding(straight, P("data"))
    with pytest.raises(PinError, match=r"shardings on several meshes, .*use one for all"):
        planner.plan(mlp, shapes(mlp_args()), pins=pins, options=NEVER)


@pytest.mark.parametrize(
    ("pins", "words"),
    [
        (
            {"params": {**SPECS, "w9": P()}},
            r"says P.*\(\) of params/w9, but params has no array there; it has",
        ),
        ({"params": {"w0": P(), "w1": P()}}, "says nothing of params/b0; give None for what is to be free"),
        ({"parms": SPECS}, "'parms' is a dict, but no argument or result has this name; names look like 'params'"),
        ({"params": {**SPECS, "w0": "model"}}, "'params/w0' has the value 'model'; give a jax.sharding.PartitionSpec"),
        ({"params": {**SPECS, "w0": {"a": P()}}}, "of params/w0/a, but params has no array there"),
        ({"x": SingleDeviceSharding(jax.devices()[0])}, "'x' has the value the sharding SingleDevice"),
        ({2: P()}, "pins has the position 2, but there are 2 arguments"),
        ({1.5: P()}, "the pin 1.5 is no name; its key is that of an argument"),
        ([P()], "pins is .*; give a mapping"),
    ],
)
def test_pins_that_are_not_like_what_they_are_for(pins: Any, words: str):
    with pytest.raises(PinError, match=words):
        planner.plan(mlp, shapes(mlp_args()), mesh=SHAPE, pins=pins, options=NEVER)


def test_names_that_look_like_patterns_are_meant_as_they_are():
    args = ({"w[0]": jnp.ones((8, 8)), "w0": jnp.ones((8, 8))},)
    p = planner.plan(lambda d: d["w[0]"] @ d["w0"], args, mesh=SHAPE, pins={"d": {"w[0]": P("data"), "w0": P()}})
    assert p.in_specs[0] == {"w[0]": P("data"), "w0": P()}


# ---------------------------------------------------------------- like another plan


@pytest.fixture(scope="module")
def trained() -> planner.Plan:
    pins = {"state": {"params": SPECS, "m": P("data"), "v": P("data")}}
    return planner.plan(train_step, train_args(), mesh=MESH, pins=pins, donate_argnums=0, options=NEVER)


def test_what_a_step_takes_is_born_as_it_takes_it(trained: planner.Plan):
    born = planner.plan(init, (jax.random.key(0),), like=trained)
    assert born.out_specs == trained.in_specs[0]
    assert order(born.mesh) == order(trained.mesh)
    assert "9 of 10 arguments and results lie as in the plan of train_step: out as state; of its own: key" in born.notes
    assert all(check.ok for check in born.checked)
    state = born(jax.random.key(0))
    assert jax.tree.map(lambda leaf: leaf.sharding, state) == trained.in_shardings[0]
    stepped, _ = trained(state, jnp.ones((32, WIDTH)))
    assert stepped["params"]["w0"].sharding.spec == SPECS["w0"]


def test_a_plan_like_one_that_was_saved(trained: planner.Plan, tmp_path: Path):
    trained.save(tmp_path / "trained.json")
    loaded = planner.load(tmp_path / "trained.json")
    p = planner.plan(mlp, shapes(mlp_args()), like=loaded, options=NEVER)
    assert p.in_specs[0] == SPECS
    assert order(planner.plan(mlp, shapes(mlp_args()), like=loaded, devices=jax.devices()).mesh) == list(range(8))


def test_a_plan_like_one_without_devices():
    first = planner.plan(train_step, shapes(train_args()), topology="v5e:2x4", mesh=SHAPE, options=NEVER)
    p = planner.plan(mlp, shapes(mlp_args()), like=first, options=NEVER)
    assert p.mesh_is_abstract
    assert p.decision.topology == "v5e:2x4"
    assert p.in_specs[0] == first.in_specs[0]["params"]


def test_pins_go_before_another_plan_and_none_leaves_free(trained: planner.Plan):
    pins = {"params": {"w0": P(), "b0": None, "w1": None}}
    p = planner.plan(mlp, shapes(mlp_args()), like=trained, pins=pins, options=NEVER)
    assert p.in_specs[0]["w0"] == P()
    assert set(p.decision.request.pins) == {"params/w0", "x"}


def test_nothing_in_common_is_an_error(trained: planner.Plan):
    words = "the plan of train_step, and no argument or result of <lambda> is one of its arrays.*leave like out"
    with pytest.raises(ArgumentError, match=words):
        planner.plan(lambda y: y + 1, (jnp.ones(3),), like=trained)


def test_what_contradicts_the_other_plan_is_an_error(trained: planner.Plan):
    for more, words in (
        ({"mesh": {"x": 8}}, "like= is a plan on the mesh data=4,model=2 of the devices 7.* say the mesh x=8"),
        ({"topology": "v5e:2x4"}, "like= is a plan for the topology cpu:8, but topology is 'v5e:2x4'"),
        ({"devices": jax.devices()[:4]}, "like= is a plan on .* are others; leave devices out"),
    ):
        with pytest.raises(MeshError, match=words):
            planner.plan(mlp, shapes(mlp_args()), like=trained, options=NEVER, **more)
    with pytest.raises(ArgumentError, match=r"like is 'plan.json'; give a plan, or what planner.load returns"):
        planner.plan(mlp, shapes(mlp_args()), like="plan.json")  # pyright: ignore[reportArgumentType]
