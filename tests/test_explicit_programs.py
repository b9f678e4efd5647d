"""Programs written for Explicit mesh axes, planned under it: values and types are those of `jax.jit`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, auto_axes, reshard, use_abstract_mesh
from jax.sharding import PartitionSpec as P

import planner

AXES = ("x", "y")
TYPES = (AxisType.Explicit,) * 2
MESH = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), AXES, axis_types=TYPES)


def array(*shape: int, spec: P | None = None, mesh: Mesh = MESH) -> Any:
    values = np.sin(np.arange(np.prod(shape), dtype=np.float32)).reshape(shape)
    return values if spec is None else jax.device_put(values, NamedSharding(mesh, spec))


def types(tree: Any) -> list[str]:
    return [str(jax.typeof(leaf)) for leaf in jax.tree.leaves(tree)]


def assert_same(found: Any, expected: Any) -> None:
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------- programs


def lookup(table: Any, w: Any, ids: Any) -> Any:
    x = table.at[ids].get(out_sharding=P("x", None, None))
    h = jnp.einsum("btd,df->btf", x, w)
    h = auto_axes(jax.nn.softmax, out_sharding=P("x", None, "y"))(h)
    return jnp.einsum("btf,df->btd", h, w, out_sharding=P("x", None, None)), w.T


def step(params: dict[str, Any], x: Any) -> Any:
    def loss(params: dict[str, Any]) -> Any:
        def layer(h: Any, w: Any) -> tuple[Any, None]:
            up = jax.nn.gelu(jnp.einsum("bd,df->bf", h, w, out_sharding=P("x", "y")))
            return jnp.einsum("bf,df->bd", up, w, out_sharding=P("x", None)), None

        return (jax.lax.scan(jax.checkpoint(layer), x, params["layers"])[0] * params["scale"]).sum()

    value, gradients = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.01 * g, params, gradients), value


@jax.custom_vjp
def scaled(a: Any, w: Any) -> Any:
    return jnp.einsum("bd,df->bf", a, w, out_sharding=P("x", "y"))


def scaled_forward(a: Any, w: Any) -> Any:
    return scaled(a, w), (a, w)


def scaled_backward(saved: Any, cotangent: Any) -> Any:
    a, w = saved
    return (
        3 * jnp.einsum("bf,df->bd", cotangent, w, out_sharding=P("x", None)),
        jnp.einsum("bd,bf->df", a, cotangent, out_sharding=P(None, "y")),
    )


scaled.defvjp(scaled_forward, scaled_backward)


@jax.custom_jvp
def squared(a: Any) -> Any:
    return reshard(a, P("x", None)) ** 2


@squared.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return squared(*primals), 2 * reshard(primals[0], P("x", None)) * tangents[0]


def with_rules(a: Any, w: Any) -> Any:
    return scaled(squared(a), w)


def per_shard(a: Any) -> Any:
    summed = jax.shard_map(lambda b: b * jax.lax.psum(b, "x"), out_specs=P("x"))(a)
    fetched = jax.pure_callback(np.cos, jax.ShapeDtypeStruct((16,), np.float32), reshard(a[:, 0], P(None)))
    return summed, reshard(fetched, P("y"))


ROWS, WEIGHTS = array(16, 32, spec=P("x")), array(32, 64, spec=P(None, "y"))
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "lookup": (lookup, (array(64, 32, spec=P()), WEIGHTS, np.arange(64).reshape(8, 8) % 64)),
    "step": (step, ({"layers": array(3, 32, 64, spec=P(None, None, "y")), "scale": array(32, spec=P())}, ROWS)),
    "rules": (jax.grad(lambda a, w: with_rules(a, w).sum(), (0, 1)), (ROWS, WEIGHTS)),
    "per shard": (per_shard, (ROWS,)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_types_are_those_of_jit(name: str) -> None:
    fn, args = PROGRAMS[name]
    with jax.set_mesh(MESH):
        expected = jax.jit(fn)(*args)
        plan = planner.plan(fn, args)
        assert dict(plan.mesh.shape) == {"x": 4, "y": 2}
        verified = plan.verify(*args)
        assert verified.ok, str(verified)
        for found in (plan(*args), plan(*args), plan.jit(*args)):
            assert_same(found, expected)
            assert types(found) == types(expected)
        # Inside of another function that is traced under the mesh, which reads the types.
        doubled = jax.jit(lambda *args: jax.tree.map(lambda leaf: leaf + leaf, plan.jit(*args)))(*args)
        assert types(doubled) == types(expected)
    for found in (plan(*args), plan.jit(*args), plan(*map(_on_host, args))):
        assert_same(found, expected)
        assert types(found) == types(expected)


def _on_host(tree: Any) -> Any:
    return jax.tree.map(np.asarray, tree)


def test_a_plan_with_rules_of_the_users_is_differentiated() -> None:
    def total(fn: Callable[..., Any]) -> Callable[..., Any]:
        return jax.grad(lambda a, w: fn(a, w).sum(), (0, 1))

    with jax.set_mesh(MESH):
        plan = planner.plan(with_rules, (ROWS, WEIGHTS))
        found, expected = (total(fn)(ROWS, WEIGHTS) for fn in (plan.jit, with_rules))
        assert_same(found, expected)
        assert types(found) == types(expected)


def test_arguments_lie_as_their_types_say_and_pins_go_first() -> None:
    fn = lambda a: a * 2  # noqa: E731
    with jax.set_mesh(MESH):
        plan = planner.plan(fn, (ROWS,))
        assert (plan.in_specs, plan.out_specs) == ((P("x"),), P("x"))
        assert "2 arguments and results lie as their types say" in plan.notes
        pinned = planner.plan(fn, (ROWS,), pins={"a": P("y")})
        assert (pinned.in_specs, pinned.out_specs) == ((P("y"),), P("x"))
        assert jax.typeof(pinned(ROWS)) == jax.typeof(ROWS)


def test_a_program_without_placements_is_planned_freely_under_a_mesh() -> None:
    a, w = array(16, 32), array(32, 64)
    with jax.set_mesh(MESH):
        plan = planner.plan(lambda a, w: jnp.tanh(a @ w), (a, w), mesh={"d": 8})
        assert_same(plan(a, w), np.tanh(a @ w))
        assert_same(plan.jit(a, w), np.tanh(a @ w))
    assert_same(plan.jit(a, w), np.tanh(a @ w))


def test_a_plan_of_another_function_takes_arrays_with_types() -> None:
    plan = planner.plan(lambda a: a * 2, (array(16, 32),), mesh={"x": 4, "y": 2}, pins={"a": P("x")})
    assert_same(plan(ROWS), 2 * np.asarray(ROWS))
    assert_same(plan.jit(ROWS), 2 * np.asarray(ROWS))
    assert types(plan.jit(ROWS)) == ["float32[16,32]"]


def test_an_abstract_mesh_and_a_mesh_of_one_device() -> None:
    mesh = AbstractMesh((4, 2), AXES, axis_types=TYPES)
    fn, args = PROGRAMS["lookup"]
    structs = tuple(
        jax.ShapeDtypeStruct(arg.shape, arg.dtype, sharding=NamedSharding(mesh, spec))
        for arg, spec in zip(args, (P(), P(None, "y"), P("x")), strict=True)
    )
    with use_abstract_mesh(mesh):
        plan = planner.plan(fn, structs, topology="v5e:2x4", options=planner.Options(check="never"))
    assert dict(plan.mesh.shape) == {"x": 4, "y": 2}
    assert plan.in_specs == (P(), P(None, "y"), P("x"))
    assert plan.out_specs == (P("x"), P("y"))
    single = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), AXES, axis_types=TYPES)
    with jax.set_mesh(single):
        planner.plan(fn, _on_host(args), topology="v5e:2x4", options=planner.Options(check="never"))


def test_a_saved_plan_is_bound_under_its_mesh(tmp_path: Path) -> None:
    fn, args = PROGRAMS["lookup"]
    with jax.set_mesh(MESH):
        planner.plan(fn, args).save(tmp_path / "plan.json")
        found = planner.load(tmp_path / "plan.json").bind(fn)(*args)
        assert types(found) == types(jax.jit(fn)(*args))
    with pytest.raises(planner.errors.TraceError, match=r"with jax\.set_mesh"):
        planner.load(tmp_path / "plan.json").bind(fn)


def test_a_loop_body_with_large_closed_over_arrays() -> None:
    table = array(128, 256, spec=P(None, "y"))  # large enough to become an argument

    def fn(a: Any) -> Any:
        return jnp.einsum("bd,df->bf", a, table, out_sharding=P("x", "y"))

    with jax.set_mesh(MESH):
        rows = array(16, 128, spec=P("x"))
        plan = planner.plan(fn, (rows,))
        assert_same(plan(rows), fn(rows))
        assert types(plan(rows)) == ["float32[16@x,256@y]"]
