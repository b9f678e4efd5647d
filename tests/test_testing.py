"""`planner.testing`: what it draws, and that a plan that computes something else is told apart from one that does not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import planner
from planner.emit.runner import Runner
from planner.errors import ArgumentError, MeshError
from planner.testing import arguments, assert_same_as_single_device, free_wires, meshes

X = jax.random.normal(jax.random.key(0), (16, 8))
W = jax.random.normal(jax.random.key(1), (8, 16))


def layer(w: jax.Array, x: jax.Array) -> dict[str, jax.Array]:
    hidden = jnp.tanh(x @ w)
    return {"hidden": hidden, "largest": jnp.argmax(hidden, 1)}


def wrong_by(change: Callable[[list[Any]], list[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every plan computes something else from now on."""
    run = Runner._run.func  # pyright: ignore[reportPrivateUsage]

    def wrong(runner: Runner) -> Callable[..., list[Any]]:
        right = run(runner)
        return lambda *leaves: change(right(*leaves))

    monkeypatch.setattr(Runner, "_run", property(wrong))


# ---------------------------------------------------------------- the assertion


@hypothesis.settings(max_examples=6)
@hypothesis.given(meshes(), arguments((W, X)))
def test_a_right_plan_passes(mesh: Mapping[str, int], args: tuple[jax.Array, jax.Array]) -> None:
    plan = assert_same_as_single_device(layer, args, mesh=mesh)
    assert dict(plan.mesh.shape) == mesh
    assert any(P() != spec for spec in jax.tree.leaves(plan.in_specs, is_leaf=lambda leaf: isinstance(leaf, P)))


def test_a_wrong_plan_fails_with_the_result_its_difference_and_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong_by(lambda results: [results[0].at[3, 4].add(0.5), results[1]], monkeypatch)
    with pytest.raises(AssertionError) as caught:
        assert_same_as_single_device(layer, (W, X), mesh={"x": 4, "y": 2})
    told = str(caught.value)
    assert "layer on the mesh {'x': 4, 'y': 2} is not what it is on a single device: 1 of 2 results differ" in told
    assert "out/hidden: differs by 0.5, " in told
    assert "out/largest" not in told.split("Plan of")[0]
    assert "Plan of layer for free wires" in told


def test_integers_must_be_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong_by(lambda results: [results[0], results[1].at[0].add(1)], monkeypatch)
    with pytest.raises(AssertionError, match="out/largest: differs by 1, 0 is allowed"):
        assert_same_as_single_device(layer, (W, X), rtol=1e-3)


def test_the_function_itself_is_what_a_plan_is_compared_with() -> None:
    """A program that was traced wrong is not compared with itself."""
    plan = assert_same_as_single_device(layer, (W, X))
    other = plan.verify(W, X, reference=lambda w, x: layer(w, 2 * x))
    assert other.numerics.ok is False
    assert plan.verify(W, X, reference=layer).numerics.ok is True


