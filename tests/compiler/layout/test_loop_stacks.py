"""Stacks that are transposed before a loop takes them in, or after the loop that makes them, are copied."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import planner
from planner.compiler.layout.loop_stacks import stack_relayouts
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.trace import trace
from planner.verify.aot import lower_request, run_request, unavailable_reason
from planner.verify.hlo.text import arrays_of, parse_module

BATCH, LENGTH, CHUNK, FEATURES = 4, 1024, 64, 1024
ARGUMENTS = (
    jax.ShapeDtypeStruct((BATCH, LENGTH, FEATURES), jnp.bfloat16),
    jax.ShapeDtypeStruct((FEATURES, FEATURES), jnp.bfloat16),
)
Chunks = Callable[[jax.Array, jax.Array], jax.Array]


def by_chunks(width: int, order: tuple[int, ...], between: Any = lambda x: x) -> Chunks:
    """A recurrence over chunks of positions, with heads of so many features; before it their dims are put in an `order`."""

    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        chunks = (x @ w).reshape(BATCH, LENGTH // CHUNK, CHUNK, FEATURES // width, width).transpose(order)

        def step(total: jax.Array, chunk: jax.Array) -> tuple[jax.Array, jax.Array]:
            return 0.5 * total + chunk, jnp.tanh(total)

        _, made = lax.scan(step, jnp.zeros_like(chunks[0]), between(chunks))
        return made.transpose(order).reshape(BATCH, LENGTH, FEATURES) @ w

    return fn


def _kinds(fn: Chunks) -> Counter[str]:
    graph = build_graph(trace(fn, ARGUMENTS))
    return Counter(graph.ops[op].kind for op in stack_relayouts(graph))


HEADS_OUTSIDE, CHUNKS_ALONE = (1, 0, 3, 2, 4), (1, 0, 2, 3, 4)
"""Orders that also lead back."""


@pytest.mark.parametrize(
    ("fn", "kinds"),
    [
        (by_chunks(1024, HEADS_OUTSIDE), {"transpose": 1}),  # one head: no other dims come to be in tiles after it
        (by_chunks(64, HEADS_OUTSIDE), {"transpose": 2, "reshape": 2}),
        (by_chunks(128, CHUNKS_ALONE), {"transpose": 1, "reshape": 1}),
        (by_chunks(128, CHUNKS_ALONE, between=jnp.tanh), {"transpose": 1, "reshape": 1}),
    ],
)
def test_relayouts_are_found(fn: Chunks, kinds: dict[str, int]) -> None:
    assert _kinds(fn) == kinds


def test_what_no_loop_slices_has_no_relayout() -> None:
    def attention(x: jax.Array, w: jax.Array) -> jax.Array:
        heads = jnp.transpose((x @ w).reshape(BATCH, LENGTH, 8, 128), (0, 2, 1, 3))
        total = lax.fori_loop(0, 3, lambda _, y: jnp.tanh(jnp.einsum("bhij,bhkj->bhik", y, heads) @ heads), heads)
        return total.transpose(0, 2, 1, 3).reshape(BATCH, LENGTH, FEATURES) @ w

    assert not _kinds(attention)


def test_a_batch_in_microbatches_has_no_relayout() -> None:
    def total(x: jax.Array, w: jax.Array) -> jax.Array:
        parts = x.reshape(BATCH, LENGTH // 4, 4, FEATURES).transpose(2, 0, 1, 3)
        return lax.scan(lambda sum, part: (sum + jnp.tanh(part @ w), None), jnp.zeros_like(parts[0]), parts)[0]

    assert not _kinds(total)


@pytest.mark.skipif(bool(unavailable_reason("tpu")), reason=unavailable_reason("tpu") or "libtpu is there")
@pytest.mark.parametrize("width", [64, 128])
def test_the_compiler_copies_as_often(width: int) -> None:
    options = planner.Options(check="never")
    plan = planner.plan(by_chunks(width, HEADS_OUTSIDE), ARGUMENTS, topology="v5e:1x1", options=options)
    report = run_request(lower_request(plan.jit, ARGUMENTS, mesh_shape=plan.decision.mesh_shape, topology="v5e:1x1"))
    module = parse_module(report.hlo)
    entry = module.computations[module.entry].instructions
    moved = [one for one in entry if one.opcode in ("copy", "reshape") or one.name.startswith("copy_bitcast_fusion")]
    size = BATCH * LENGTH * FEATURES
    assert sum(prod(shape) == size for one in moved for kind, shape in arrays_of(one.shape) if kind == "bf16") == 4
