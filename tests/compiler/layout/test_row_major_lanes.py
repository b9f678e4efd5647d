"""Which tensors lie row by row on a TPU, and what that takes."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl

from planner.compiler.layout.multiplied import Order
from planner.compiler.layout.row_major_lanes import InRows, slices_copied_to_order
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


Messages = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


@pytest.mark.parametrize("heads", [(), (HEADS,)])
@pytest.mark.parametrize(
    ("messages", "saved_rows"),
    [
        (lambda sent, received, _: jnp.tanh(sent * received), {"rows"}),
        # Behind the product of rows, of which each is saved, what has to do with a matmul's results.
        (lambda sent, received, edges: sent * (received + edges), {"single rows", "others"}),
    ],
)
def test_what_loops_save_of_rows_lies_in_rows_unless_a_matmul_has_a_part_in_it(
    heads: tuple[int, ...], messages: Messages, saved_rows: set[str]
) -> None:
    numbers = jax.ShapeDtypeStruct((EDGES,), jnp.int32)
    nodes = jax.ShapeDtypeStruct((NODES, *heads, WIDTH), jnp.float32)
    edges = jax.ShapeDtypeStruct((EDGES, 16), jnp.float32)
    weights = jax.ShapeDtypeStruct((3, 16, prod(heads) * WIDTH), jnp.float32)

    def loss(h: jax.Array, weights: jax.Array, edges: jax.Array, senders: jax.Array, receivers: jax.Array) -> jax.Array:
        def layer(h: jax.Array, weights: jax.Array) -> tuple[jax.Array, None]:
            own = (edges @ weights).reshape(-1, *heads, WIDTH)
            sent = messages(jnp.sin(h)[senders], h[receivers], own)
            return jax.ops.segment_sum(sent, receivers, NODES), None

        return jnp.sum(jax.lax.scan(layer, h, weights)[0])

    graph = build_graph(trace(jax.grad(loss), (nodes, weights, edges, numbers, numbers)), while_trips=1.0)
    program = compiled(graph, group_ops(graph), TPU)
    found = program.row_major

    def kind(tensor: int) -> str:
        lies = found.get(tensor)
        return "others" if not isinstance(lies, InRows) else "single rows" if lies.single else "rows"

    saved = [op.results[0] for op in graph.of_kinds(("loop_stack",))]
    assert {kind(t) for t in saved if graph.tensors[t].aval.shape[:2] == (3, EDGES)} == saved_rows
    # What is saved otherwise is copied where the backward pass reads it in rows, and is in memory.
    copied = slices_copied_to_order(graph, found)
    assert bool(copied) == ("others" in saved_rows)
    assert {graph.ops[op].results[0] for op in copied} <= {buffer.tensor for buffer in program.buffers}
    assert set(copied) <= set(program.in_place.extra_traffic)


def test_rows_that_are_read_beside_a_matmuls_results_lie_in_rows_where_they_have_one_dim() -> None:
    rows = InRows(column=4.0 * NODES, rank=2, single=True)
    assert row_bytes((3, EDGES, 1, WIDTH), 4, rows) == 3 * EDGES * 128 * 4
    assert row_bytes((3, EDGES, HEADS, WIDTH), 4, rows) == tiled_bytes((3, EDGES, HEADS, WIDTH), 4)


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


def test_what_a_pallas_kernel_reads_and_writes_lies_in_rows_also_where_a_loop_saves_it() -> None:
    """Heads of 64 features take twice their bytes."""

    def doubled(x: Any, out: Any) -> None:
        out[...] = 2 * x[...]

    def fn(x: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
        def layer(x: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array]:
            heads = jnp.swapaxes((x @ weight).reshape(*x.shape[:2], -1, 64), 1, 2)
            shape = jax.ShapeDtypeStruct(heads.shape, heads.dtype)
            made = pl.pallas_call(doubled, out_shape=shape, interpret=True)(heads)
            return x + jnp.swapaxes(made, 1, 2).reshape(x.shape), heads

        return lax.scan(layer, x, weights)

    x, weights = jax.ShapeDtypeStruct((8, 256, 128), jnp.float32), jax.ShapeDtypeStruct((3, 128, 128), jnp.float32)
    graph = build_graph(trace(fn, (x, weights)), while_trips=1.0)
    rows = compiled(graph, group_ops(graph), TPU).row_major
    (stack,) = (op.results[0] for op in graph.of_kinds(("loop_stack",)))
    (kernel,) = graph.of_kinds(("pallas_call",))
    found = {rows[tensor] for tensor in (*kernel.operands, *kernel.results, stack)}
    assert found == {InRows(column=0.0, rank=1)}
    (order,) = found
    assert row_bytes((3, 8, 2, 256, 64), 4, order) == 2 * prod((3, 8, 2, 256, 64)) * 4
