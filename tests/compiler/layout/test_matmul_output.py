"""In which order a TPU's compiler lays the dims of what products and convolutions make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from planner.compiler.layout.tiles import memory_orders
from planner.decisions.groups import group_ops
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.trace import trace

IMAGES = jax.ShapeDtypeStruct((64, 16, 16, 128), jnp.bfloat16)
KERNEL = jax.ShapeDtypeStruct((3, 3, 128, 256), jnp.bfloat16)


def _order(fn: Callable[..., Any], args: tuple[Any, ...], kind: str) -> list[tuple[tuple[int, ...], ...]]:
    graph = build_graph(trace(fn, args), while_trips=1.0)
    grouping = group_ops(graph)
    return [memory_orders(graph, grouping, op.results[0]) for op in graph.of_kinds({kind})]


def _convolved(images: jax.Array, kernel: jax.Array) -> jax.Array:
    return jax.lax.conv_general_dilated(
        images, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    ).sum()


def test_images_have_batch_and_features_in_tiles_for_every_place() -> None:
    assert _order(_convolved, (IMAGES, KERNEL), "conv_general_dilated") == [((1, 2, 0, 3),)]


def test_the_gradient_of_a_kernel_lies_as_the_kernel() -> None:
    ((made,),) = _order(jax.grad(_convolved, 1), (IMAGES, KERNEL), "conv_general_dilated")
    graph = build_graph(trace(jax.grad(_convolved, 1), (IMAGES, KERNEL)), while_trips=1.0)
    (op,) = graph.of_kinds({"conv_general_dilated"})
    shape = graph.tensors[op.results[0]].aval.shape
    assert sorted(shape[dim] for dim in made[:2]) == [3, 3]


def test_products_have_the_last_free_dims_of_both_sides_in_tiles() -> None:
    args = (jax.ShapeDtypeStruct((8, 4, 64), jnp.float32), jax.ShapeDtypeStruct((64, 2, 32), jnp.float32))
    assert _order(lambda x, y: jnp.einsum("abk,kcd->abcd", x, y), args, "dot_general") == [((0, 2, 1, 3),)]


def test_the_gradient_of_a_weight_may_have_the_layout_of_its_transpose() -> None:
    args = (jax.ShapeDtypeStruct((64, 32), jnp.float32), jax.ShapeDtypeStruct((128, 64), jnp.float32))
    orders = _order(jax.grad(lambda w, x: jnp.sin(x @ w).sum()), args, "dot_general")
    assert ((0, 1), (1, 0)) in orders


def test_only_a_transpose_that_swaps_both_sides_is_part_of_the_product() -> None:
    """The gradient of three matrices is made as (matrix, column, row), and transposed: (0, 2, 1) is no order of it."""
    args = jax.ShapeDtypeStruct((3, 64, 32), jnp.float32), jax.ShapeDtypeStruct((128, 64), jnp.float32)
    orders = _order(jax.grad(lambda w, x: jnp.sin(jnp.einsum("bd,cde->bce", x, w)).sum()), args, "dot_general")
    assert orders == [((1, 0, 2),), ((0, 1, 2),)]
