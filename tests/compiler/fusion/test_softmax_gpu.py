"""With which reduced rows a GPU's kernel goes on: those that are only put back on what they are of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from planner.compiler.fusion.kernels import kernels_of
from planner.compiler.fusion.softmax_gpu import rows_kept
from planner.compiler.program import compiled
from planner.compiler.targets.table import GPU
from planner.decisions.groups import group_ops
from planner.program.graph import Graph
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.trace import trace

ROWS = jax.ShapeDtypeStruct((512, 1024), jnp.float32)
MATRIX = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)


def _softmax(x: jax.Array) -> jax.Array:
    raised = jnp.exp(x - lax.stop_gradient(x.max(-1, keepdims=True)))
    return raised / raised.sum(-1, keepdims=True)


def _root_mean_square(x: jax.Array) -> jax.Array:
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def _standardized(x: jax.Array) -> jax.Array:
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt((x * x).mean(-1, keepdims=True) - mean * mean)


def _halved(x: jax.Array) -> jax.Array:
    return 0.5 * x + x[:1].sum(-1, keepdims=True)


def _graph(fn: Callable[..., Any], *args: Any) -> Graph:
    return build_graph(trace(fn, args), while_trips=1.0)


def _gone_over(graph: Graph) -> list[str]:
    grouping = group_ops(graph)
    program = compiled(graph, grouping, GPU)
    return [graph.ops[op].kind for op in sorted(rows_kept(graph, program.fused, program.materialized))]


@pytest.mark.parametrize(
    ("fn", "kinds"),
    [
        (_softmax, ["reduce_max", "reduce_sum"]),
        (_root_mean_square, ["reduce_sum"]),
        (_standardized, []),
        (_halved, []),
    ],
)
def test_a_reduced_row_is_gone_over_where_it_is_put_back_on_its_row(
    fn: Callable[[jax.Array], jax.Array], kinds: list[str]
) -> None:
    assert _gone_over(_graph(lambda x: fn(jnp.sin(x)), ROWS)) == kinds


def test_a_sum_that_the_gradient_reads_is_not_and_what_the_gradient_sums_is_where_nothing_stands() -> None:
    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.tanh(_softmax(x @ w)))

    kinds = _gone_over(_graph(jax.grad(loss), MATRIX, ROWS))
    assert kinds == ["reduce_max", "reduce_sum"]  # the greatest element, and the sum of the gradient's terms
    once = _gone_over(_graph(lambda w, x: loss(w, x), MATRIX, ROWS))
    assert once == ["reduce_max", "reduce_sum"]


def test_what_a_barrier_takes_stands_and_what_is_behind_it_is_another_kernel() -> None:
    def fn(x: jax.Array, *, barred: bool) -> tuple[jax.Array, jax.Array]:
        wave = jnp.sin(x)
        other = lax.optimization_barrier(wave) if barred else wave
        return wave + 1.0, other * other

    for barred in (True, False):
        graph = _graph(lambda x, barred=barred: fn(x, barred=barred), ROWS)
        grouping = group_ops(graph)
        program = compiled(graph, grouping, GPU)
        found = kernels_of(program)
        (wave,) = [op.results[0] for op in graph.ops if op.kind == "sin"]
        assert program.materialized[wave] == barred
        assert sum(map(len, found.of_group.values())) == 1 + barred
