"""T5 in plain JAX: an encoder and a decoder, each of stacked layers under `lax.scan`, each layer rematerialised; biases by
relative position that all layers of a stack share; bf16 compute over f32 parameters, trained by AdamW and clipping.

Architecture: Raffel et al. 2020, https://arxiv.org/abs/1910.10683 (the layers of its first release: ReLU, tied embeddings).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from benchmarks.models.base import Model, Size, Tree, arguments, matrices_only, seed, trained
from benchmarks.models.checkpoints import scanned
from benchmarks.models.language import cross_entropy, parameters
from benchmarks.models.llama import rms_norm
from benchmarks.models.places import activation, at_use


@dataclass(frozen=True, slots=True, kw_only=True)
class T5Config:
    """Sizes of a T5: layers of each of the stacks, and the lengths of the sequences that they read."""

    width: int
    layers: int
    heads: int
    head_dim: int
    ffn: int
    source: int
    target: int
    vocabulary: int = 32128
    buckets: int = 32
    farthest: int = 128


LARGE = T5Config(width=1024, layers=24, heads=16, head_dim=64, ffn=4096, source=512, target=512)
"""T5-large."""
SMALL = T5Config(
    width=64, layers=2, heads=8, head_dim=8, ffn=128, source=32, target=16, vocabulary=256, buckets=8, farthest=16
)


def shapes(config: T5Config) -> Tree:
    """The parameters; those of the layers are stacked in front."""
    c = config
    attention = {
        "wq": (c.layers, c.width, c.heads, c.head_dim),
        "wk": (c.layers, c.width, c.heads, c.head_dim),
        "wv": (c.layers, c.width, c.heads, c.head_dim),
        "wo": (c.layers, c.heads, c.head_dim, c.width),
        "norm": (c.layers, c.width),
    }
    mlp = {"up": (c.layers, c.width, c.ffn), "down": (c.layers, c.ffn, c.width), "norm": (c.layers, c.width)}
    encoder = {"self": attention, "mlp": mlp}
    return {
        "embed": (c.vocabulary, c.width),
        "encoder": {"layers": encoder, "bias": (c.buckets, c.heads), "norm": (c.width,)},
        "decoder": {"layers": {**encoder, "cross": attention}, "bias": (c.buckets, c.heads), "norm": (c.width,)},
    }


def position_buckets(config: T5Config, length: int, *, both_ways: bool) -> jax.Array:
    """The bucket of the distance of each pair of positions, (length, length): near ones each, far ones by powers."""
    positions = jnp.arange(length)
    distance = positions[:, None] - positions
    buckets, offset = config.buckets, 0
    if both_ways:
        buckets //= 2
        offset = jnp.where(distance < 0, buckets, 0)
        distance = jnp.abs(distance)
    exact = buckets // 2
    powers = jnp.log(jnp.maximum(distance, 1) / exact) / math.log(config.farthest / exact)
    far = jnp.minimum(exact + (powers * (buckets - exact)).astype(int), buckets - 1)
    return offset + jnp.where(distance < exact, jnp.maximum(distance, 0), far)


def attention(x: jax.Array, read: jax.Array, layer: Tree, bias: jax.Array | None) -> jax.Array:
    """x of shape (b, q, m) attends to `read` of (b, k, m); `bias` of (h, q, k) is added to the scores; softmax in f32."""
    query = jnp.einsum("bqm,mhd->bqhd", x, layer["wq"])
    key = jnp.einsum("bkm,mhd->bkhd", read, layer["wk"])
    value = jnp.einsum("bkm,mhd->bkhd", read, layer["wv"])
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=jnp.float32)
    weights = jax.nn.softmax(scores if bias is None else scores + bias).astype(value.dtype)
    mixed = activation(jnp.einsum("bhqk,bkhd->bqhd", weights, value), "attention")
    return jnp.einsum("bqhd,hdm->bqm", mixed, layer["wo"])


def stack(x: jax.Array, params: Tree, bias: jax.Array, read: jax.Array | None = None) -> jax.Array:
    """The layers of one stack over x of shape (batch, length, width); those of the decoder attend to what they `read`."""

    def block(x: jax.Array, layer: Tree) -> tuple[jax.Array, None]:
        layer = at_use(jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), layer))
        h = rms_norm(x, layer["self"]["norm"])
        x = x + attention(h, h, layer["self"], bias)
        if read is not None:
            x = x + attention(rms_norm(x, layer["cross"]["norm"]), read, layer["cross"], None)
        x = activation(x, "residual")
        h = activation(jax.nn.relu(rms_norm(x, layer["mlp"]["norm"]) @ layer["mlp"]["up"]), "hidden")
        return x + h @ layer["mlp"]["down"], None

    x = scanned(block, x, params["layers"])
    return rms_norm(x, params["norm"])


def forward(config: T5Config, params: Tree, source: jax.Array, target: jax.Array) -> jax.Array:
    """f32 logits of shape (batch, target length, vocabulary) from ids of shape (batch, length)."""
    embed = params["embed"].astype(jnp.bfloat16)

    def bias(name: str, length: int, *, both_ways: bool) -> jax.Array:
        table = params[name]["bias"][position_buckets(config, length, both_ways=both_ways)]
        return jnp.moveaxis(table, -1, 0)

    read = stack(embed[source], params["encoder"], bias("encoder", config.source, both_ways=True))
    causal = jnp.where(jnp.tri(config.target, dtype=bool), bias("decoder", config.target, both_ways=False), -1e30)
    hidden = stack(embed[target], params["decoder"], causal, read)
    return jnp.einsum("btm,vm->btv", hidden * config.width**-0.5, embed, preferred_element_type=jnp.float32)


def t5(config: T5Config, *, batch: int, size: Size = "small", name: str = "t5") -> Model:
    """A train step on {"source", "target", "labels"}, ids of shape (batch, length)."""
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3, weight_decay=0.1, mask=matrices_only))

    def loss(params: Tree, batch: Tree) -> jax.Array:
        return cross_entropy(forward(config, params, batch["source"], batch["target"]), batch["labels"])

    def make() -> tuple[Tree, ...]:
        key_source, key_target, key = jax.random.split(seed(), 3)
        source = jax.random.randint(key_source, (batch, config.source), 0, config.vocabulary)
        target = jax.random.randint(key_target, (batch, config.target + 1), 0, config.vocabulary)
        params = parameters(shapes(config), key)
        return params, optimizer.init(params), {"source": source, "target": target[:, :-1], "labels": target[:, 1:]}

    return trained(
        name,
        loss,
        optimizer,
        arguments(make, size),
        batch=batch,
        tokens=batch * config.target,
        notes=f"{config.layers} layers in each stack, {config.source} tokens read and {config.target} written",
    )


def build(size: Size = "small") -> Model:
    """Small: 2 layers in each stack, 64 wide. Real: T5-large, 1,024 pairs of 512 tokens each."""
    if size == "small":
        return t5(SMALL, batch=16, size=size)
    return t5(LARGE, batch=1024, size=size)
