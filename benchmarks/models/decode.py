"""One decoding step of a Llama in plain JAX: a token per sequence against a donated cache of keys and values."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.models.base import Model, Size, Tree, arguments, seed
from benchmarks.models.language import parameters
from benchmarks.models.llama import CONFIGS, SMALL, LlamaConfig, attend, rms_norm, rope, shapes, swiglu


def decode(config: LlamaConfig, *, batch: int, size: Size = "small", name: str = "decode") -> Model:
    """A step (params, cache, tokens, position) -> (logits, cache).

    The cache holds "keys" and "values" of shape (layers, batch, max_len, kv_heads, head_dim), where max_len is the
    configuration's sequence; `tokens` has shape (batch,), the scalar `position` says where they stand.
    """

    def step(params: Tree, cache: Tree, tokens: jax.Array, position: jax.Array) -> tuple[jax.Array, Tree]:
        visible = jnp.arange(config.sequence)[None, :] <= position

        def block(x: jax.Array, layer_and_cache: Tree) -> tuple[jax.Array, Tree]:
            layer, keys, values = layer_and_cache
            h = rms_norm(x, layer["attention_norm"])
            query = rope(jnp.einsum("bsm,mhd->bshd", h, layer["wq"]), position[None], config.rope_base)
            key = rope(jnp.einsum("bsm,mgd->bsgd", h, layer["wk"]), position[None], config.rope_base)
            value = jnp.einsum("bsm,mgd->bsgd", h, layer["wv"])
            keys = lax.dynamic_update_slice(keys, key, (0, position, 0, 0))
            values = lax.dynamic_update_slice(values, value, (0, position, 0, 0))
            x = x + jnp.einsum("bshd,hdm->bsm", attend(query, keys, values, visible), layer["wo"])
            return x + swiglu(rms_norm(x, layer["ffn_norm"]), layer), (keys, values)

        x = params["embed"][tokens[:, None]]
        x, (keys, values) = lax.scan(block, x, (params["layers"], cache["keys"], cache["values"]))
        logits = rms_norm(x[:, 0], params["norm"]) @ params["head"]
        return logits.astype(jnp.float32), {"keys": keys, "values": values}

    def make() -> tuple[Tree, ...]:
        key_tokens, key = jax.random.split(seed())
        params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), parameters(shapes(config), key))
        shape = (config.layers, batch, config.sequence, config.kv_heads, config.head_dim)
        cache = {"keys": jnp.zeros(shape, jnp.bfloat16), "values": jnp.zeros(shape, jnp.bfloat16)}
        tokens = jax.random.randint(key_tokens, (batch,), 0, config.vocabulary)
        return params, cache, tokens, jnp.asarray(config.sequence // 2, jnp.int32)

    return Model(
        name=name,
        kind="inference",
        fn=step,
        args=arguments(make, size),
        donate_argnums=(1,),
        batch=batch,
        tokens=batch,
        notes=f"cache of {config.sequence} positions, {config.kv_heads} key-value heads",
    )


def build(size: Size = "small") -> Model:
    """Small: 4 layers, 16 sequences. Real: Llama-3-8B, 128 sequences of up to 8,192 tokens."""
    if size == "small":
        return decode(SMALL, batch=16, size=size)
    return decode(CONFIGS["8B"], batch=128, size=size)
