"""One decoding step of a Llama in plain JAX: a token per sequence against a donated cache of keys and values.

Programs keep their cache in several ways, all of them here (`Layout`), and write the new token at one position for all
sequences or at each one's own (`Positions`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.models.attention import attend
from benchmarks.models.base import Model, Size, Tree, arguments, seed
from benchmarks.models.language import parameters
from benchmarks.models.llama import CONFIGS, SMALL, LlamaConfig, rms_norm, rope, shapes, swiglu

Layout = Literal["scanned", "carried", "indexed", "unrolled"]
"""How a step goes over its layers and their cache: "scanned", the cache of a layer is a scanned input, the updated one a
scanned output; "carried", all of the cache is in the loop's carry, updated and read at the layer; "indexed", the same in a
`fori_loop` that takes the weights by index, too; "unrolled", layers are written out, each updating the whole cache."""

Positions = Literal["one", "each"]
"""All sequences are at "one" position (a scalar), or "each" at its own (an array of shape (batch,))."""


def decode(
    config: LlamaConfig,
    *,
    batch: int,
    size: Size = "small",
    name: str = "decode",
    layout: Layout = "scanned",
    positions: Positions = "one",
    donated: bool = True,
    quantized: bool = False,
) -> Model:
    """A step (params, cache, tokens, position) -> (logits, cache).

    The cache holds "keys" and "values" of shape (layers, batch, max_len, kv_heads, head_dim), where max_len is the
    configuration's sequence; `tokens` has shape (batch,), `position` says where they stand. Unless the cache is `donated`
    the step returns another. `quantized`: each holds "whole" numbers of 8 bits and a "scale" for every head and position.
    """

    def project(layer: Tree, x: jax.Array, position: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        h = rms_norm(x, layer["attention_norm"])
        query = _rotated(jnp.einsum("bsm,mhd->bshd", h, layer["wq"]), position, config.rope_base)
        key = _rotated(jnp.einsum("bsm,mgd->bsgd", h, layer["wk"]), position, config.rope_base)
        return query, key, jnp.einsum("bsm,mgd->bsgd", h, layer["wv"])

    def mixed(layer: Tree, x: jax.Array, query: jax.Array, keys: jax.Array, values: jax.Array, visible: jax.Array):
        x = x + jnp.einsum("bshd,hdm->bsm", attend(query, keys, values, visible), layer["wo"])
        return x + swiglu(rms_norm(x, layer["ffn_norm"]), layer)

    def step(params: Tree, cache: Tree, tokens: jax.Array, position: jax.Array) -> tuple[jax.Array, Tree]:
        visible = jnp.arange(config.sequence)[None, :] <= position[..., None, None, None, None]

        def scanned(x: jax.Array, layer_and_cache: Tree) -> tuple[jax.Array, Tree]:
            layer, keys, values = layer_and_cache
            query, key, value = project(layer, x, position)
            keys, values = (
                jax.tree.map(lambda part: part[0], _kept(jax.tree.map(lambda part: part[None], old), new, 0, position))
                for old, new in ((keys, key), (values, value))
            )
            return mixed(layer, x, query, _read(keys), _read(values), visible), (keys, values)

        def carried(carry: Tree, layer: Tree, n: jax.Array | int) -> Tree:
            x, keys, values = carry
            query, key, value = project(layer, x, position)
            keys, values = _kept(keys, key, n, position), _kept(values, value, n, position)
            own_keys, own_values = (_read(jax.tree.map(lambda part: part[n], of)) for of in (keys, values))
            return mixed(layer, x, query, own_keys, own_values, visible), keys, values

        layers, keys, values = params["layers"], cache["keys"], cache["values"]
        x = params["embed"][tokens[:, None]]
        match layout:
            case "scanned":
                x, (keys, values) = lax.scan(scanned, x, (layers, keys, values))
            case "carried":
                (x, keys, values), _ = lax.scan(
                    lambda carry, xs: (carried(carry, *xs), None),
                    (x, keys, values),
                    (layers, jnp.arange(config.layers)),
                )
            case "indexed":
                x, keys, values = lax.fori_loop(
                    0, config.layers, lambda n, carry: carried(carry, _taken(layers, n), n), (x, keys, values)
                )
            case "unrolled":
                for n in range(config.layers):
                    x, keys, values = carried((x, keys, values), layers[n], n)
        logits = rms_norm(x[:, 0], params["norm"]) @ params["head"]
        return logits.astype(jnp.float32), {"keys": keys, "values": values}

    config = replace(config, scan=layout != "unrolled")

    def make() -> tuple[Tree, ...]:
        key_tokens, key = jax.random.split(seed())
        params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), parameters(shapes(config), key))
        shape = (config.layers, batch, config.sequence, config.kv_heads, config.head_dim)
        cache = {"keys": _empty(shape, quantized), "values": _empty(shape, quantized)}
        tokens = jax.random.randint(key_tokens, (batch,), 0, config.vocabulary)
        position = jnp.asarray(config.sequence // 2, jnp.int32)
        if positions == "each":
            position = jnp.arange(batch, dtype=jnp.int32) % config.sequence
        return params, cache, tokens, position

    return Model(
        name=name,
        kind="inference",
        fn=step,
        args=arguments(make, size),
        donate_argnums=(1,) if donated else (),
        batch=batch,
        tokens=batch,
        notes=f"cache of {config.sequence} positions, {config.kv_heads} key-value heads, {layout}",
    )


def _taken(layers: Tree, n: jax.Array) -> Tree:
    """The weights of layer n of a stack."""
    return jax.tree.map(lambda stack: lax.dynamic_index_in_dim(stack, n, keepdims=False), layers)


def _rotated(x: jax.Array, position: jax.Array, base: float) -> jax.Array:
    """x of shape (batch, 1, heads, head_dim) as `rope` rotates it at one position or at each sequence's own."""
    if not position.ndim:
        return rope(x, position[None], base)
    return jax.vmap(lambda one, at: rope(one[None], at[None], base)[0])(x, position)


