"""Which functions of what a matmul makes a GPU's compiler stores for the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from planner.compiler.program import compiled
from planner.compiler.targets.table import GPU
from planner.decisions.groups import group_ops
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.trace import trace

WIDE = (4096, 1024)


def _stored(f: Callable[[jax.Array], jax.Array], dtype: Any, *, again: bool = False) -> int:
    """How many arrays of the hidden width stand in memory where the backward pass begins."""

    def layer(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
        h = x @ up
        return (h * f(h)) @ down

    def loss(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
        return jnp.sum(jnp.cosh((jax.checkpoint(layer) if again else layer)(x, up, down)).astype(jnp.float32))

    args = [jax.ShapeDtypeStruct(shape, dtype) for shape in ((WIDE[0], 512), (512, WIDE[1]), (WIDE[1], 512))]
    graph = build_graph(trace(jax.grad(loss, argnums=(1, 2)), args), while_trips=1.0)
    (first,) = (op.id for op in graph.of_kinds(("sinh",)))
    alive = [b.tensor for b in compiled(graph, group_ops(graph), GPU).buffers if b.start <= first < b.stop]
    return sum(graph.tensors[tensor].aval.shape == WIDE for tensor in alive)


@pytest.mark.parametrize(
    ("f", "wide", "narrow"),
    [
        (lax.sin, 3, 3),
        (jnp.tanh, 2, 3),
        (lax.erf_inv, 3, 3),
        (jax.nn.sigmoid, 2, 2),
        (jnp.sqrt, 2, 2),
    ],
)
def test_what_takes_longer_to_compute_than_to_move_is_stored(
    f: Callable[[jax.Array], jax.Array], wide: int, narrow: int
) -> None:
    """What the matmul makes and the product with it always stand."""
    assert (_stored(f, jnp.float32), _stored(f, jnp.bfloat16)) == (wide, narrow)


def test_what_is_computed_once_more_is_not_stored_for_it() -> None:
    assert _stored(jnp.tanh, jnp.bfloat16, again=True) == 0
