"""Programs of many kinds before the real TPU compiler: what it computes, moves and stores is what was predicted.

Each stands for a rule of what stands in memory or what a kernel moves, without which programs of its kind are off by a
third or more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import planner
from planner.compiler.release import installed_release, is_from
from planner.verify.aot import unavailable_reason

pytestmark = pytest.mark.skipif(bool(unavailable_reason("tpu")), reason=unavailable_reason("tpu") or "libtpu is there")


def _waves(u: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
    def step(carry: tuple[jax.Array, jax.Array], _: None) -> tuple[tuple[jax.Array, jax.Array], None]:
        u, v = carry
        around = jnp.pad(u, ((0, 0), (1, 1)))
        v = v + 0.1 * (around[:, 2:] + around[:, :-2] - 2 * u)
        return (u + 0.1 * v, v), None

    return lax.scan(step, (u, v), None, length=10)[0]


def _linear_recurrence(a: jax.Array, b: jax.Array) -> jax.Array:
    def joined(left: Any, right: Any) -> Any:
        return left[0] * right[0], right[0] * left[1] + right[1]

    return lax.associative_scan(joined, (jnp.exp(-jnp.abs(a)), 2 * b), axis=1)[1]


def _attracted(x: jax.Array, others: jax.Array) -> jax.Array:
    apart = others[None] - x[:, None]
    return ((((apart**2).sum(-1) + 1e-3) ** -1.5)[..., None] * apart).sum(1)


def _power_iteration(matrix: jax.Array, x: jax.Array) -> jax.Array:
    return lax.fori_loop(0, 10, lambda _, x: jnp.tanh(matrix @ x), x)


def _weights_of_groups(x: jax.Array, weights: jax.Array, sizes: jax.Array, made: jax.Array) -> jax.Array:
    return jax.vjp(lambda w: lax.ragged_dot(x, w, sizes), weights)[1](made)[0]


def _rows_of_groups(x: jax.Array, weights: jax.Array, sizes: jax.Array, made: jax.Array) -> jax.Array:
    return jax.vjp(lambda x: lax.ragged_dot(x, weights, sizes), x)[1](made)[0]


def _matmuls(x: jax.Array, w: jax.Array) -> jax.Array:
    for _ in range(4):
        x = jnp.tanh(x @ w)
    return x


def _messages(h: jax.Array, weights: jax.Array, senders: jax.Array, receivers: jax.Array) -> jax.Array:
    return jax.ops.segment_sum(weights[:, None] * jnp.tanh(h)[senders], receivers, h.shape[0])


def _cast_before(stack: jax.Array, x: jax.Array) -> jax.Array:
    return lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, stack.astype(jnp.bfloat16))[0]


def _of(dtype: Any, *shapes: tuple[int, ...]) -> tuple[jax.ShapeDtypeStruct, ...]:
    return tuple(jax.ShapeDtypeStruct(shape, dtype) for shape in shapes)


F32, BF16, I32 = jnp.float32, jnp.bfloat16, jnp.int32
GRID, ROWS, PLACES, EDGES = (8192, 8192), (8, 4096, 2048), (8192, 3), (1 << 21,)

CASES: dict[str, tuple[Callable[..., Any], tuple[jax.ShapeDtypeStruct, ...], float]] = {
    "a carry of which neighbours are read": (_waves, _of(F32, GRID, GRID), 0.1),
    "an associative scan": (_linear_recurrence, _of(F32, ROWS, ROWS), 0.25),
    "powers for all pairs": (_attracted, _of(F32, PLACES, PLACES), 0.1),
    "a matrix times a vector": (_power_iteration, _of(F32, (16384, 16384), (16384,)), 0.1),
    "weights of ragged groups": (
        _weights_of_groups,
        (*_of(BF16, (65536, 1024), (8, 1024, 2048)), *_of(I32, (8,)), *_of(BF16, (65536, 2048))),
        0.2,
    ),
    "rows of ragged groups": (
        _rows_of_groups,
        (*_of(BF16, (16384, 2048), (8, 2048, 7168)), *_of(I32, (8,)), *_of(BF16, (16384, 7168))),
        0.1,
    ),
    "a chain of matmuls": (_matmuls, _of(BF16, (8192, 8192), (8192, 8192)), 0.25),
    # Rows that are looked up often count once in the seconds of the schedule.
    "narrow messages": (_messages, (*_of(F32, (1 << 18, 32), EDGES), *_of(I32, EDGES, EDGES)), 0.45),
    "a stack cast before its loop": (_cast_before, (*_of(F32, (16, 4096, 4096)), *_of(BF16, (8192, 4096))), 0.2),
}


@pytest.mark.parametrize("name", CASES)
def test_seconds_and_memory_are_those_of_the_compiler(name: str) -> None:
    fn, args, within = CASES[name]
    plan = planner.plan(fn, args, topology="v5e:2x4", mesh={"x": 1}, options=planner.Options(check="never"))
    found = plan.verify()
    assert found.seconds is not None
    assert plan.predicted.seconds == pytest.approx(found.seconds.scheduled, rel=within)
    predicted, compiled = found.memory.peak
    # From libtpu 0.0.50 on a carry of which neighbours are read is copied once less, which is not modelled.
    once_less = "neighbours" in name and is_from(installed_release("tpu") or "", "libtpu 0.0.50")
    assert predicted == pytest.approx(compiled * (6 / 5 if once_less else 1), rel=within)
