"""What a TPU does not keep because another tensor serves as well; elsewhere all is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from planner.compiler.buffers.buffer import Buffer
from planner.compiler.model import CompilerModel
from planner.compiler.program import compiled
from planner.compiler.targets.table import TPU
from planner.decisions.groups import group_ops
from planner.program.graph import Graph
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.trace import trace

TABLE = jax.ShapeDtypeStruct((64, 32), jnp.float32)
EDGES = jax.ShapeDtypeStruct((4096,), jnp.int32)
IMAGES = jax.ShapeDtypeStruct((64, 8, 8, 128), jnp.float32)
KERNEL = jax.ShapeDtypeStruct((3, 3, 128, 128), jnp.float32)


def _kept(
    fn: Callable[..., Any], args: tuple[Any, ...], kind: str, compiler: CompilerModel = TPU
) -> tuple[Graph, list[Buffer]]:
    """The buffers of results of ops of a kind."""
    graph = build_graph(trace(fn, args), while_trips=1.0)
    made = {tensor for op in graph.of_kinds({kind}) for tensor in op.results}
    buffers = compiled(graph, group_ops(graph), compiler).buffers
    return graph, [buffer for buffer in buffers if buffer.tensor in made]


def _messages(table: jax.Array, edges: jax.Array) -> jax.Array:
    first = table[edges]
    return jnp.sin(first.sum(1)[:, None] * table[edges])


def test_indices_that_are_derived_twice_are_kept_once() -> None:
    graph, kept = _kept(_messages, (TABLE, EDGES), "broadcast_in_dim")
    for op in graph.of_kinds({"gather"}):
        assert sum(buffer.fraction for buffer in kept if buffer.start <= op.id < buffer.stop) == 1.0
    without = _kept(_messages, (TABLE, EDGES), "broadcast_in_dim", TPU.without("cse"))[1]
    assert [buffer.fraction for buffer in without] == [1.0, 1.0]


def test_what_a_gradient_computes_again_is_another_value() -> None:
    def loss(x: jax.Array) -> jax.Array:
        return jnp.cos(jax.checkpoint(lambda y: jnp.sin(jnp.sin(y)))(x)).sum()

    graph = build_graph(trace(jax.grad(loss), (TABLE,)), while_trips=1.0)
    assert not graph.equal


@pytest.mark.parametrize("factors", [(2.0, 2.0), (2.0, 3.0)])
def test_equal_ops_are_those_of_equal_literals(factors: tuple[float, float]) -> None:
    graph = build_graph(trace(lambda x: (x * factors[0], x * factors[1]), (TABLE,)), while_trips=1.0)
    assert bool(graph.equal) == (factors[0] == factors[1])


def _residual(x: jax.Array, *kernels: jax.Array) -> jax.Array:
    """Two residual blocks whose sums are rectified."""
    for first, second in zip(kernels[::2], kernels[1::2], strict=True):
        ways = [
            jax.lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            for k in (first, second)
        ]
        ways = [jnp.square(way) - way.mean((0, 1, 2)) for way in ways]
        x = jax.nn.relu(ways[0] + (x if first is kernels[2] else ways[1]))
    return x.sum()


def test_of_a_sum_and_its_activation_the_sum_is_kept() -> None:
    program = jax.grad(_residual, (1, 2, 3, 4)), (IMAGES, *(KERNEL,) * 4), "max"
    assert [buffer.fraction for buffer in _kept(*program)[1]] == [0.0]
    assert [buffer.fraction for buffer in _kept(*program, TPU.without("cse"))[1]] == [1.0]
