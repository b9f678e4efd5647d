"""Which reshapes a TPU stores the result of, and for how long."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from planner.any_mesh.buffer import Buffer
from planner.any_mesh.groups import group_ops
from planner.any_mesh.laid_out import ON_TPU
from planner.any_mesh.liveness import analyse
from planner.program.graph import Graph
from planner.program.jaxpr.flatten import build_graph
from planner.program.trace import trace


def _grouped_norm(x: jax.Array, groups: int) -> jax.Array:
    """The squares of what a norm makes of groups of channels, with the groups stated in float32."""
    grouped = x.reshape(*x.shape[:-1], groups, -1).astype(jnp.float32)
    mean = grouped.mean((1, 3), keepdims=True)
    return jnp.sin((grouped - mean) * jax.lax.rsqrt(jnp.square(grouped).mean((1, 3), keepdims=True)))


def _laid_out(channels: int, groups: int) -> tuple[Graph, list[Buffer]]:
    x = jax.ShapeDtypeStruct((8, 64, channels), jnp.bfloat16)
    graph = build_graph(trace(jax.grad(lambda x: _grouped_norm(x, groups).sum()), (x,)), while_trips=1.0)
    return graph, [buffer for buffer in analyse(graph, group_ops(graph)).buffers if buffer.share == ON_TPU]


def test_groups_of_few_channels_are_laid_out_as_they_are_read_until_their_last_reader() -> None:
    graph, (found,) = _laid_out(256, 32)
    assert graph.tensors[found.tensor].aval.shape == (8, 64, 32, 8)
    assert graph.tensors[found.tensor].aval.dtype == "float32"
    assert found.stop > max(op.id for op in graph.ops if op.kind == "sin" or op.kind == "cos")


@pytest.mark.parametrize(("channels", "groups"), [(512, 4), (1024, 1)], ids=["whole tiles", "one group"])
def test_groups_of_whole_tiles_are_read_where_they_are(channels: int, groups: int) -> None:
    assert not _laid_out(channels, groups)[1]


def test_heads_that_only_matmuls_read_are_read_where_they_are() -> None:
    def scores(x: jax.Array, y: jax.Array) -> jax.Array:
        heads = jnp.sin(x).reshape(8, 64, 4, 64)
        return jnp.einsum("bshd,bthd->bhst", heads, y)

    args = (jax.ShapeDtypeStruct((8, 64, 256), "float32"), jax.ShapeDtypeStruct((8, 64, 4, 64), "float32"))
    graph = build_graph(trace(scores, args), while_trips=1.0)
    assert all(buffer.share != ON_TPU for buffer in analyse(graph, group_ops(graph)).buffers)