@pytest.mark.parametrize(("rtol", "passes"), [(1e-2, True), (1e-5, False)])
def test_a_tolerance_of_the_users_own(rtol: float, passes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong_by(lambda results: [results[0] * 1.001, results[1]], monkeypatch)
    if passes:
        assert_same_as_single_device(layer, (W, X), rtol=rtol)
    else:
        with pytest.raises(AssertionError, match="out/hidden"):
            assert_same_as_single_device(layer, (W, X), rtol=rtol)


def test_a_plan_that_the_checks_would_drop_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong_by(lambda results: [-results[0], results[1]], monkeypatch)
    with pytest.raises(AssertionError, match="out/hidden"):
        assert_same_as_single_device(layer, (W, X), options=planner.Options(check="always"))


def test_a_plan_that_does_not_compile_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(results: list[Any]) -> list[Any]:
        raise RuntimeError("no such program")

    wrong_by(refuse, monkeypatch)
    with pytest.raises(AssertionError, match="does not compile: RuntimeError: no such program"):
        assert_same_as_single_device(layer, (W, X))


def test_pins_donated_and_static_arguments_are_those_of_plan() -> None:
    def step(x: jax.Array, power: int, w: jax.Array) -> jax.Array:
        return x - ((x @ w) ** power) @ w.T

    plan = assert_same_as_single_device(
        step, (X, 2, W), mesh={"x": 4}, pins={"x": P("x")}, donate_argnums=0, static_argnums=1, rtol=1e-4
    )
    assert plan.in_specs[0] == P("x")
    assert plan.predicted.alias_bytes > 0
    assert not X.is_deleted()


def test_a_mesh_of_devices_that_do_not_divide_all() -> None:
    plan = assert_same_as_single_device(lambda x: x * 2, (jnp.ones((12, 8)),), mesh={"x": 3, "y": 2})
    assert plan.mesh.size == 6


def test_what_is_not_to_be_tested_is_said() -> None:
    shape = jax.ShapeDtypeStruct((8, 16), jnp.float32)
    with pytest.raises(ArgumentError, match=r"args\[0\] is ShapeDtypeStruct.*planner.testing.arguments"):
        assert_same_as_single_device(layer, (shape, X))
    with pytest.raises(MeshError, match="needs 16 devices, but there are 8"):
        assert_same_as_single_device(layer, (W, X), mesh={"x": 16})


# ---------------------------------------------------------------- strategies


def test_meshes_are_all_that_divide_the_devices() -> None:
    found: list[Mapping[str, int]] = []

    @hypothesis.settings(max_examples=200)
    @hypothesis.given(meshes(12, 2, ("data", "model")))
    def collect(mesh: Mapping[str, int]) -> None:
        found.append(mesh)

    collect()
    assert all(12 % prod(mesh.values()) == 0 for mesh in found)
    sizes = {tuple(mesh.values()) for mesh in found}
    assert sizes == {(2,), (3,), (4,), (6,), (12,), (2, 2), (2, 3), (3, 2), (2, 6), (6, 2), (3, 4), (4, 3)}
    assert {tuple(mesh) for mesh in found} == {("data",), ("data", "model")}


def test_a_failing_mesh_shrinks_to_few_axes() -> None:
    assert hypothesis.find(meshes(), lambda mesh: True) == {"x": 2}
    assert hypothesis.find(meshes(), lambda mesh: prod(mesh.values()) == 8) == {"x": 8}


@pytest.mark.parametrize(
    ("given", "words"),
    [({"devices": 1}, "give 2 or more"), ({"max_axes": 4}, "names for 3 axes"), ({"max_axes": 0}, "max_axes is 0")],
)
def test_meshes_that_there_are_none_of(given: Mapping[str, int], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        meshes(**given)


EXAMPLE = {
    "abstract": jax.ShapeDtypeStruct((3, 4), jnp.float32),
    "bits": jax.ShapeDtypeStruct((8,), jnp.bool_),
    "complex": jnp.full((2, 2), 3 + 4j, jnp.complex64),
    "empty": jnp.zeros((0, 3), jnp.int32),
    "flag": True,
    "key": jax.random.key(0, impl="rbg"),
    "keys": jax.ShapeDtypeStruct((2,), jax.random.key(0).dtype),
    "labels": np.array([3, 9, 4], np.uint8),
    "name": "relu",
    "narrow": jax.ShapeDtypeStruct((4,), jnp.float8_e4m3fn),
    "scale": 0.5,
    "small": jax.ShapeDtypeStruct((5,), jnp.int8),
    "variance": jnp.array([0.0, 1e-6], jnp.bfloat16),
}


@hypothesis.given(arguments(EXAMPLE))
def test_arguments_are_like_their_example(drawn: dict[str, Any]) -> None:
    assert drawn.keys() == EXAMPLE.keys()
    for name, example in EXAMPLE.items():
        if isinstance(example, (bool, float, str)):
            assert type(drawn[name]) is type(example)
            continue
        assert (drawn[name].shape, drawn[name].dtype) == (example.shape, example.dtype)
        assert isinstance(drawn[name], np.ndarray) == isinstance(example, np.ndarray)
        if not jax.dtypes.issubdtype(example.dtype, jax.dtypes.prng_key):
            assert np.isfinite(np.asarray(drawn[name], np.complex64)).all()
    assert drawn["name"] == "relu"
    assert drawn["labels"].min() >= 3
    assert drawn["labels"].max() <= 9
    assert drawn["small"].min() >= 0
    assert drawn["small"].max() <= 7
    assert drawn["variance"].min() >= 0
    assert drawn["variance"].max() < 1e-4


def test_arguments_vary_and_are_drawn_again_alike() -> None:
    abstract = arguments(jax.ShapeDtypeStruct((4, 4), jnp.float32))
    first = hypothesis.find(abstract, lambda x: bool((x > 1).any() and (x % 1 != 0).any()))
    again = hypothesis.find(abstract, lambda x: bool((x > 1).any() and (x % 1 != 0).any()))
    assert (first == again).all()
    assert len(set(np.asarray(first).ravel().tolist())) > 8


def test_a_failing_argument_shrinks_to_whole_numbers() -> None:
    found = hypothesis.find(arguments((jnp.ones((3, 3)),)), lambda args: bool(args[0].max() > 0))
    assert (found[0] % 1 == 0).all()


def test_only_the_strategies_need_hypothesis() -> None:
    program = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "import jax.numpy as jnp\n"
        "from planner.testing import arguments, assert_same_as_single_device, meshes\n"
        "assert_same_as_single_device(jnp.tanh, (jnp.ones(8),))\n"
        "for strategy in (lambda: meshes(), lambda: arguments(1.0)):\n"
        "    try:\n"
        "        strategy()\n"
        "    except ImportError as error:\n"
        "        print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"planner.testing.{name} draws with Hypothesis, which is not installed: pip install hypothesis"
        for name in ("meshes", "arguments")
    ]


@hypothesis.given(st.data(), st.sampled_from([2, 3, 4, 6, 8, 12]))
def test_free_wires_hold_every_mesh(data: st.DataObject, devices: int) -> None:
    mesh = data.draw(meshes(devices))
    assert free_wires(devices).links(tuple(mesh.values())) is not None
