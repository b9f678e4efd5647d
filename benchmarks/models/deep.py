"""A deep and narrow GPT in plain JAX: layers written out one after the other, no biases, each rematerialised; bf16 compute over f32
parameters, trained by AdamW with f32 moments and no decay of norms.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax
from jax import lax

from benchmarks.models.base import Model, Size, Tree, arguments, matrices_only, seed, train_step
from benchmarks.models.llama import cross_entropy


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepConfig:
    """Sizes of a GPT; the feed-forward layer is four times as wide as the model."""

    width: int
    layers: int
    heads: int
    vocabulary: int = 51200
    sequence: int = 1024


# The depth ladder of Aceso (EuroSys'24) goes up to 1,024 layers of this width: https://doi.org/10.1145/3627703.3629554
REAL = DeepConfig(width=512, layers=1024, heads=8)
SMALL = DeepConfig(width=64, layers=4, heads=8, vocabulary=256, sequence=32)


def init(config: DeepConfig, key: jax.Array) -> Tree:
    """f32 parameters, those of the layers as a list of one tree per layer."""
    c = config
    layer = {
        "attention_norm": (c.width,),
        "qkv": (c.width, 3, c.heads, c.width // c.heads),
        "out": (c.heads, c.width // c.heads, c.width),
        "mlp_norm": (c.width,),
        "up": (c.width, 4 * c.width),
        "down": (4 * c.width, c.width),
    }
    shapes = {
        "embed": (c.vocabulary, c.width),
        "positions": (c.sequence, c.width),
        "layers": [layer] * c.layers,
        "norm": (c.width,),
        "head": (c.width, c.vocabulary),
    }
    leaves, tree = jax.tree.flatten(shapes, is_leaf=lambda node: isinstance(node, tuple))
    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(
        tree, [0.02 * jax.random.normal(k, shape) for k, shape in zip(keys, leaves, strict=True)]
    )


def layer_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    """x without its mean, over its standard deviation, along the last dim, times 1 + `scale`; computed in f32, of the type
    of x.
    """
    y = x.astype(jnp.float32)
    y = y - jnp.mean(y, axis=-1, keepdims=True)
    y = y * lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + 1e-5)
    return (y * (1 + scale)).astype(x.dtype)


def block(x: jax.Array, layer: Tree, mask: jax.Array) -> jax.Array:
    """Pre-norm attention and feed-forward: x of shape (batch, sequence, width), mask of (sequence, sequence)."""
    layer = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), layer)
    h = layer_norm(x, layer["attention_norm"])
    qkv = jnp.einsum("bsm,mthd->tbshd", h, layer["qkv"])
    query, key, value = qkv[0], qkv[1], qkv[2]
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=jnp.float32)
    weights = jax.nn.softmax(scores * query.shape[-1] ** -0.5 + mask).astype(value.dtype)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, value)
    x = x + jnp.einsum("bshd,hdm->bsm", mixed, layer["out"])
    h = layer_norm(x, layer["mlp_norm"])
    return x + jnp.tanh(h @ layer["up"]) @ layer["down"]


def deep(config: DeepConfig, *, batch: int, size: Size = "small", name: str = "deep") -> Model:
    """A train step on `batch` sequences; the batch is {"ids", "labels"}, each of shape (batch, sequence)."""
    optimizer = optax.adamw(3e-4, b2=0.95, weight_decay=0.1, mask=matrices_only)

    def loss(params: Tree, batch: Tree) -> jax.Array:
        ids = batch["ids"]
        position = jnp.arange(config.sequence)
        mask = jnp.where(position[:, None] >= position, 0.0, -1e30)
        x = (params["embed"][ids] + params["positions"]).astype(jnp.bfloat16)
        for layer in params["layers"]:
            x = jax.checkpoint(block)(x, layer, mask)
        hidden = layer_norm(x, params["norm"])
        head = params["head"].astype(jnp.bfloat16)
        return cross_entropy(jnp.dot(hidden, head, preferred_element_type=jnp.float32), batch["labels"])

    def make() -> tuple[Tree, ...]:
        key_ids, key = jax.random.split(seed())
        tokens = jax.random.randint(key_ids, (batch, config.sequence + 1), 0, config.vocabulary)
        params = init(config, key)
        return params, optimizer.init(params), {"ids": tokens[:, :-1], "labels": tokens[:, 1:]}

    return Model(
        name=name,
        kind="train",
        fn=train_step(loss, optimizer),
        args=arguments(make, size),
        donate_argnums=(0, 1),
        batch=batch,
        tokens=batch * config.sequence,
        notes=f"{config.layers} layers written out",
    )


def build(size: Size = "small") -> Model:
    """Small: 4 layers, 64 wide. Real: 1,024 layers of 512, 64 sequences of 1,024."""
    if size == "small":
        return deep(SMALL, batch=16, size=size)
    return deep(REAL, batch=64, size=size)
