"""Which tensors lie row by row on a TPU, and what that takes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from planner.compiler.layout.convolved import Order
from planner.compiler.layout.row_major_lanes import InRows
from planner.compiler.program import compiled
from planner.compiler.targets.table import GPU, TPU
from planner.decisions.groups import group_ops
from planner.pricing.tpu_tiles import row_bytes, tiled_bytes
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.trace import trace

NODES, EDGES, HEADS, WIDTH = 4096, 65536, 4, 8


def _messages(h: jax.Array, weights: jax.Array, senders: jax.Array, receivers: jax.Array) -> jax.Array:
    messages = weights[:, None, None] * jnp.tanh(h)[senders]
    return jax.ops.segment_sum(messages, receivers, NODES).sum((1, 2))


def _rows(on_tpu: bool) -> dict[str, Order]:
    """How the results of ops lie, by the kinds of these."""
    numbers = jax.ShapeDtypeStruct((EDGES,), jnp.int32)
    args = (
        jax.ShapeDtypeStruct((NODES, HEADS, WIDTH), jnp.float32),
        jax.ShapeDtypeStruct((EDGES,), jnp.float32),
        *(numbers, numbers),
    )
    graph = build_graph(trace(_messages, args), while_trips=1.0)
    found = compiled(graph, group_ops(graph), TPU if on_tpu else GPU).row_major
    return {graph.ops[graph.tensors[t].producer or 0].kind: rows for t, rows in found.items()}


def test_what_is_looked_up_and_scattered_lies_in_rows_and_what_passes_make_of_it() -> None:
    found = _rows(on_tpu=True)
    assert {"tanh", "gather", "mul"} <= set(found)
    assert "reduce_sum" not in found
    assert set(found.values()) == {InRows(column=4.0 * NODES, rank=2)}
    assert not _rows(on_tpu=False)


@pytest.mark.parametrize(("heads", "in_rows"), [((), True), ((HEADS,), False)])
def test_what_loops_save_of_rows_lies_in_rows_too(heads: tuple[int, ...], in_rows: bool) -> None:
    numbers = jax.ShapeDtypeStruct((EDGES,), jnp.int32)
    nodes = jax.ShapeDtypeStruct((NODES, *heads, WIDTH), jnp.float32)

    def loss(h: jax.Array, senders: jax.Array, receivers: jax.Array) -> jax.Array:
        def layer(h: jax.Array, _: None) -> tuple[jax.Array, None]:
            messages = jnp.tanh(jnp.sin(h)[senders] * h[receivers])
            return jax.ops.segment_sum(messages, receivers, NODES), None

        return jnp.sum(jax.lax.scan(layer, h, None, length=3)[0])

    graph = build_graph(trace(jax.grad(loss), (nodes, numbers, numbers)), while_trips=1.0)
    found = compiled(graph, group_ops(graph), TPU).row_major
    saved = [op.results[0] for op in graph.of_kinds(("loop_stack",))]
    edges = [tensor for tensor in saved if graph.tensors[tensor].aval.shape[:2] == (3, EDGES)]
    assert edges
    assert {tensor in found for tensor in edges} == {in_rows}


@pytest.mark.parametrize(
    ("shape", "column", "filled"),
    [
        ((EDGES, 8), 4.0 * NODES, EDGES * 128),
        ((EDGES, 1, 8), 4.0 * NODES, EDGES * 128),
        ((EDGES, 4, 8), 4.0 * NODES, EDGES * 4 * 128),
        ((EDGES, 128), 4.0 * NODES, EDGES * 128),
        # A column of a table of a million rows is too long to fill up the rows, but for rows of half a tile.
        ((EDGES, 8), 4e6, EDGES * 8),
        ((EDGES, 64), 4e6, EDGES * 128),
        ((EDGES, 1), 4.0 * NODES, EDGES),
    ],
)
def test_rows_are_filled_up_to_tiles_where_the_table_is_short(
    shape: tuple[int, ...], column: float, filled: int
) -> None:
    assert row_bytes(shape, 4.0, InRows(column=column, rank=len(shape) - 1)) == 4 * filled
    assert tiled_bytes(shape, 4.0) <= 4 * filled