def _empty(shape: tuple[int, ...], quantized: bool) -> Any:
    """A cache of nothing."""
    if not quantized:
        return jnp.zeros(shape, jnp.bfloat16)
    return {"whole": jnp.zeros(shape, jnp.int8), "scale": jnp.zeros(shape[:-1], jnp.float32)}


def _kept(cache: Any, new: jax.Array, layer: jax.Array | int, position: jax.Array) -> Any:
    """A cache with `new`, of one position, written into a layer."""
    if isinstance(cache, jax.Array):
        return _written(cache, new, layer, position)
    scale = jnp.abs(new).max(-1).astype(jnp.float32) / 127
    whole = jnp.round(new / jnp.maximum(scale, 1e-9)[..., None]).astype(jnp.int8)
    return {
        "whole": _written(cache["whole"], whole, layer, position),
        "scale": _written(cache["scale"], scale, layer, position),
    }


def _read(cache: Any) -> jax.Array:
    """What a layer's cache holds."""
    if isinstance(cache, jax.Array):
        return cache
    return cache["whole"].astype(jnp.bfloat16) * cache["scale"][..., None].astype(jnp.bfloat16)


def _written(cache: jax.Array, new: jax.Array, layer: jax.Array | int, position: jax.Array) -> jax.Array:
    """A part of a cache, of shape (layers, batch, max_len, ...), with `new`, of one position, written into a layer."""
    if not position.ndim:
        return lax.dynamic_update_slice(cache, new[None], (layer, 0, position, *(0 for _ in cache.shape[3:])))
    return cache.at[layer, jnp.arange(cache.shape[1]), position].set(new[:, 0])


def build(size: Size = "small") -> Model:
    """Small: 4 layers, 16 sequences. Real: Llama-3-8B, 128 sequences of up to 8,192 tokens."""
    if size == "small":
        return decode(SMALL, batch=16, size=size)
    return decode(CONFIGS["8B"], batch=128, size=size)
