"""A deep and narrow GPT in plain JAX: layers written out one after the other, each rematerialised; no biases; bf16 compute
over f32 parameters, trained by AdamW with f32 moments and no decay of norms.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.models.attention import Kernel, causal_attention
from benchmarks.models.base import Model, Size, Tree
from benchmarks.models.checkpoints import checkpoint
from benchmarks.models.language import language_model
from benchmarks.models.places import activation, at_use


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepConfig:
    """Sizes of a GPT; the feed-forward layer is four times as wide as the model; a `kernel` may compute its attention."""

    width: int
    layers: int
    heads: int
    vocabulary: int = 51200
    sequence: int = 1024
    kernel: Kernel | None = None


# The depth ladder of Aceso (EuroSys'24) goes up to 1,024 layers of this width: https://doi.org/10.1145/3627703.3629554
REAL = DeepConfig(width=512, layers=1024, heads=8)
SMALL = DeepConfig(width=64, layers=4, heads=8, vocabulary=256, sequence=32)


def shapes(config: DeepConfig) -> Tree:
    """The parameters, those of the layers as a list of one tree per layer."""
    c = config
    layer = {
        "attention_norm": (c.width,),
        "qkv": (c.width, 3, c.heads, c.width // c.heads),
        "out": (c.heads, c.width // c.heads, c.width),
        "mlp_norm": (c.width,),
        "up": (c.width, 4 * c.width),
        "down": (4 * c.width, c.width),
    }
    return {
        "embed": (c.vocabulary, c.width),
        "positions": (c.sequence, c.width),
        "layers": [layer] * c.layers,
        "norm": (c.width,),
        "head": (c.width, c.vocabulary),
    }


def layer_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    """x without its mean, over its standard deviation, along the last dim, times `scale`; in f32, of the type of x."""
    y = x.astype(jnp.float32)
    y = y - jnp.mean(y, axis=-1, keepdims=True)
    y = y * lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + 1e-5)
    return (y * scale).astype(x.dtype)


def block(x: jax.Array, layer: Tree, mask: jax.Array, kernel: Kernel | None = None) -> jax.Array:
    """Pre-norm attention and feed-forward: x of shape (batch, sequence, width), mask of (sequence, sequence)."""
    layer = at_use(jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), layer))
    h = layer_norm(x, layer["attention_norm"])
    qkv = jnp.einsum("bsm,mthd->tbshd", h, layer["qkv"])
    query, key, value = qkv[0], qkv[1], qkv[2]
    if kernel is None:
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=jnp.float32)
        weights = jax.nn.softmax(scores * query.shape[-1] ** -0.5 + mask).astype(value.dtype)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, value)
    else:
        mixed = causal_attention(query, key, value, kernel=kernel)
    mixed = activation(mixed, "attention")
    x = activation(x + jnp.einsum("bshd,hdm->bsm", mixed, layer["out"]), "residual")
    h = layer_norm(x, layer["mlp_norm"])
    return x + jnp.tanh(h @ layer["up"]) @ layer["down"]


def forward(config: DeepConfig, params: Tree, ids: jax.Array) -> jax.Array:
    """bf16 hidden states of shape (batch, sequence, width) before the head."""
    position = jnp.arange(ids.shape[1])
    mask = jnp.where(position[:, None] >= position, 0.0, -1e30)
    x = (params["embed"][ids] + params["positions"]).astype(jnp.bfloat16)
    for layer in params["layers"]:
        x = checkpoint(partial(block, kernel=config.kernel))(x, layer, mask)
    return layer_norm(x, params["norm"])


def deep(config: DeepConfig, *, batch: int, size: Size = "small", name: str = "deep") -> Model:
    """A train step on `batch` sequences; the batch is {"ids", "labels"}, each of shape (batch, sequence)."""
    return language_model(
        name,
        partial(forward, config),
        shapes(config),
        vocabulary=config.vocabulary,
        sequence=config.sequence,
        batch=batch,
        size=size,
        clipped=False,
        notes=f"{config.layers} layers written out",
    )


def build(size: Size = "small") -> Model:
    """Small: 4 layers, 64 wide. Real: 1,024 layers of 512, 64 sequences of 1,024."""
    if size == "small":
        return deep(SMALL, batch=16, size=size)
    return deep(REAL, batch=64, size=size)
