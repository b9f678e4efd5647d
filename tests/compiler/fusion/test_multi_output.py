"""What is read so often that it is stored: by the traffic of either way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from cost_models import parse_topology
from planner.compiler.program import compiled
from planner.compiler.targets.table import TPU, compiler_of
from planner.decisions.groups import group_ops
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.trace import trace

SQUARE = jax.ShapeDtypeStruct((512, 512), jnp.float32)


def _stored(fn: Callable[..., Any], count: int, kind: str) -> list[bool]:
    """Whether the results of the ops of a kind stand in memory."""
    graph = build_graph(trace(fn, (SQUARE,) * count), while_trips=1.0)
    stands = compiled(graph, group_ops(graph), TPU).materialized
    return [stands[op.results[0]] for op in graph.of_kinds({kind})]


def _hidden_stored(topology: str, width: int) -> list[bool]:
    """Whether a SwiGLU's hidden layer of a width stands in memory, its result and argument being 512 wide."""

    def loss(x: jax.Array, gate: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
        hidden = checkpoint_name(jax.nn.silu(x @ gate) * (x @ up), "hidden")
        return jnp.sum((hidden @ down).astype(jnp.float32) ** 2)

    shapes = (4096, 512), (512, width), (512, width), (width, 512)
    args = tuple(jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes)
    graph = build_graph(trace(jax.grad(loss, (1, 2, 3)), args), while_trips=1.0)
    stands = compiled(graph, group_ops(graph), compiler_of(parse_topology(topology).chip)).materialized
    return [stands[op.operands[0]] for op in graph.of_kinds({"name"})]


def test_a_wide_operand_of_two_matmuls_is_stored_where_cores_share_them() -> None:
    assert _hidden_stored("v5p:2x2x2", 2048) == [True]
    assert _hidden_stored("v5p:2x2x2", 1024) == [False]
    assert _hidden_stored("v5e:2x4", 2048) == [False]


def test_what_three_products_read_of_three_arrays_is_stored() -> None:
    def fn(a: jax.Array, b: jax.Array, c: jax.Array) -> tuple[jax.Array, ...]:
        mixed = jnp.maximum((a @ a) * b, c)
        return mixed @ a, mixed @ b, mixed @ c

    # 3 x 3 read where 3, 1 written and 3 read do; and the product before it only the maximum reads.
    assert _stored(fn, 3, "max") == [True]
    assert _stored(fn, 3, "mul") == [False]


def test_what_two_products_read_of_two_arrays_is_stored_where_a_matmul_goes_on_to_it() -> None:
    def fn(a: jax.Array, b: jax.Array) -> tuple[jax.Array, ...]:
        mixed = checkpoint_name(jnp.maximum(a @ a, b), "mixed")
        return mixed @ a, mixed @ b

    def read_elsewhere(a: jax.Array, b: jax.Array) -> tuple[jax.Array, ...]:
        product = a @ a
        mixed = jnp.maximum(product, b)
        return mixed @ a, mixed @ b, product

    assert _stored(fn, 2, "max") == [True]
    # 2 x 2 read, where 2 read, 1 written and 2 read would be more.
    assert _stored(read_elsewhere, 2, "max") == [False]


def test_what_no_product_makes_a_part_of_is_computed_anew() -> None:
    def fn(a: jax.Array, b: jax.Array, c: jax.Array) -> tuple[jax.Array, ...]:
        mixed = jnp.maximum(a * b, c)
        return mixed @ a, mixed @ b, mixed @ c

    assert _stored(fn, 3, "max") == [False]


def test_readers_behind_other_passes_count() -> None:
    def fn(a: jax.Array, b: jax.Array, c: jax.Array) -> tuple[jax.Array, ...]:
        mixed = jnp.maximum((a @ a) * b, c)
        wide, narrow = 2.0 * mixed, mixed - 1.0
        return wide @ a, narrow @ b, wide @ c, narrow @ a

    assert _stored(fn, 3, "max") == [True]
    assert _stored(fn, 3, "sub") == [False]
