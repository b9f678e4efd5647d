"""Ops emitted part by part: no collective runs, the numbers are right, and they can be differentiated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec

import planner
from planner.machine.target import Target
from planner.testing import assert_same_as_single_device
from planner.verify.aot import aot_compile, unavailable_reason


def normal(*shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(sum(shape)), shape)


def triangular(*shape: int) -> jax.Array:
    return normal(*shape) + 4 * jnp.eye(shape[-1])


CASES: Mapping[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "cholesky": (lambda x: lax.linalg.cholesky(x @ x.mT), (triangular(8, 5, 5),)),
    "dynamic_update_slice past the end": (
        lambda x, u: lax.dynamic_update_slice(x, u, (jnp.int32(2), jnp.int32(99), jnp.int32(1))),
        (normal(6, 8, 4), normal(2, 1, 4)),
    ),
    "dynamic_update_slice in a loop": (
        lambda x, u: lax.fori_loop(0, 5, lambda i, c: lax.dynamic_update_slice(c, u * i, (0, i - 1, i)), x),
        (normal(2, 8, 4), normal(2, 1, 1)),
    ),
    "fft": (lambda x: jnp.abs(jnp.fft.fft(x)), (normal(8, 4, 6),)),
    "fft2": (lambda x: jnp.abs(jnp.fft.fft2(x)), (normal(8, 4, 6, 5),)),
    "irfft": (lambda x: jnp.fft.irfft(x * (1 + 0.5j)), (normal(8, 4, 5),)),
    "lu in a loop": (
        lambda a, b: lax.scan(lambda c, _: (jnp.linalg.solve(a, c), None), b, None, length=3)[0],
        (triangular(8, 5, 5), normal(8, 5, 4)),
    ),
    "qr": (lambda x: jnp.abs(jnp.linalg.qr(x)[1]), (triangular(8, 5, 5),)),
    "rfft in a loop": (
        lambda x: lax.scan(lambda c, _: (jnp.fft.irfft(0.5 * jnp.fft.rfft(c)), None), x, None, length=3)[0],
        (normal(8, 4, 6),),
    ),
    "top_k": (lambda x: lax.top_k(x, 2)[0], (normal(8, 4, 6),)),
    "triangular_solve": (
        lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True),
        (triangular(8, 5, 5), normal(8, 5, 4)),
    ),
    "triangular_solve, right-hand sides": (
        lambda a, b: lax.linalg.triangular_solve(a, b, left_side=False, lower=True),
        (triangular(5, 5), normal(8, 5)),
    ),
    "tridiagonal_solve": (
        lambda d, b: lax.linalg.tridiagonal_solve(d, 4 + d, d, b),
        (normal(5) * jnp.array([0, 1, 1, 1, 0]), normal(5, 8)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_every_device_computes_its_part(name: str) -> None:
    function, args = CASES[name]
    sizes = (8,) if name.endswith("right-hand sides") else (4, 2)
    plan = assert_same_as_single_device(
        function,
        args,
        mesh=dict(zip("xy", sizes, strict=False)),
        pins={"out": PartitionSpec(*_split(jax.eval_shape(function, *args).shape, sizes))},
    )
    found = plan.verify()
    assert found.collectives.compiled_bytes <= found.collectives.predicted_bytes + 64, str(found)
    wanted = jax.grad(lambda *a: jnp.sum(jnp.sin(function(*a))))(*args)
    got = jax.jit(jax.grad(lambda *a: jnp.sum(jnp.sin(plan(*a)))))(*args)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


def _experts(x: jax.Array, up: jax.Array, down: jax.Array, sizes: jax.Array) -> jax.Array:
    return lax.ragged_dot(jnp.tanh(lax.ragged_dot(x, up, sizes)), down, sizes)


@pytest.mark.parametrize("out", [PartitionSpec(), PartitionSpec(None, "x"), PartitionSpec(None, ("x", "y"))], ids=str)
def test_partial_sums_of_products_in_groups_are_added_by_the_devices(out: PartitionSpec) -> None:
    args = normal(16, 8), normal(4, 8, 16), normal(4, 16, 8), jnp.array([3, 0, 8, 5])
    split = {"up": PartitionSpec(None, None, ("x", "y")), "down": PartitionSpec(None, ("x", "y"))}
    plan = assert_same_as_single_device(_experts, args, mesh={"x": 4, "y": 2}, pins={**split, "out": out})
    found = plan.verify()
    assert found.collectives.compiled_bytes == found.collectives.predicted_bytes > 0, str(found)

    def loss(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *weights: jnp.sum(jnp.sin(function(args[0], *weights, args[3])))

    wanted = jax.grad(loss(_experts), argnums=(0, 1))(*args[1:3])
    got = jax.jit(jax.grad(loss(plan), argnums=(0, 1)))(*args[1:3])
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def _carried(c: jax.Array, x: jax.Array, at: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A token written into a cache of shape (layers, batch, length, heads, width) and attended to, layer by layer."""

    def body(n: Any, carry: Any) -> Any:
        c, x = carry
        c = lax.dynamic_update_slice(c, x[None, :, None], (n, 0, at, 0, 0))
        query = jnp.stack([x] * 8, axis=2)
        scores = jax.nn.softmax(jnp.einsum("bhgw,bthw->bhgt", query, c[n]).astype(jnp.float32))
        return c, jnp.einsum("bhgt,bthw->bhw", scores.astype(c.dtype), c[n])

    return lax.fori_loop(0, c.shape[0], body, (c, x))


