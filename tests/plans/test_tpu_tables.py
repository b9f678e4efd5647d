"""Lookups in tables and scatters onto them before the real TPU compiler: what it copies is what was predicted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import planner
from planner.verify.aot import unavailable_reason

pytestmark = pytest.mark.skipif(bool(unavailable_reason("tpu")), reason=unavailable_reason("tpu") or "libtpu is there")

LOOKED_UP = jax.ShapeDtypeStruct((4096,), jnp.int32)


def _lookup(table: jax.Array, rows: jax.Array) -> jax.Array:
    return table[rows]


def _narrow(table: jax.Array, rows: jax.Array) -> jax.Array:
    return table[rows].astype(jnp.bfloat16)


def _step(table: jax.Array, rows: jax.Array) -> jax.Array:
    return table - 0.1 * jax.grad(lambda table: jnp.sum(jnp.sin(table[rows])))(table)


def _batched(table: jax.Array, rows: jax.Array) -> jax.Array:
    return jax.vmap(_step)(table, rows.reshape(8, -1))


CASES: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "rows that fill tiles": (_step, (1 << 20, 128)),
    "half a tile": (_lookup, (1 << 20, 64)),
    "half a tile, read narrow": (_narrow, (1 << 20, 64)),
    "a tile and a half": (_lookup, (1 << 20, 192)),
    "narrow rows of a small table": (_lookup, (1 << 18, 32)),
    "gradient of narrow rows of a small table": (_step, (1 << 18, 32)),
    "gradient of narrow rows": (_step, (1 << 22, 32)),
    "gradient of half a tile": (_step, (1 << 20, 64)),
    "gradient of a tile and a half": (_step, (1 << 20, 192)),
    "gradient of half a tile of many rows": (_step, (1 << 21, 64)),
    "gradients of a stack of tables": (_batched, (8, 1 << 17, 128)),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_copied_for_rows_is_predicted(name: str) -> None:
    fn, shape = CASES[name]
    args = (jax.ShapeDtypeStruct(shape, jnp.float32), LOOKED_UP)
    donated = (0,) if fn in (_step, _batched) else ()
    plan = planner.plan(
        fn, args, topology="v5e:2x4", mesh={"x": 1}, donate_argnums=donated, options=planner.Options(check="never")
    )
    found = plan.verify().seconds
    assert found is not None
    assert plan.predicted.seconds == pytest.approx(found.scheduled, rel=0.2)
