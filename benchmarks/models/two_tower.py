"""Two towers, of images and of texts, brought together by a contrastive loss; Flax nnx, AdamW.

The layout of CLIP's (Radford et al. 2021, https://arxiv.org/abs/2103.00020): each image is to be nearest to its own text
of all texts of the batch, and each text to its own image.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from benchmarks.models.base import Model, Size, Tree, arguments, seed, trained
from benchmarks.models.modules import module
from benchmarks.models.places import at_use
from benchmarks.models.vit import Block, ViT, ViTConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class TextConfig:
    """Sizes of the tower of texts."""

    width: int
    layers: int
    heads: int
    length: int
    vocabulary: int

    def blocks(self, dtype: str) -> ViTConfig:
        """The sizes of its blocks."""
        return ViTConfig(
            width=self.width,
            layers=self.layers,
            heads=self.heads,
            ffn=4 * self.width,
            patch=1,
            image=1,
            classes=1,
            dtype=dtype,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoTowerConfig:
    """The towers; the `classes` of the one of images are the dims of what both give."""

    images: ViTConfig
    texts: TextConfig
    temperature: float = 0.07


LARGE = TwoTowerConfig(
    images=ViTConfig(width=1024, layers=24, heads=16, ffn=4096, patch=14, image=224, classes=768, dtype="bfloat16"),
    texts=TextConfig(width=768, layers=12, heads=12, length=77, vocabulary=49408),
)
"""CLIP ViT-L/14."""
SMALL = TwoTowerConfig(
    images=ViTConfig(width=32, layers=2, heads=2, ffn=64, patch=8, image=32, classes=16),
    texts=TextConfig(width=16, layers=1, heads=2, length=8, vocabulary=64),
)


class TextTower(nnx.Module):
    """Texts of shape (batch, length) -> (batch, dims)."""

    def __init__(self, config: TwoTowerConfig, *, rngs: nnx.Rngs) -> None:
        c, dtype = config.texts, config.images.dtype
        self.embed = nnx.Embed(c.vocabulary, c.width, dtype=dtype, rngs=rngs)
        self.positions = nnx.Param(0.02 * jax.random.normal(rngs.params(), (c.length, c.width)))
        self.blocks = nnx.List([Block(c.blocks(dtype), rngs=rngs) for _ in range(c.layers)])
        self.norm = nnx.LayerNorm(c.width, dtype=dtype, rngs=rngs)
        self.head = nnx.Linear(c.width, config.images.classes, rngs=rngs)

    def __call__(self, texts: jax.Array) -> jax.Array:
        x = self.embed(texts)
        x = x + self.positions[...].astype(x.dtype)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, -1].astype(jnp.float32))


class TwoTower(nnx.Module):
    """Images and texts -> how near each image is to each text, of shape (batch, batch)."""

    def __init__(self, config: TwoTowerConfig, *, rngs: nnx.Rngs) -> None:
        self.images, self.texts = ViT(config.images, rngs=rngs), TextTower(config, rngs=rngs)
        self.scale = nnx.Param(jnp.log(1 / config.temperature))

    def __call__(self, images: jax.Array, texts: jax.Array) -> jax.Array:
        seen, read = self.images(images), self.texts(texts)
        seen, read = (x / jnp.linalg.norm(x, axis=-1, keepdims=True) for x in (seen, read))
        return jnp.exp(self.scale[...]) * seen @ read.T


def two_tower(config: TwoTowerConfig, *, batch: int, size: Size = "small", name: str = "two towers") -> Model:
    """A train step on {"images", "texts"}; the parameters are an `nnx.State`."""
    optimizer = optax.adamw(1e-3)

    graph, initial = nnx.split(module(lambda rngs: TwoTower(config, rngs=rngs), size))

    def loss(params: Tree, batch: Tree) -> jax.Array:
        near = nnx.merge(graph, at_use(params, config.images.dtype))(batch["images"], batch["texts"])
        own = jnp.arange(near.shape[0])
        of_images = optax.softmax_cross_entropy_with_integer_labels(near, own)
        of_texts = optax.softmax_cross_entropy_with_integer_labels(near.T, own)
        return (of_images + of_texts).mean()

    def make(params: Tree) -> tuple[Tree, ...]:
        key_images, key_texts = jax.random.split(seed())
        side = config.images.image
        data = {
            "images": jax.random.normal(key_images, (batch, side, side, 3)),
            "texts": jax.random.randint(key_texts, (batch, config.texts.length), 0, config.texts.vocabulary),
        }
        return params, optimizer.init(params), data

    return trained(
        name,
        loss,
        optimizer,
        arguments(make, size, initial),
        batch=batch,
        tokens=batch,
        notes=f"{config.images.layers} layers for images and {config.texts.layers} for texts, written out",
    )


def build(size: Size = "small") -> Model:
    """Small: two layers and one. Real: CLIP ViT-L/14, 8,192 pairs."""
    if size == "small":
        return two_tower(SMALL, batch=16, size=size)
    return two_tower(LARGE, batch=8192, size=size)
