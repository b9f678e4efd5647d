"""Attention by cuDNN is split by batch and heads, each device running it on its part."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import planner
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.trace import trace
from planner.rules.choose import op_rule

KINDS = ("dot_product_attention_fwd_wrapper", "dot_product_attention_bwd_wrapper")


@pytest.fixture(autouse=True)
def _believed(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    """JAX traces it only where cuDNN is installed."""
    module = importlib.import_module("jax._src.cudnn.fused_attention_stablehlo")
    monkeypatch.setattr(module, "check_cudnn_version", lambda: 91000)


def array(*shape: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


Q, K = array(16, 256, 8, 64), array(16, 256, 2, 64)
LENGTHS = array(16, dtype=jnp.int32)


def gradients(q: jax.Array, k: jax.Array, *more: jax.Array, **how: Any) -> Any:
    def loss(q: jax.Array, k: jax.Array, *more: jax.Array) -> jax.Array:
        found = jax.nn.dot_product_attention(q, k, k, *more, implementation="cudnn", **how)
        return (found.astype(jnp.float32) ** 2).sum()

    return jax.grad(loss, argnums=tuple(range(2 + len(more))))(q, k, *more)


def passing(fn: Callable[..., Any], *args: Any) -> list[list[int]]:
    """The sizes of the factors that pass through each call."""
    graph = build_graph(trace(fn, args))
    rules = [op_rule(graph, op)[0] for op in graph.of_kinds(KINDS)]
    return [[n for n, kind in zip(rule.sizes, rule.kinds, strict=True) if kind == "pass"] for rule in rules if rule]


def test_batch_and_heads_of_keys_pass_through() -> None:
    assert passing(lambda q, k: gradients(q, k, is_causal=True), Q, K) == [[16, 2], [16, 2]]


def test_lengths_are_those_of_the_batch() -> None:
    def fn(q: jax.Array, k: jax.Array, lengths: jax.Array) -> Any:
        return gradients(q, k, query_seq_lengths=lengths, key_value_seq_lengths=lengths)

    assert passing(fn, Q, K, LENGTHS) == [[16, 2], [16, 2]]


def test_the_gradient_of_a_bias_that_examples_share_keeps_the_batch_whole() -> None:
    assert passing(gradients, Q, K, array(1, 8, 256, 256)) == [[16, 2], [2]]


def test_a_plan_splits_it_and_runs_it_on_parts() -> None:
    plan = planner.plan(
        lambda q, k: gradients(q, k, is_causal=True), (Q, K), topology="h100:8", options=planner.Options(check="never")
    )
    assert plan.replicated == plan.guessed == ()
    assert plan.in_specs == (P("x"), P("x"))
    masked = 16 * 8 * 256 * 256 * 64 * 4 / 2
    assert plan.predicted.flops == pytest.approx(3.5 * masked / 8, rel=0.05)
    text = plan.jit.trace(Q, K).lower(lowering_platforms=("cuda",)).as_text()
    assert "__cudnn$fmhaSoftmax" in text
    assert "tensor<2x256x8x64xbf16>" in text
