"""In which order GPUs read what products multiply, and what is transposed for them, on attentions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from planner.compiler.program import CompiledProgram, compiled
from planner.compiler.targets.table import GPU
from planner.decisions.groups import group_ops
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.trace import trace

BATCH, LENGTH, HEADS, WIDTH = 4, 256, 8, 64
QUERIES = jax.ShapeDtypeStruct((BATCH, LENGTH, HEADS, WIDTH), jnp.bfloat16)


def _keys(heads: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((BATCH, LENGTH, heads, WIDTH), jnp.bfloat16)


def _program(fn: Callable[..., Any], *args: Any) -> CompiledProgram:
    graph = build_graph(trace(fn, args), while_trips=1.0)
    return compiled(graph, group_ops(graph), GPU)


def _shapes(program: CompiledProgram) -> list[Sequence[int]]:
    ops, tensors = program.graph.ops, program.graph.tensors
    return [tensors[ops[op].operands[at]].aval.shape for op, at in sorted(program.transposed_operands)]


def _gradients(queries: jax.Array, keys: jax.Array, values: jax.Array) -> Any:
    def loss(*args: jax.Array) -> jax.Array:
        return jnp.square(jax.nn.dot_product_attention(*args).astype(jnp.float32)).sum()

    return jax.grad(loss, (0, 1, 2))(queries, keys, values)


@pytest.mark.parametrize("heads", [HEADS, HEADS // 4])
def test_queries_keys_and_values_are_transposed_and_weights_written_as_they_are_read(heads: int) -> None:
    """Their heads, which are a batch, lie within their length; a softmax writes its weights for the one product."""
    program = _program(jax.nn.dot_product_attention, QUERIES, _keys(heads), _keys(heads))
    queries = (BATCH, LENGTH, heads, HEADS // heads, WIDTH)
    keys = (BATCH, LENGTH, heads, WIDTH)
    assert _shapes(program) == [queries, keys, keys]


@pytest.mark.parametrize(("heads", "copies"), [(HEADS, 0), (HEADS // 4, 2)])
def test_weights_that_two_products_read_are_transposed_for_each_where_heads_share_keys(heads: int, copies: int) -> None:
    """One sums over the length of keys, the other over groups and queries, which lie the other way round."""
    program = _program(_gradients, QUERIES, _keys(heads), _keys(heads))
    shapes = _shapes(program)
    assert sum(shape[-2:] == (LENGTH, LENGTH) for shape in shapes) == copies


def test_scores_that_two_loops_make_in_different_orders_are_transposed_between_them() -> None:
    """What the forward loop saves lies as (length, groups), what the backward loop computes as (groups, length)."""

    def fn(queries: jax.Array, keys: jax.Array, layers: jax.Array) -> Any:
        def forward(carry: jax.Array, scale: jax.Array) -> tuple[jax.Array, jax.Array]:
            scores = jnp.einsum("btkgd,bskd->bktgs", carry * scale, keys)
            return carry, jnp.transpose(jnp.exp(scores), (0, 1, 3, 2, 4))

        def backward(carry: jax.Array, saved: jax.Array) -> tuple[jax.Array, None]:
            scores = jnp.einsum("bkgtd,bskd->bkgts", jnp.transpose(carry, (0, 2, 3, 1, 4)), keys)
            return carry + (scores * saved).sum().astype(carry.dtype), None

        carry, saved = lax.scan(forward, queries, layers)
        return lax.scan(backward, carry, saved)[0]

    queries = jax.ShapeDtypeStruct((BATCH, LENGTH, HEADS // 4, 4, WIDTH), jnp.bfloat16)
    program = _program(fn, queries, _keys(HEADS // 4), jax.ShapeDtypeStruct((3,), jnp.bfloat16))
    found = program.transposed
    kinds = [program.graph.ops[op].kind for op in found]
    assert kinds == ["loop_slice"]
    assert program.transposes == dict.fromkeys(found, (2.0 * 3, 3))


def test_copies_of_one_array_are_buffers_from_its_first_product_on() -> None:
    program = _program(_gradients, QUERIES, _keys(HEADS // 4), _keys(HEADS // 4))
    ops, tensors = program.graph.ops, program.graph.tensors
    copied = [(op, ops[op].operands[at]) for op, at in sorted(program.transposed_operands)]
    weights = [(op, tensor) for op, tensor in copied if tensors[tensor].aval.shape[-2:] == (LENGTH, LENGTH)]
    first, second = weights
    assert first[1] == second[1]
    spans = [(one.start, one.stop) for one in program.buffers if one.tensor == first[1]]
    assert {(first[0], first[0] + 1), (first[0], second[0] + 1)} <= set(spans)