@pytest.mark.skipif(bool(unavailable_reason("tpu")), reason=unavailable_reason("tpu") or "libtpu is there")
@pytest.mark.parametrize(("batch", "heads", "spec"), [(8, 8, (None, "x")), (8, 4, (None, None, None, "x"))])
def test_a_donated_cache_keeps_its_layout_in_a_loop(batch: int, heads: int, spec: tuple[str | None, ...]) -> None:
    """Left to itself, the compiler lays it out anew before the loop and back behind it."""
    cache = jax.ShapeDtypeStruct((4, batch, 4096, heads, 128), jnp.bfloat16)
    args = cache, jax.ShapeDtypeStruct((batch, heads, 128), jnp.bfloat16), jax.ShapeDtypeStruct((), jnp.int32)
    plan = planner.plan(
        _carried,
        args,
        topology="v5e:2x2",
        mesh={"x": 4},
        pins={"c": PartitionSpec(*spec)},
        donate_argnums=0,
        options=planner.Options(check="never"),
    )
    report = aot_compile(plan.jit, args, mesh_shape={"x": 4}, topology="v5e:2x2")
    held = cache.size * 2 / 4
    assert report.memory is not None
    assert report.memory.peak_bytes < 1.7 * held
    parts = [4 if axis else 1 for axis in (*spec, None, None, None)]
    local = ",".join([str(extent // cut) for extent, cut in zip(cache.shape, parts, strict=False)])
    assert f"bf16[{local}]" in report.hlo
    assert [line for line in report.hlo.splitlines() if " copy(" in line and f"bf16[{local}]" in line] == []


def test_layouts_change_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU's compiler takes them, too."""
    monkeypatch.setattr(Target, "platform", "tpu")
    args = normal(2, 4, 16, 8, 128), normal(4, 8, 128), jnp.int32(3)
    plan = planner.plan(
        _carried,
        args,
        mesh={"x": 4},
        pins={"c": PartitionSpec(None, "x")},
        donate_argnums=0,
        options=planner.Options(check="never"),
    )
    assert "layout_constraint" in str(jax.make_jaxpr(plan.jit)(*args))
    for meant, made in zip(jax.jit(_carried)(*args), plan(*args), strict=True):
        np.testing.assert_allclose(made, meant, rtol=1e-5)


def _split(shape: tuple[int, ...], sizes: tuple[int, ...]) -> list[str | None]:
    """Every axis on the first dim, not split so far, that it divides."""
    spec: list[str | None] = [None] * len(shape)
    for name, size in zip("xy", sizes, strict=False):
        place = next((d for d, extent in enumerate(shape) if spec[d] is None and extent % size == 0), None)
        if place is not None:
            spec[place] = name
    return spec
