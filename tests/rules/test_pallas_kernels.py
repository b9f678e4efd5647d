"""Pallas kernels: how one may be split follows from its own grid, body and block specs, and so does its work."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec as P

import planner
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.trace import trace
from planner.rules.choose import op_rule
from planner.rules.op_work import declared_bytes, is_guessed, op_flops
from planner.testing import assert_same_as_single_device, free_wires

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # from JAX 0.12 on they say that they will move
    flash, gpu_attention, decode_attention, splash, masks, paged = (
        importlib.import_module(f"jax.experimental.pallas.ops.{name}")
        for name in (
            "tpu.flash_attention",
            "gpu.attention",
            "gpu.decode_attention",
            "tpu.splash_attention.splash_attention_kernel",
            "tpu.splash_attention.splash_attention_mask",
            "tpu.paged_attention",
        )
    )

MESH = {"x": 4, "y": 2}
X = jax.ShapeDtypeStruct((32, 16), jnp.float32)


def normal(*shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(sum(shape)), shape)


def rules(fn: Callable[..., Any], *args: Any) -> list[str]:
    """The rules of the kernels of a function, in program order; "whole" where there is none."""
    graph = build_graph(trace(fn, args))
    return [str(op_rule(graph, op)[0] or "whole") for op in graph.of_kinds(("pallas_call",))]


def called(
    kernel: Callable[..., None],
    grid: tuple[int, ...],
    index: Callable[..., Any],
    out: Callable[..., Any] | None = None,
    *,
    scratch: bool = False,
    **more: Any,
) -> Callable[[jax.Array], jax.Array]:
    """A function that calls a kernel on blocks of 4 rows of `X`, as of an index map for it and one for the result."""
    return pl.pallas_call(
        kernel,
        grid=grid,
        in_specs=[pl.BlockSpec((4, 16), index)],
        out_specs=pl.BlockSpec((4, 16), out or index),
        out_shape=X,
        scratch_shapes=[pltpu.VMEM((4, 16), jnp.float32)] if scratch else [],
        interpret=True,
        **more,
    )


def doubled(x: Any, out: Any, *_: Any) -> None:
    out[...] = 2 * x[...]


def placed(x: Any, out: Any) -> None:
    out[...] = x[...] + pl.program_id(0)


def alternating(x: Any, out: Any) -> None:
    out[...] = x[...] + pl.program_id(0) % 2


def running_sum(x: Any, out: Any, total: Any) -> None:
    @pl.when(pl.program_id(0) == 0)
    def _() -> None:
        total[...] = jnp.zeros_like(total)

    total[...] += x[...]
    out[...] = total[...]


def sum_of_four(x: Any, out: Any, total: Any) -> None:
    @pl.when(pl.program_id(0) % 4 == 0)
    def _() -> None:
        total[...] = jnp.zeros_like(total)

    total[...] += x[...]
    out[...] = total[...]


RULES: dict[str, tuple[Callable[..., Any], str]] = {
    "rows": (called(doubled, (8,), lambda i: (i, 0)), "(a b) c -> (a d) e | replicate b c d e"),
    "half of it": (called(doubled, (8,), lambda i: (i // 2, 0), lambda i: (i, 0)), "whole"),
    "turned around": (called(doubled, (8,), lambda i: (7 - i, 0)), "whole"),
    "turned around in pairs": (
        called(doubled, (8,), lambda i: (i + 1 - 2 * (i % 2), 0)),
        "(a b) c -> (a d) e | replicate b c d e",
    ),
    "by its place": (called(placed, (8,), lambda i: (i, 0)), "whole"),
    "by its place in pairs": (called(alternating, (8,), lambda i: (i, 0)), "(a b) c -> (a d) e | replicate b c d e"),
    "a sum carried on": (called(running_sum, (8,), lambda i: (i, 0), scratch=True), "whole"),
    "a sum carried from row to row": (
        called(running_sum, (2, 8), lambda i, j: (j, 0), scratch=True),  # begun anew in the first of two passes only
        "whole",
    ),
    "a sum begun anew": (
        called(sum_of_four, (8,), lambda i: (i, 0), scratch=True),
        "(a b) c -> (a d) e | replicate b c d e",
    ),
    "on all of it": (called(doubled, (8,), lambda i: (0, 0)), "whole"),
    "a grid of two": (
        called(doubled, (2, 4), lambda i, j: (4 * i + j, 0)),
        "(a b) c -> (a d) e | replicate b c d e",
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_the_rule_of_a_kernel_follows_from_its_grid(name: str) -> None:
    fn, text = RULES[name]
    assert rules(fn, X) == [text]


def looked_up(table: jax.Array, x: jax.Array) -> jax.Array:
    def kernel(table: Any, x: Any, out: Any) -> None:
        out[...] = x[...] * table[pl.program_id(0)]

    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(8,),
        in_specs=[pl.BlockSpec((4, 16), lambda i, table: (i, 0))],
        out_specs=pl.BlockSpec((4, 16), lambda i, table: (i, 0)),
    )
    return pl.pallas_call(kernel, grid_spec=spec, out_shape=X, interpret=True)(table, x)


def product(x: jax.Array, y: jax.Array) -> jax.Array:
    """In blocks of (4, 8) by (8, 8), summed in memory of its own."""

    def kernel(x: Any, y: Any, out: Any, total: Any) -> None:
        @pl.when(pl.program_id(2) == 0)
        def _() -> None:
            total[...] = jnp.zeros_like(total)

        total[...] += x[...] @ y[...]

        @pl.when(pl.program_id(2) == x_steps - 1)
        def _() -> None:
            out[...] = total[...]

    x_steps = x.shape[1] // 8
    return pl.pallas_call(
        kernel,
        grid=(x.shape[0] // 4, y.shape[1] // 8, x_steps),
        in_specs=[pl.BlockSpec((4, 8), lambda i, j, k: (i, k)), pl.BlockSpec((8, 8), lambda i, j, k: (k, j))],
        out_specs=pl.BlockSpec((4, 8), lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct((x.shape[0], y.shape[1]), x.dtype),
        scratch_shapes=[pltpu.VMEM((4, 8), jnp.float32)],
        interpret=True,
    )(x, y)


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels whose library does not let them be interpreted are."""
    monkeypatch.setattr(pl, "pallas_call", partial(pl.pallas_call, interpret=True))
    jax.clear_caches()
    yield
    jax.clear_caches()


