"""How far a GPU's compiler lowers the peak of a program that needs more than it wants to."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import planner

GB = 1e9
HIDDEN = (65536, 16384)
"""In float32 4.3 GB."""


def _peak(layers: int, *, squared: bool) -> float:
    """Of matmuls each of whose results is stored for the backward pass, and squared, what passes make of it as well."""

    def loss(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
        for n in range(layers):
            h = x @ up[n]
            x = jnp.sin((h * h if squared else jnp.maximum(h, 0)) @ down[n])
        return jnp.sum(x)

    args = [
        jax.ShapeDtypeStruct(shape, jnp.float32)
        for shape in ((HIDDEN[0], 256), (layers, 256, HIDDEN[1]), (layers, HIDDEN[1], 256))
    ]
    plan = planner.plan(
        jax.grad(loss, argnums=(1, 2)),
        args,
        topology="h100:8",
        mesh={"x": 1},
        memory_limit=1e12,
        options=planner.Options(check="never", remat="as written"),
    )
    return plan.predicted.peak_bytes / GB


def test_what_passes_make_is_computed_again_where_it_is_too_much() -> None:
    few, squares, alone = _peak(4, squared=True), _peak(9, squared=True), _peak(9, squared=False)
    assert few > 8 * 4.2  # not where there is room
    assert squares == pytest.approx(0.95 * 0.8 * 84.9, rel=0.02)
    assert alone < squares


def test_what_matmuls_make_stays() -> None:
    assert _peak(18, squared=True) > 18 * 4.2
