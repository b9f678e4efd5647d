"""Which tensors lie as convolutions and products of matrices lay them on a TPU, and what that takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from planner.compiler.layout.multiplied import InTiles, Order
from planner.compiler.program import compiled
from planner.compiler.targets.table import GPU, TPU
from planner.decisions.groups import group_ops
from planner.pricing.tpu_tiles import row_bytes, tiled_bytes
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.trace import trace

IMAGES, SIDE, FEATURES = 16, 64, 32
IMAGE = InTiles(first=(0,), second=(3,))


def _loss(window: jax.Array, x: jax.Array) -> jax.Array:
    x = jax.lax.conv_general_dilated(x, window, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    x = jax.lax.reduce_window(jnp.tanh(x), -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return jnp.sum(jnp.sin(x).reshape(IMAGES, -1, FEATURES).astype(jnp.float32))


def _orders(on_tpu: bool) -> dict[str, set[Order]]:
    """How the results of ops lie, by the kinds of these."""
    args = (
        jax.ShapeDtypeStruct((3, 3, FEATURES, FEATURES), jnp.bfloat16),
        jax.ShapeDtypeStruct((IMAGES, SIDE, SIDE, FEATURES), jnp.bfloat16),
    )
    graph = build_graph(trace(jax.grad(_loss), args), while_trips=1.0)
    found: dict[str, set[Order]] = {}
    for tensor, order in compiled(graph, group_ops(graph), TPU if on_tpu else GPU).row_major.items():
        producer = graph.tensors[tensor].producer
        assert producer is not None, "arguments lie as all arguments do"
        found.setdefault(graph.ops[producer].kind, set()).add(order)
    return found


def test_what_convolutions_read_and_make_lies_in_tiles_of_batch_and_features_and_what_passes_make_of_it() -> None:
    found = _orders(on_tpu=True)
    assert found["tanh"] == found["reduce_window_max"] == found["cos"] == found["select_and_scatter_add"] == {IMAGE}
    # That of the image, and that of the gradient of its window.
    assert found["conv_general_dilated"] == {IMAGE, InTiles(first=(2,), second=(3,))}
    assert "reduce_sum" not in found
    assert not _orders(on_tpu=False)


@pytest.mark.parametrize(
    ("shape", "itemsize", "elements"),
    [
        ((16, 64, 64, 32), 2.0, 16 * 64 * 64 * 128),
        # The batch takes fewer lanes.
        ((64, 64, 64, 32), 2.0, 128 * 64 * 64 * 32),
        ((128, 64, 64, 64), 2.0, 128 * 64 * 64 * 64),
        # A tile has two rows of 16 bits, or one of 32.
        ((1, 64, 64, 128), 2.0, 2 * 64 * 64 * 128),
        ((1, 64, 64, 128), 4.0, 64 * 64 * 128),
        ((0, 64, 64, 128), 4.0, 0),
    ],
)
def test_images_are_filled_up_to_tiles(shape: tuple[int, ...], itemsize: float, elements: int) -> None:
    assert row_bytes(shape, itemsize, IMAGE) == itemsize * elements
    assert tiled_bytes(shape, itemsize) <= itemsize * elements


def test_a_stack_of_images_lies_as_they_do() -> None:
    def loss(x: jax.Array, windows: jax.Array) -> jax.Array:
        def layer(x: jax.Array, window: jax.Array) -> tuple[jax.Array, None]:
            y = jax.lax.conv_general_dilated(x, window, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            return jnp.sin(y), None

        return jnp.sum(jax.lax.scan(layer, x, windows)[0].astype(jnp.float32))

    args = (
        jax.ShapeDtypeStruct((IMAGES, SIDE, SIDE, FEATURES), jnp.bfloat16),
        jax.ShapeDtypeStruct((4, 3, 3, FEATURES, FEATURES), jnp.bfloat16),
    )
    graph = build_graph(trace(jax.grad(loss, 1), args), while_trips=1.0)
    orders = compiled(graph, group_ops(graph), TPU).row_major
    stacks = [op.results[0] for op in graph.of_kinds(("loop_stack",))]
    saved = [stack for stack in stacks if graph.tensors[stack].aval.shape[1] == IMAGES]
    assert saved
    assert {orders.get(stack) for stack in saved} == {InTiles(first=(1,), second=(4,))}


WINDOWS, HEADS, TOKENS, WIDTH = 256, 4, 49, 32
SCORES = InTiles(first=(2,), second=(3,))


def _attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    scores = jnp.sin(jnp.einsum("nqhd,nkhd->nhqk", jnp.sin(q), k)).reshape(2, -1, HEADS, TOKENS, TOKENS)
    return jnp.einsum("gnhqk,gnkhd->gnqhd", jnp.cos(scores), v.reshape(2, -1, *v.shape[1:]))


def _results(fn: Callable[..., Any], *args: Any) -> list[tuple[str, Order | None]]:
    """The ops of a function, in order, and how their results lie."""
    graph = build_graph(trace(fn, args), while_trips=1.0)
    found = compiled(graph, group_ops(graph), TPU).row_major
    return [(op.kind, found.get(op.results[0])) for op in graph.ops if op.results]


def test_batches_lie_outside_of_the_tiles_that_a_product_reads_and_makes() -> None:
    array = jax.ShapeDtypeStruct((WINDOWS, TOKENS, HEADS, WIDTH), jnp.float32)
    found = _results(_attention, array, array, array)
    # A query is read in tiles of features and positions.
    assert found[0] == ("sin", InTiles(first=(3,), second=(1,)))
    orders = dict(found[1:])
    assert orders["sin"] == InTiles(first=(3,), second=(2,))
    # With two dims outside of the heads.
    assert orders["cos"] == InTiles(first=(4,), second=(3,))


def test_scores_of_few_positions_fill_up_their_tiles() -> None:
    shape = (WINDOWS, HEADS, TOKENS, TOKENS)
    assert row_bytes(shape, 4.0, SCORES) == 4 * WINDOWS * HEADS * 56 * 128
    assert tiled_bytes(shape, 4.0) == 4 * WINDOWS * HEADS * TOKENS**2
    # Of several dims that an operand keeps those lie in tiles that fill them best.
    assert row_bytes((WINDOWS, TOKENS, 384), 4.0, InTiles(first=(0, 1), second=(2,))) == 4 * WINDOWS * TOKENS * 384


def test_a_product_reads_a_slice_of_an_argument_as_it_lies() -> None:
    def fn(x: jax.Array, weights: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0]

    args = (jax.ShapeDtypeStruct((256, 512), jnp.bfloat16), jax.ShapeDtypeStruct((4, 512, 512), jnp.bfloat16))
    orders = dict(_results(fn, *args))
    assert orders["loop_slice"] is None
    assert orders["dot_general"] == InTiles(first=(0,), second=(1,))
