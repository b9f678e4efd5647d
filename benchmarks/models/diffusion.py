"""A latent diffusion U-Net: residual blocks and transformers with attention to a text at every level; Flax nnx, AdamW.

The layout of Stable Diffusion's (https://arxiv.org/abs/2112.10752): levels of convolutions and attention on the way down,
whose results are all read again on the way up; queries see all pixels of their level, and the text.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from benchmarks.models.base import Model, Size, Tree, arguments, seed, trained
from benchmarks.models.modules import module
from benchmarks.models.places import activation, at_use
from benchmarks.models.unet import Residual, UNetConfig, noised, waves


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffusionConfig(UNetConfig):
    """Sizes: `blocks` residual blocks at every level, and transformers at the first `attended` of them."""

    blocks: int
    attended: int
    text: int
    text_width: int
    channels: int = 4


REAL = DiffusionConfig(
    widths=(320, 640, 1280, 1280),
    image=64,
    heads=8,
    groups=32,
    dtype="bfloat16",
    blocks=2,
    attended=3,
    text=77,
    text_width=768,
)
SMALL = DiffusionConfig(
    widths=(16, 32), image=8, heads=2, groups=4, blocks=1, attended=1, text=8, text_width=16, channels=2
)


class Attention(nnx.Module):
    """Attention of pixels to what is given, of shape (batch, length, width)."""

    def __init__(self, width: int, of: int, heads: int, dtype: str, *, rngs: nnx.Rngs) -> None:
        self.heads = heads
        self.query = nnx.Linear(width, width, use_bias=False, dtype=dtype, rngs=rngs)
        self.key = nnx.Linear(of, width, use_bias=False, dtype=dtype, rngs=rngs)
        self.value = nnx.Linear(of, width, use_bias=False, dtype=dtype, rngs=rngs)
        self.out = nnx.Linear(width, width, dtype=dtype, rngs=rngs)

    def __call__(self, x: jax.Array, of: jax.Array) -> jax.Array:
        def split(y: jax.Array) -> jax.Array:
            return y.reshape(*y.shape[:-1], self.heads, -1)

        attended = jax.checkpoint(jax.nn.dot_product_attention)
        mixed = attended(split(self.query(x)), split(self.key(of)), split(self.value(of)))
        return self.out(mixed.reshape(x.shape))


class Transformer(nnx.Module):
    """Attention to all pixels, attention to the text, a gated layer."""

    def __init__(self, width: int, config: DiffusionConfig, *, rngs: nnx.Rngs) -> None:
        dtype = config.dtype
        self.norm = nnx.GroupNorm(width, config.groups, dtype=dtype, rngs=rngs)
        self.enter = nnx.Linear(width, width, dtype=dtype, rngs=rngs)
        self.norms = nnx.List([nnx.LayerNorm(width, dtype=dtype, rngs=rngs) for _ in range(3)])
        self.pixels = Attention(width, width, config.heads, dtype, rngs=rngs)
        self.text = Attention(width, config.text_width, config.heads, dtype, rngs=rngs)
        self.up = nnx.Linear(width, 8 * width, dtype=dtype, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, dtype=dtype, rngs=rngs)
        self.leave = nnx.Linear(width, width, dtype=dtype, rngs=rngs)

    def __call__(self, images: jax.Array, text: jax.Array) -> jax.Array:
        x = self.enter(self.norm(images).reshape(images.shape[0], -1, images.shape[-1]))
        y = self.norms[0](x)
        x = x + self.pixels(y, y)
        x = x + self.text(self.norms[1](x), text)
        value, gate = jnp.split(self.up(self.norms[2](x)), 2, axis=-1)
        x = x + self.down(value * jax.nn.gelu(gate))
        return activation(images + self.leave(x).reshape(images.shape), "transformer")


class Stage(nnx.Module):
    """A residual block, and a transformer where the level has them."""

    def __init__(self, before: int, level: int, config: DiffusionConfig, *, rngs: nnx.Rngs) -> None:
        width = config.widths[level]
        self.residual = Residual(before, width, 4 * config.widths[0], config, rngs=rngs)
        self.transformer = Transformer(width, config, rngs=rngs) if level < config.attended else None

    def __call__(self, x: jax.Array, time: jax.Array, text: jax.Array) -> jax.Array:
        x = self.residual(x, time)
        return x if self.transformer is None else self.transformer(x, text)


class Diffusion(nnx.Module):
    """(latents (batch, image, image, channels), times (batch,), texts (batch, text, text_width)) -> the noise."""

    def __init__(self, config: DiffusionConfig, *, rngs: nnx.Rngs) -> None:
        dtype, widths, levels = config.dtype, config.widths, range(len(config.widths))
        self.first = nnx.Linear(widths[0], 4 * widths[0], dtype=dtype, rngs=rngs)
        self.second = nnx.Linear(4 * widths[0], 4 * widths[0], dtype=dtype, rngs=rngs)
        self.enter = nnx.Conv(config.channels, widths[0], (3, 3), dtype=dtype, rngs=rngs)
        down, shrink, skips, width = [], [], [widths[0]], widths[0]
        for level in levels:
            stages = []
            for _ in range(config.blocks):
                stages.append(Stage(width, level, config, rngs=rngs))
                width = widths[level]
                skips.append(width)
            down.append(nnx.List(stages))
            if level < levels[-1]:
                shrink.append(nnx.Conv(width, width, (3, 3), strides=2, dtype=dtype, rngs=rngs))
                skips.append(width)
        self.down, self.shrink = nnx.List(down), nnx.List(shrink)
        time = 4 * widths[0]
        self.middle = nnx.List([Residual(width, width, time, config, rngs=rngs) for _ in range(2)])
        self.attended = Transformer(width, config, rngs=rngs)
        up, grow = [], []
        for level in reversed(levels):
            stages = []
            for _ in range(config.blocks + 1):
                stages.append(Stage(width + skips.pop(), level, config, rngs=rngs))
                width = widths[level]
            up.append(nnx.List(stages))
            if level:
                grow.append(nnx.Conv(width, width, (3, 3), dtype=dtype, rngs=rngs))
        self.up, self.grow = nnx.List(up), nnx.List(grow)
        self.norm = nnx.GroupNorm(width, config.groups, dtype=dtype, rngs=rngs)
        self.leave = nnx.Conv(width, config.channels, (3, 3), dtype=dtype, rngs=rngs)

    def __call__(self, latents: jax.Array, times: jax.Array, text: jax.Array) -> jax.Array:
        time = self.second(nnx.swish(self.first(waves(times, self.first.in_features))))
        x = self.enter(latents)
        skipped = [x]
        for level, stages in enumerate(self.down):
            for stage in stages:
                x = stage(x, time, text)
                skipped.append(x)
            if level < len(self.shrink):
                x = self.shrink[level](x)
                skipped.append(x)
        x = self.middle[1](self.attended(self.middle[0](x, time), text), time)
        for level, stages in enumerate(self.up):
            for stage in stages:
                x = stage(jnp.concatenate([x, skipped.pop()], axis=-1), time, text)
            if level < len(self.grow):
                x = self.grow[level](jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2))
        return self.leave(nnx.swish(self.norm(x))).astype(jnp.float32)


def diffusion(config: DiffusionConfig, *, batch: int, size: Size = "small", name: str = "diffusion") -> Model:
    """A train step on {"latents", "noise", "times", "text"}; the parameters are an `nnx.State`."""
    optimizer = optax.adamw(1e-4)

    graph, initial = nnx.split(module(lambda rngs: Diffusion(config, rngs=rngs), size))

    def loss(params: Tree, batch: Tree) -> jax.Array:
        noisy = noised(batch["latents"], batch["noise"], batch["times"])
        text = batch["text"].astype(config.dtype)
        noise = nnx.merge(graph, at_use(params, config.dtype))(noisy, 1000 * batch["times"], text)
        return jnp.mean((noise - batch["noise"]) ** 2)

    def make(params: Tree) -> tuple[Tree, ...]:
        keys = jax.random.split(seed(), 4)
        shape = (batch, config.image, config.image, config.channels)
        data = {
            "latents": jax.random.normal(keys[0], shape),
            "noise": jax.random.normal(keys[1], shape),
            "times": jax.random.uniform(keys[2], (batch,)),
            "text": jax.random.normal(keys[3], (batch, config.text, config.text_width)),
        }
        return params, optimizer.init(params), data

    return trained(
        name,
        loss,
        optimizer,
        arguments(make, size, initial),
        batch=batch,
        tokens=batch,
        notes=f"levels of {', '.join(map(str, config.widths))} channels, {config.image} pixels",
    )


def build(size: Size = "small") -> Model:
    """Small: 2 levels, 16 latents of 8 x 8. Real: Stable Diffusion's sizes, 128 latents of 64 x 64."""
    if size == "small":
        return diffusion(SMALL, batch=16, size=size)
    return diffusion(REAL, batch=128, size=size)
