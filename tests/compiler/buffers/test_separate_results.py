"""Memory of results of programs that donate nothing, before and after compilers gave them memory of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from planner.compiler.program import compiled
from planner.compiler.targets.table import TPU
from planner.decisions.groups import group_ops
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.trace import trace

ARGS = [jax.ShapeDtypeStruct((256, 256), jnp.bfloat16)] * 2


def _layer(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w)


def _chain(x: jax.Array, w: jax.Array) -> jax.Array:
    return _layer(_layer(_layer(_layer(x, w), w), w), w)


def _loop(x: jax.Array, w: jax.Array) -> Any:
    return lax.scan(lambda x, _: (_layer(x, w), x), x, None, length=4)


def _most(fn: Callable[..., Any], *, separate: bool, donated: tuple[int, ...] = ()) -> float:
    """The most arrays of the size of an argument that are allocated at once beside arguments."""
    graph = build_graph(trace(fn, ARGS, donate_argnums=donated), while_trips=1.0)
    compiler = TPU if separate else TPU.without("separate-results")
    buffers = compiled(graph, group_ops(graph), compiler).buffers
    sizes = [one.fraction * graph.tensors[one.tensor].aval.size / (256 * 256) for one in buffers]
    return max(
        sum(size for one, size in zip(buffers, sizes, strict=True) if one.start <= at < one.stop)
        for at in range(len(graph.ops))
    )


@pytest.mark.parametrize(
    ("fn", "shared", "apart"),
    [
        (_chain, 2, 3),  # two steps, and the result
        (_loop, 6, 6),  # the carry, a step, and the stack: what the last trip leaves is the carry
    ],
)
def test_a_result_is_allocated_beside_what_it_is_made_from(fn: Callable[..., Any], shared: float, apart: float) -> None:
    assert _most(fn, separate=False) == shared
    assert _most(fn, separate=True) == apart


def test_a_result_in_place_of_an_argument_needs_no_memory_of_its_own() -> None:
    assert _most(_chain, separate=True, donated=(0,)) == _most(_chain, separate=False, donated=(0,))
