"""A vision transformer: Flax nnx, mean-pooled, AdamW (Beyer et al. 2022, https://arxiv.org/abs/2205.01580)."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from benchmarks.models.base import Model, Size, Tree, arguments, seed, trained
from benchmarks.models.checkpoints import remat_call
from benchmarks.models.modules import module
from benchmarks.models.places import activation, at_use


@dataclass(frozen=True, slots=True, kw_only=True)
class ViTConfig:
    """Sizes of a vision transformer; `remat`: what a layer makes is computed again in the backward pass."""

    width: int
    layers: int
    heads: int
    ffn: int
    patch: int
    image: int
    classes: int
    dtype: str = "float32"
    remat: bool = False


HUGE = ViTConfig(
    width=1280,
    layers=32,
    heads=16,
    ffn=5120,
    patch=14,
    image=224,
    classes=1000,
    dtype="bfloat16",
)
"""ViT-H/14 (https://arxiv.org/abs/2010.11929)."""
LARGE = ViTConfig(
    width=1024, layers=24, heads=16, ffn=4096, patch=16, image=224, classes=1000, dtype="bfloat16", remat=True
)
"""ViT-L/16, a checkpoint per layer."""
SMALL = ViTConfig(width=64, layers=2, heads=8, ffn=128, patch=8, image=32, classes=16)


class Block(nnx.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(self, config: ViTConfig, *, rngs: nnx.Rngs) -> None:
        c = config
        self.attention_norm = nnx.LayerNorm(c.width, dtype=c.dtype, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(c.heads, c.width, dtype=c.dtype, decode=False, rngs=rngs)
        self.mlp_norm = nnx.LayerNorm(c.width, dtype=c.dtype, rngs=rngs)
        self.up = nnx.Linear(c.width, c.ffn, dtype=c.dtype, rngs=rngs)
        self.down = nnx.Linear(c.ffn, c.width, dtype=c.dtype, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = activation(x + self.attention(self.attention_norm(x)), "residual")
        return x + self.down(activation(nnx.gelu(self.up(self.mlp_norm(x))), "hidden"))


class ViT(nnx.Module):
    """Images of shape (batch, image, image, 3) -> logits of shape (batch, classes)."""

    def __init__(self, config: ViTConfig, *, rngs: nnx.Rngs) -> None:
        c = config
        window = (c.patch, c.patch)
        self.patches = nnx.Conv(3, c.width, window, strides=window, padding="VALID", dtype=c.dtype, rngs=rngs)
        count = (c.image // c.patch) ** 2
        self.positions = nnx.Param(0.02 * jax.random.normal(rngs.params(), (count, c.width)))
        self.blocks = nnx.List([Block(c, rngs=rngs) for _ in range(c.layers)])
        self.remat = c.remat
        self.norm = nnx.LayerNorm(c.width, dtype=c.dtype, rngs=rngs)
        self.head = nnx.Linear(c.width, c.classes, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        x = self.patches(images)
        x = x.reshape(x.shape[0], -1, x.shape[-1]) + self.positions[...].astype(x.dtype)
        layer = remat_call(Block.__call__, remat=self.remat)
        for block in self.blocks:
            x = layer(block, x)
        return self.head(self.norm(x).mean(axis=1).astype(jnp.float32))


def vit(config: ViTConfig, *, batch: int, size: Size = "small", name: str = "vit") -> Model:
    """A train step on {"images", "labels"}; the parameters are an `nnx.State`."""
    optimizer = optax.adamw(1e-3, weight_decay=1e-4)

    graph, initial = nnx.split(module(lambda rngs: ViT(config, rngs=rngs), size))

    def loss(params: Tree, batch: Tree) -> jax.Array:
        logits = nnx.merge(graph, at_use(params, config.dtype))(batch["images"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"]).mean()

    def make(params: Tree) -> tuple[Tree, ...]:
        key_images, key_labels = jax.random.split(seed())
        data = {
            "images": jax.random.normal(key_images, (batch, config.image, config.image, 3)),
            "labels": jax.random.randint(key_labels, (batch,), 0, config.classes),
        }
        return params, optimizer.init(params), data

    return trained(
        name,
        loss,
        optimizer,
        arguments(make, size, initial),
        batch=batch,
        tokens=batch,
        notes=f"{config.layers} layers written out, {config.width} wide, {config.image} pixels",
    )


def build(size: Size = "small") -> Model:
    """Small: 2 layers, 64 wide, 32 x 32 pixels. Real: ViT-H/14, 1,024 images of 224 x 224."""
    if size == "small":
        return vit(SMALL, batch=16, size=size)
    return vit(HUGE, batch=1024, size=size)
