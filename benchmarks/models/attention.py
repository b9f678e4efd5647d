"""Attention: in plain JAX, all queries at once or in blocks; or as a kernel, of Pallas on TPUs and of cuDNN on GPUs.

All take queries of shape (batch, sequence, heads, head_dim), keys and values of (batch, sequence, kv_heads, head_dim), and
return what the queries are mixed to, in their shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any, Literal
from unittest import mock

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.models.places import on_parts
from cost_models.hardware import Platform

Kernel = Literal["splash", "cudnn"]
KERNELS: Mapping[Platform, Kernel] = {"tpu": "splash", "gpu": "cudnn"}
"""The kernel that people use, by platform."""
CUDNN_VERSION = 91000
BLOCK = 512
"""Queries and keys in a block of the splash kernel, at most: MaxText's `sa_block_q` and its fellows."""


def causal_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, *, block: int | None = None, kernel: Kernel | None = None
) -> jax.Array:
    """Causal attention: by a kernel, or `block` queries at a time in a loop that keeps no scores for the backward pass."""
    if kernel is not None:
        return on_parts(splash if kernel == "splash" else cudnn, query, key, value)
    batch, length, heads, head_dim = query.shape
    positions = jnp.arange(length)
    if block is None or block >= length:
        return attend(query, key, value, positions[:, None] >= positions)

    @jax.checkpoint
    def one(start: jax.Array, part: jax.Array) -> jax.Array:
        return attend(part, key, value, (start + jnp.arange(block))[:, None] >= positions)

    parts = jnp.moveaxis(query.reshape(batch, length // block, block, heads, head_dim), 1, 0)
    mixed = lax.map(lambda xs: one(*xs), (jnp.arange(0, length, block), parts))
    return jnp.moveaxis(mixed, 0, 1).reshape(query.shape)


def attend(query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array) -> jax.Array:
    """Grouped-query attention under a mask of shape (queries, keys); softmax in f32."""
    batch, length, heads, head_dim = query.shape
    groups = key.shape[2]
    grouped = query.reshape(batch, length, groups, heads // groups, head_dim)
    scores = jnp.einsum("bqgrd,bkgd->bgrqk", grouped, key, preferred_element_type=jnp.float32) * head_dim**-0.5
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e30)).astype(value.dtype)
    return jnp.einsum("bgrqk,bkgd->bqgrd", weights, value).reshape(query.shape)


def splash(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Causal attention by JAX's splash kernel (`jax.experimental.pallas.ops.tpu.splash_attention`), as MaxText calls it."""
    scaled = query * query.shape[-1] ** -0.5
    heads_first = [jnp.swapaxes(x, 1, 2) for x in (scaled, key, value)]
    kernel = _splash_kernel(query.shape[2], query.shape[1])
    return jnp.swapaxes(jax.vmap(kernel)(*heads_first), 1, 2)


@cache
def _splash_kernel(heads: int, length: int) -> Any:
    # Pallas takes a second to import, which programs without kernels need not wait for.
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel, splash_attention_mask

    block = min(BLOCK, length)
    names = ("q", "kv", "kv_compute", "q_dkv", "kv_dkv", "kv_dkv_compute", "q_dq", "kv_dq")
    sizes: dict[str, Any] = {f"block_{name}": block for name in names}
    mask = splash_attention_mask.MultiHeadMask([splash_attention_mask.CausalMask((length, length))] * heads)
    with jax.ensure_compile_time_eval():
        return splash_attention_kernel.make_splash_mha(
            mask, block_sizes=splash_attention_kernel.BlockSizes(**sizes), head_shards=1, q_seq_shards=1
        )


def cudnn(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Causal attention by cuDNN, which JAX else traces only where it is installed."""
    module = import_module("jax._src.cudnn.fused_attention_stablehlo")
    with mock.patch.object(module, "check_cudnn_version", return_value=CUDNN_VERSION):
        return jax.nn.dot_product_attention(query, key, value, is_causal=True, implementation="cudnn")