def squared(attention: Callable[..., jax.Array]) -> Callable[..., Any]:
    """The value and the gradients of a function of attention."""
    return jax.value_and_grad(lambda q, k, v: (attention(q, k, v) ** 2).sum(), argnums=(0, 1, 2))


def splashed(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Of four heads of queries that share two of keys, every other one within a window; gradients in one kernel."""
    length = q.shape[2]
    shape = (length, length)
    heads = [masks.CausalMask(shape) if h % 2 else masks.LocalMask(shape, (128, 0), 0) for h in range(4)]
    names = ("q", "kv", "kv_compute", "q_dkv", "kv_dkv", "kv_dkv_compute")
    sizes: dict[str, Any] = {f"block_{name}": 128 for name in names}
    blocks = splash.BlockSizes(**sizes, use_fused_bwd_kernel=True)
    kernel: Any = splash.make_splash_mha(
        masks.MultiHeadMask(heads), block_sizes=blocks, head_shards=1, q_seq_shards=1, interpret=True
    )
    return jax.vmap(kernel)(q, k, v)


def gpu(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    sizes = gpu_attention.BlockSizes(*(32,) * 6)
    return gpu_attention.mha(q, k, v, None, causal=True, backward_pass_impl="triton", block_sizes=sizes, interpret=True)


def decoded(q: jax.Array, k: jax.Array, v: jax.Array, pages: jax.Array, **how: Any) -> jax.Array:
    """A token each of four examples of other lengths, by pages of 16 tokens."""
    lengths = jnp.array([3, 128, 77, 128], jnp.int32)
    return paged.paged_attention(q, k, v, lengths, pages, pages_per_compute_block=4, **how)


Q = normal(2, 4, 256, 32)
PAGED = (
    normal(4, 16, 32),
    normal(4, 32, 16, 32),
    normal(4, 32, 16, 32) / 2,
    jax.random.randint(jax.random.key(0), (4, 8), 0, 32),
)
KERNELS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "a product": (product, (normal(32, 16), normal(16, 32))),
    "looked up by its place": (looked_up, (jnp.arange(8.0), normal(32, 16))),
    "flash attention on TPUs": (squared(partial(flash.flash_attention, causal=True)), (Q, Q / 2, Q / 3)),
    "splash attention": (squared(splashed), (Q, normal(2, 2, 256, 32), normal(2, 2, 256, 32) / 3)),
    "attention on GPUs": (squared(gpu), (normal(2, 128, 4, 32), normal(2, 128, 4, 32) / 2, normal(2, 128, 4, 32) / 3)),
    "paged attention on TPUs": (partial(decoded, attn_logits_soft_cap=50.0), PAGED),
    "decoding on GPUs": (
        partial(decode_attention.gqa, interpret=True),
        (normal(2, 16, 32), normal(2, 256, 4, 32), normal(2, 256, 4, 32)),
    ),
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.usefixtures("interpreted")
def test_a_kernel_is_split_and_right(name: str) -> None:
    fn, args = KERNELS[name]
    plan = assert_same_as_single_device(fn, args, mesh=MESH)
    assert plan.replicated == ()
    assert plan.guessed == ()
    assert any(spec != P() for spec in jax.tree.leaves(plan.in_specs))


@pytest.mark.usefixtures("interpreted")
def test_attention_runs_in_microbatches_that_are_split() -> None:
    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        q, k, v = jnp.einsum("btd,dnhk->nbhtk", x, w)
        return (flash.flash_attention(q, k, v, causal=True) ** 2).mean()

    fn, args = jax.value_and_grad(loss), (normal(64, 3, 2, 32) / 8, normal(8, 128, 64))
    options = planner.Options(microbatches=2)
    plan = planner.plan(fn, args, topology=free_wires(8), devices=jax.devices(), options=options)
    assert plan.in_specs[1][0] is not None
    for mine, its in zip(jax.tree.leaves(plan(*args)), jax.tree.leaves(fn(*args)), strict=True):
        np.testing.assert_allclose(mine, its, rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("interpreted")
def test_attention_is_split_by_batch_heads_and_queries_where_its_mask_allows_it() -> None:
    def found(causal: bool) -> str:
        return rules(partial(flash.flash_attention, causal=causal), Q, Q, Q)[0]

    assert found(True).startswith("a b c d, a b e f, a b g h -> a b i j | replicate")
    assert found(False).startswith("a b (c d) e, a b f g, a b h i -> a b (c j) k | replicate")


def test_paged_attention_is_split_by_batch_and_heads_of_keys() -> None:
    (text,) = rules(decoded, *PAGED)
    assert text.startswith("a, (a b), 1, 1, a (c d) 1 e, c f g h, c i j k -> a (c l) 1 m")


def test_the_last_part_leaves_what_every_step_writes_anew() -> None:
    def kernel(x: Any, out: Any, last: Any) -> None:
        out[...] = 2 * x[...]
        last[...] = x[...]

    def fn(x: jax.Array) -> Any:
        return pl.pallas_call(
            kernel,
            grid=(8,),
            in_specs=[pl.BlockSpec((4, 16), lambda i: (i, 0))],
            out_specs=[pl.BlockSpec((4, 16), lambda i: (i, 0)), pl.BlockSpec((4, 16), lambda i: (0, 0))],
            out_shape=[X, jax.ShapeDtypeStruct((4, 16), jnp.float32)],
            interpret=True,
        )(x)

    plan = assert_same_as_single_device(fn, (normal(32, 16),), mesh=MESH)
    assert plan.in_specs == (P(("x", "y")),)


# ---------------------------------------------------------------- work


def work(fn: Callable[..., Any], *args: Any) -> list[tuple[float, float | None, bool]]:
    graph = build_graph(trace(fn, args))
    found = graph.of_kinds(("pallas_call",))
    return [(op_flops(graph, op), declared_bytes(graph, op), is_guessed(op)) for op in found]


def test_a_kernel_costs_what_its_author_estimates() -> None:
    estimate = pl.CostEstimate(flops=1000, transcendentals=24, bytes_accessed=4096)
    assert work(called(doubled, (8,), lambda i: (i, 0), cost_estimate=estimate), X) == [(1024.0, 4096.0, False)]


def test_without_an_estimate_its_body_is_counted_for_every_step_of_the_grid() -> None:
    (found,) = work(product, jax.ShapeDtypeStruct((32, 16), jnp.float32), jax.ShapeDtypeStruct((16, 32), jnp.float32))
    flops, moved, guessed = found
    adds = 8 * 4 * 2 * 4 * 8
    assert flops == 2 * 32 * 16 * 32 + adds
    # A block of x and of y for every step, one of the result for every block of it, in four bytes.
    assert moved == 4 * (64 * 32 + 64 * 64 + 32 * 32)
    assert not guessed


def test_a_causal_mask_spares_the_blocks_above_the_diagonal() -> None:
    q = jax.ShapeDtypeStruct((1, 1, 1024, 128), jnp.float32)
    backward = [work(squared(partial(flash.flash_attention, causal=causal)), q, q, q)[1][0] for causal in (True, False)]
    assert backward[0] / backward[1] == pytest.approx(36 / 64, rel=0.05)


def test_a_loop_whose_length_follows_from_data_is_guessed() -> None:
    def kernel(n: Any, x: Any, out: Any) -> None:
        out[...] = jax.lax.fori_loop(0, n[0], lambda _, y: 2 * y, x[...])

    def fn(n: jax.Array, x: jax.Array) -> jax.Array:
        return pl.pallas_call(kernel, out_shape=X, interpret=True)(n, x)

    assert work(fn, jax.ShapeDtypeStruct((1,), jnp.int32), X)[0][2]
