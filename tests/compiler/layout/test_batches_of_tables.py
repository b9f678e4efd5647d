"""What writing into each of a batch of tables takes on a TPU, as in caches of keys and values of different lengths."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import planner

Shape = tuple[int, ...]
GB_PER_S = 819.0

CASES: dict[str, tuple[Callable[..., Any], Shape, Shape, Shape, float]] = {
    "a row": (lambda c, n, i: c.at[i].set(n), (32, 4096, 512), (32, 512), (32,), 0),
    "rows added": (lambda c, n, i: c.at[i].add(n), (32, 4096, 512), (32, 8, 512), (32, 8), 0),
    "keys of some positions": (
        lambda c, n, i: lax.dynamic_update_slice(c, n, (i, 0, 0)),
        (32, 4096, 8, 128),
        (32, 5, 8, 128),
        (32,),
        0,
    ),
    "half a tile": (lambda c, n, i: c.at[i].set(n), (32, 4096, 64), (32, 64), (32,), 2),
    "single elements": (lambda c, n, i: c.at[i].set(n), (4096, 4096), (4096,), (4096,), 2),
    "parts of rows": (lambda c, n, i: lax.dynamic_update_slice(c, n, (i,)), (4096, 4096), (4096, 8), (4096,), 2),
}
"""The table, what is written, at which rows; passes over the table in schedules of libtpu 0.0.42 for v5e."""


@pytest.mark.parametrize("name", CASES)
def test_tables_are_written_in_place_where_rows_lie_innermost(name: str) -> None:
    write, table, new, at, passes = CASES[name]
    args = (
        jax.ShapeDtypeStruct(table, jnp.bfloat16),
        jax.ShapeDtypeStruct(new, jnp.bfloat16),
        jax.ShapeDtypeStruct(at, jnp.int32),
    )
    options = planner.Options(check="never", workers=1)
    plan = planner.plan(jax.vmap(write), args, topology="v5e:1x1", donate_argnums=0, options=options)
    one_pass = 2 * math.prod(table) / (GB_PER_S * 1e9)
    assert plan.predicted.seconds / one_pass == pytest.approx(passes, abs=0.4)
