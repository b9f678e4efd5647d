"""Code that no compiler can look into: placed whole and listed, with the results and the side effects of one device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify, io_callback
from jax.experimental import pallas as pl

import planner
from planner.errors import MeshError
from planner.testing import assert_same_as_single_device, free_wires

SHAPE = jax.ShapeDtypeStruct((16, 32), jnp.float32)
X = jax.random.normal(jax.random.key(0), (16, 32))
W = jax.random.normal(jax.random.key(1), (32, 32))


def planned(fn: Callable[..., Any], *, mesh: Mapping[str, int] | None = None, check: Any = "never") -> planner.Plan:
    options = planner.Options(check=check)
    return planner.plan(fn, (X, W), devices=jax.devices(), topology=free_wires(8), mesh=mesh, options=options)


def doubled(x: Any) -> Any:
    return 2 * np.asarray(x)


def in_pallas(x: jax.Array) -> jax.Array:
    def kernel(x: Any, out: Any) -> None:
        out[...] = 2 * x[...]

    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)


def in_python(x: jax.Array) -> jax.Array:
    return jax.pure_callback(doubled, SHAPE, x)


def mapped(x: jax.Array) -> jax.Array:
    row = jax.ShapeDtypeStruct((32,), jnp.float32)
    return jax.vmap(lambda r: jax.pure_callback(doubled, row, r, vmap_method="expand_dims"))(x)


def factored(w: jax.Array) -> jax.Array:
    results = (jax.ShapeDtypeStruct(w.shape, w.dtype), jax.ShapeDtypeStruct((), jnp.int32))
    return jax.ffi.ffi_call("lapack_spotrf_ffi", results)(w @ w.T + 40 * jnp.eye(32), uplo=np.uint8(ord("L")))[0]


def repeated(x: jax.Array, w: jax.Array) -> Any:
    return jax.lax.scan(lambda c, _: (in_python(c @ w), c.sum()), x, None, length=2)


def branched(x: jax.Array, w: jax.Array) -> Any:
    return jax.lax.cond(x[0, 0] > 0, lambda y: in_python(y), lambda y: y + 1, x @ w)


OPAQUE: dict[str, tuple[Callable[..., Any], str]] = {
    "pallas_call": (lambda x, w: jnp.tanh(in_pallas(x @ w)) + 1, "pallas_call"),
    "pure_callback": (lambda x, w: jnp.tanh(in_python(x @ w)) + 1, "pure_callback"),
    "pure_callback, vmapped": (lambda x, w: mapped(x @ w) + 1, "pure_callback"),
    "pure_callback in a scan": (repeated, "pure_callback"),
    "pure_callback in a branch": (branched, "pure_callback"),
    "io_callback": (lambda x, w: io_callback(doubled, SHAPE, x @ w) + 1, "io_callback"),
    "ffi_call": (lambda x, w: factored(w) + x[:1], "ffi_call"),
}


@pytest.mark.parametrize("name", OPAQUE)
def test_what_is_opaque_is_whole_and_listed_and_right(name: str) -> None:
    jnp.linalg.cholesky(jnp.eye(2)).block_until_ready()  # makes the kernels of LAPACK known
    fn, kind = OPAQUE[name]
    plan = assert_same_as_single_device(fn, (X, W), mesh={"x": 4, "y": 2})
    assert {op.op for op in plan.replicated} == {kind}
    assert kind in str(plan)


def test_side_effects_happen_once_per_call() -> None:
    seen: list[float] = []

    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        y = x @ w
        jax.debug.callback(lambda v: seen.append(float(np.asarray(v).sum())), y)
        return jnp.tanh(y)

    plan = planned(fn, mesh={"x": 4, "y": 2})
    for _ in range(2):
        plan(X, W).block_until_ready()
    jax.effects_barrier()
    assert seen == pytest.approx([float((X @ W).sum())] * 2, rel=1e-3)
    assert [op.op for op in plan.replicated] == ["debug_callback"]


def test_prints_of_sharded_values_print_the_whole(capfd: pytest.CaptureFixture[str]) -> None:
    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        y = jnp.ones_like(x @ w)
        jax.debug.print("the sum is {s}", s=y.sum())
        return y

    planned(fn, mesh={"x": 4, "y": 2})(X, W).block_until_ready()
    jax.effects_barrier()
    assert capfd.readouterr().out.count("the sum is 512.0") == 1


def test_a_print_of_nothing_is_planned(capfd: pytest.CaptureFixture[str]) -> None:
    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        jax.debug.print("here")
        return x @ w

    planned(fn, mesh={"x": 8})(X, W).block_until_ready()
    jax.effects_barrier()
    assert capfd.readouterr().out.count("here") >= 1


def printing_in_order(x: jax.Array, w: jax.Array) -> jax.Array:
    jax.debug.print("first", ordered=True)
    return x @ w


ORDERED: dict[str, Callable[..., Any]] = {
    "print": printing_in_order,
    "io_callback": lambda x, w: io_callback(doubled, SHAPE, x @ w, ordered=True),
    "within a jit": lambda x, w: jax.jit(printing_in_order)(x, w) + 1,
}


@pytest.mark.parametrize("name", ORDERED)
def test_ordered_effects_get_a_plan_for_one_device_that_says_why(name: str) -> None:
    plan = planned(ORDERED[name])
    assert dict(plan.mesh.shape) == {"x": 1}
    assert any("ordered" in note for note in plan.notes)
    np.testing.assert_allclose(plan(X, W), ORDERED[name](X, W), rtol=1e-4, atol=1e-4)


def test_a_mesh_of_many_devices_is_refused_for_ordered_effects() -> None:
    with pytest.raises(MeshError, match="ordered side effects"):
        planned(printing_in_order, mesh={"x": 8})


def test_effects_on_the_world_do_not_happen_while_planning() -> None:
    calls: list[int] = []

    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        return io_callback(lambda v: (calls.append(1), np.asarray(v))[1], SHAPE, x @ w)

    plan = planned(fn, check="auto")
    jax.effects_barrier()
    assert calls == []
    assert any("effect" in row.detail for row in plan.checked if row.what == "numerics" or "numerics" in row.what)


def log_of(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.log(x @ w)


def indexed(x: jax.Array, w: jax.Array) -> jax.Array:
    checkify.check(x.sum() > 1e9, "the sum {s} is small", s=x.sum())
    return (x @ w)[jnp.argmax(x[:, 0])]


CHECKED: dict[str, tuple[Callable[..., Any], Any, str]] = {
    "float checks": (log_of, checkify.float_checks, "nan generated by primitive: log"),
    "user checks": (indexed, checkify.user_checks, "is small"),
    "index checks": (lambda x, w: (x @ w)[jnp.int32(x[0, 0]) + 99], checkify.index_checks, "out-of-bounds"),
}


@pytest.mark.parametrize("name", CHECKED)
def test_errors_of_checkified_functions_come_out(name: str) -> None:
    fn, errors, message = CHECKED[name]
    checked = checkify.checkify(fn, errors=errors)
    error, result = planned(checked, mesh={"x": 4, "y": 2})(X, W)
    assert message in (error.get() or "")
    np.testing.assert_allclose(result, checked(X, W)[1], rtol=1e-3, atol=1e-3)
