"""Which tensors lie as convolutions lay them on a TPU, and what that takes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from planner.compiler.layout.convolved import InTiles, Order
from planner.compiler.program import compiled
from planner.compiler.targets.table import GPU, TPU
from planner.decisions.groups import group_ops
from planner.pricing.tpu_tiles import row_bytes, tiled_bytes
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.trace import trace

IMAGES, SIDE, FEATURES = 16, 64, 32
IMAGE = InTiles(first=0, second=3)


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
    assert found["conv_general_dilated"] == {IMAGE, InTiles(first=2, second=3)}
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
    assert {orders.get(stack) for stack in saved} == {InTiles(first=1, second=4)}
