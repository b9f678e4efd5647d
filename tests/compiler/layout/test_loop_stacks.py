"""Stacks whose dims are turned before a loop takes them in, or behind the loop that makes them, are copied."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import planner
from planner.compiler.layout.loop_stacks import turned_stacks
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.trace import trace
from planner.verify.aot import lower_request, run_request, unavailable_reason
from planner.verify.hlo.text import parse_module

BATCH, LENGTH, CHUNK, FEATURES = 4, 1024, 64, 1024
ARGUMENTS = (
    jax.ShapeDtypeStruct((BATCH, LENGTH, FEATURES), jnp.bfloat16),
    jax.ShapeDtypeStruct((FEATURES, FEATURES), jnp.bfloat16),
)
Chunks = Callable[[jax.Array, jax.Array], jax.Array]


def by_chunks(width: int, before: tuple[int, ...], behind: tuple[int, ...], after: Any = lambda x: x) -> Chunks:
    """A recurrence over chunks of positions, with heads of so many features; transposes `before` and `behind` the loop."""

    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        chunks = (x @ w).reshape(BATCH, LENGTH // CHUNK, CHUNK, FEATURES // width, width).transpose(before)

        def step(total: jax.Array, chunk: jax.Array) -> tuple[jax.Array, jax.Array]:
            return 0.5 * total + chunk, jnp.tanh(total)

        _, made = lax.scan(step, jnp.zeros_like(chunks[0]), after(chunks))
        return made.transpose(behind).reshape(BATCH, LENGTH, FEATURES) @ w

    return fn


def _kinds(fn: Chunks) -> Counter[str]:
    graph = build_graph(trace(fn, ARGUMENTS))
    return Counter(graph.ops[op].kind for op in turned_stacks(graph))


HEADS_OUTSIDE, BACK = (1, 0, 3, 2, 4), (1, 0, 3, 2, 4)
CHUNKS_ALONE, BACK_ALONE = (1, 0, 2, 3, 4), (1, 0, 2, 3, 4)


@pytest.mark.parametrize(
    ("fn", "kinds"),
    [
        (by_chunks(1024, HEADS_OUTSIDE, BACK), {"transpose": 1}),  # one head: no other dims come to lie in tiles behind
        (by_chunks(64, HEADS_OUTSIDE, BACK), {"transpose": 2, "reshape": 2}),
        (by_chunks(128, CHUNKS_ALONE, BACK_ALONE), {"transpose": 1, "reshape": 1}),
        (by_chunks(128, CHUNKS_ALONE, BACK_ALONE, after=jnp.tanh), {"transpose": 1, "reshape": 1}),
    ],
)
def test_what_is_turned_is_found(fn: Chunks, kinds: dict[str, int]) -> None:
    assert _kinds(fn) == kinds


def test_what_no_loop_takes_in_slice_by_slice_is_not_turned() -> None:
    def attention(x: jax.Array, w: jax.Array) -> jax.Array:
        heads = jnp.transpose((x @ w).reshape(BATCH, LENGTH, 8, 128), (0, 2, 1, 3))
        total = lax.fori_loop(0, 3, lambda _, y: jnp.tanh(jnp.einsum("bhij,bhkj->bhik", y, heads) @ heads), heads)
        return total.transpose(0, 2, 1, 3).reshape(BATCH, LENGTH, FEATURES) @ w

    assert not _kinds(attention)


def test_a_batch_that_is_taken_in_parts_is_not_turned() -> None:
    def total(x: jax.Array, w: jax.Array) -> jax.Array:
        parts = x.reshape(BATCH, LENGTH // 4, 4, FEATURES).transpose(2, 0, 1, 3)
        return lax.scan(lambda sum, part: (sum + jnp.tanh(part @ w), None), jnp.zeros_like(parts[0]), parts)[0]

    assert not _kinds(total)


@pytest.mark.skipif(bool(unavailable_reason("tpu")), reason=unavailable_reason("tpu") or "libtpu is there")
@pytest.mark.parametrize("width", [64, 128])
def test_the_compiler_copies_as_often(width: int) -> None:
    options = planner.Options(check="never")
    plan = planner.plan(by_chunks(width, HEADS_OUTSIDE, BACK), ARGUMENTS, topology="v5e:1x1", options=options)
    report = run_request(lower_request(plan.jit, ARGUMENTS, mesh_shape=plan.decision.mesh_shape, topology="v5e:1x1"))
    module = parse_module(report.hlo)
    entry = module.computations[module.entry].instructions
    moved = [one for one in entry if one.opcode in ("copy", "reshape") or one.name.startswith("copy_bitcast_fusion")]
    size = BATCH * LENGTH * FEATURES
    assert sum(one.shape.startswith("bf16") and _size(one.shape) == size for one in moved) == 4


def _size(shape: str) -> int:
    size = 1
    for extent in shape[shape.index("[") + 1 : shape.index("]")].split(","):
        size *= int(extent)
    return size
