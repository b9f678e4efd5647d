"""In how many bytes tensors stand that nothing reads as wide as they are."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest

from planner.compiler.simplify.convert_mover import NarrowReads
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.trace import trace

X = jax.ShapeDtypeStruct((32, 32), jnp.float32)
HALF, WHOLE = 0.5, 1.0


def _one_matmul(x: jax.Array) -> jax.Array:
    return x.T @ x


def _matmul_and_sum(x: jax.Array) -> jax.Array:
    return (x @ x).sum() + x.sum()


def _exact(x: jax.Array) -> jax.Array:
    return jnp.matmul(x, x, precision="highest")


def _cast(x: jax.Array) -> jax.Array:
    return jnp.sin(x.reshape(1024).astype(jnp.bfloat16))


def _times_vector(x: jax.Array) -> jax.Array:
    return x @ jnp.ones(32)


def _stacked(x: jax.Array) -> jax.Array:
    """The rows that a loop stacks and another one multiplies."""
    stack = jax.lax.scan(lambda c, row: (c, row), 0.0, x)[1]
    return jax.lax.scan(lambda c, row: (c + row.reshape(4, 8) @ jnp.ones((8, 32)), None), jnp.zeros((4, 32)), stack)[0]


def _messages(x: jax.Array) -> jax.Array:
    """What is sent along the edges of a graph by the nodes at both ends."""
    ends = jnp.concatenate([x[jnp.arange(8)], x[jnp.arange(8, 16)]], axis=1)
    return jnp.where(jnp.arange(8)[:, None] > 2, ends, 0) @ jnp.ones((64, 32))


def _halves(x: jax.Array) -> jax.Array:
    """Two halves, of which one is multiplied and the other is not."""
    left, right = jnp.split(x, 2)
    return (left @ x.T).sum() + jnp.sin(right).sum()


@pytest.mark.parametrize(
    ("read", "share"),
    [
        (_one_matmul, HALF),
        (_matmul_and_sum, WHOLE),
        (_exact, WHOLE),
        (_cast, HALF),
        (_stacked, HALF),
        (_times_vector, WHOLE),
        (_messages, HALF),
        (_halves, WHOLE),
    ],
    ids=["matmul", "matmul and sum", "exact matmul", "cast", "stacked", "times a vector", "messages", "halves"],
)
def test_the_width_in_which_a_tensor_is_read_is_that_in_which_it_stands(
    read: Callable[[jax.Array], jax.Array], share: float
) -> None:
    graph = build_graph(trace(read, (X,)), while_trips=1.0)
    assert NarrowReads(graph).fraction(graph.inputs[0]) == share


def test_what_is_fetched_for_a_matmul_is_fetched_narrow_whatever_else_reads_it_where_it_is() -> None:
    graph = build_graph(trace(_matmul_and_sum, (X,)), while_trips=1.0)
    reads = [read for read in graph.consumers[graph.inputs[0]] if graph.ops[read[0]].kind == "dot_general"]
    assert NarrowReads(graph).fraction(graph.inputs[0], reads) == HALF


def test_what_is_returned_stands_as_it_is() -> None:
    graph = build_graph(trace(lambda x: (x.astype(jnp.bfloat16), x), (X,)), while_trips=1.0)
    assert NarrowReads(graph).fraction(graph.inputs[0]) == WHOLE
