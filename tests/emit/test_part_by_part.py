"""Ops emitted part by part: no collective runs, the numbers are right, and they can be differentiated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from planner.testing import assert_same_as_single_device


def normal(*shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(sum(shape)), shape)


def triangular(*shape: int) -> jax.Array:
    return normal(*shape) + 4 * jnp.eye(shape[-1])


CASES: Mapping[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
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
        pins={"out": jax.sharding.PartitionSpec(*_split(jax.eval_shape(function, *args).shape, sizes))},
    )
    found = plan.verify()
    assert found.collectives.compiled_bytes <= found.collectives.predicted_bytes + 64, str(found)
    wanted = jax.grad(lambda *a: jnp.sum(jnp.sin(function(*a))))(*args)
    got = jax.jit(jax.grad(lambda *a: jnp.sum(jnp.sin(plan(*a)))))(*args)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


def _split(shape: tuple[int, ...], sizes: tuple[int, ...]) -> list[str | None]:
    """Every axis on the first dim, not split so far, that it divides."""
    spec: list[str | None] = [None] * len(shape)
    for name, size in zip("xy", sizes, strict=False):
        place = next((d for d, extent in enumerate(shape) if spec[d] is None and extent % size == 0), None)
        if place is not None:
            spec[place] = name
    return spec
