"""A transformer from latents to latents with long skips: what the first half gives, the second half reads; nnx, AdamW.

The layout of U-ViT's (Bao et al. 2023, https://arxiv.org/abs/2209.12152): the output of the first block is read by the
last, that of the second by the last but one, and so on; times and texts are tokens beside the patches.
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
from benchmarks.models.unet import noised, waves
from benchmarks.models.vit import Block, ViTConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class LongSkipsConfig(ViTConfig):
    """Sizes of the blocks (an odd number of layers), of the latents (`classes` channels) and of the texts."""

    text: int
    text_width: int


HUGE = LongSkipsConfig(
    width=1152,
    layers=29,
    heads=16,
    ffn=4608,
    patch=2,
    image=32,
    classes=4,
    dtype="bfloat16",
    text=77,
    text_width=768,
)
"""U-ViT-H/2."""
SMALL = LongSkipsConfig(width=32, layers=3, heads=2, ffn=64, patch=2, image=8, classes=2, text=4, text_width=16)


class LongSkips(nnx.Module):
    """(latents (batch, image, image, classes), times (batch,), texts (batch, text, text_width)) -> the noise."""

    def __init__(self, config: LongSkipsConfig, *, rngs: nnx.Rngs) -> None:
        c = config
        self.config, window, half = c, (c.patch, c.patch), c.layers // 2
        self.patches = nnx.Conv(c.classes, c.width, window, strides=window, padding="VALID", dtype=c.dtype, rngs=rngs)
        self.text = nnx.Linear(c.text_width, c.width, dtype=c.dtype, rngs=rngs)
        count = (c.image // c.patch) ** 2 + 1 + c.text
        self.positions = nnx.Param(0.02 * jax.random.normal(rngs.params(), (count, c.width)))
        self.first = nnx.List([Block(c, rngs=rngs) for _ in range(half)])
        self.middle = Block(c, rngs=rngs)
        self.joined = nnx.List([nnx.Linear(2 * c.width, c.width, dtype=c.dtype, rngs=rngs) for _ in range(half)])
        self.second = nnx.List([Block(c, rngs=rngs) for _ in range(half)])
        self.norm = nnx.LayerNorm(c.width, dtype=c.dtype, rngs=rngs)
        self.leave = nnx.Linear(c.width, c.patch**2 * c.classes, dtype=c.dtype, rngs=rngs)

    def __call__(self, latents: jax.Array, times: jax.Array, texts: jax.Array) -> jax.Array:
        c, batch = self.config, latents.shape[0]
        patches = self.patches(latents).reshape(batch, -1, c.width)
        time = waves(times, c.width).astype(patches.dtype)[:, None]
        x = jnp.concatenate([time, self.text(texts), patches], axis=1)
        x = x + self.positions[...].astype(x.dtype)
        skips: list[jax.Array] = []
        for block in self.first:
            x = block(x)
            skips.append(x)
        x = self.middle(x)
        for block, joined in zip(self.second, self.joined, strict=True):
            x = block(joined(jnp.concatenate([x, skips.pop()], axis=-1)))
        x = self.leave(self.norm(x))[:, 1 + c.text :]
        side = c.image // c.patch
        x = x.reshape(batch, side, side, c.patch, c.patch, c.classes).transpose(0, 1, 3, 2, 4, 5)
        return x.reshape(latents.shape)


def long_skips(config: LongSkipsConfig, *, batch: int, size: Size = "small", name: str = "long skips") -> Model:
    """A train step on {"latents", "texts", "times", "noise"}; the parameters are an `nnx.State`."""
    optimizer = optax.adamw(1e-4)

    graph, initial = nnx.split(module(lambda rngs: LongSkips(config, rngs=rngs), size))

    def loss(params: Tree, batch: Tree) -> jax.Array:
        latents = noised(batch["latents"], batch["noise"], batch["times"])
        guessed = nnx.merge(graph, at_use(params, config.dtype))(latents, batch["times"], batch["texts"])
        return jnp.mean((guessed.astype(jnp.float32) - batch["noise"]) ** 2)

    def make(params: Tree) -> tuple[Tree, ...]:
        keys = jax.random.split(seed(), 4)
        shape = (batch, config.image, config.image, config.classes)
        data = {
            "latents": jax.random.normal(keys[0], shape),
            "noise": jax.random.normal(keys[1], shape),
            "texts": jax.random.normal(keys[2], (batch, config.text, config.text_width)),
            "times": jax.random.uniform(keys[3], (batch,)),
        }
        return params, optimizer.init(params), data

    return trained(
        name,
        loss,
        optimizer,
        arguments(make, size, initial),
        batch=batch,
        tokens=batch,
        notes=f"{config.layers} layers written out, {config.width} wide, skips from the first half to the second",
    )


def build(size: Size = "small") -> Model:
    """Small: 3 layers. Real: U-ViT-H/2, 1,024 latents of 32 x 32."""
    if size == "small":
        return long_skips(SMALL, batch=16, size=size)
    return long_skips(HUGE, batch=1024, size=size)
