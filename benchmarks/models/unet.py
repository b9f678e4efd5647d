"""A diffusion U-Net: Flax nnx, group norm, attention at the coarsest level; predicts the noise in images; AdamW.

Denoising diffusion with a cosine schedule (https://arxiv.org/abs/2006.11239, https://arxiv.org/abs/2102.09672).
"""

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
class UNetConfig:
    """Sizes of a U-Net: level n has `widths[n]` channels and half the rows and columns of the one above.

    `remat`: what a residual block makes is computed again in the backward pass.
    """

    widths: tuple[int, ...]
    image: int
    heads: int
    groups: int
    dtype: str = "float32"
    remat: bool = False


REAL = UNetConfig(widths=(256, 512, 1024), image=64, heads=8, groups=32, dtype="bfloat16")
SMALL = UNetConfig(widths=(16, 32), image=16, heads=2, groups=4)


class Residual(nnx.Module):
    """Two convolutions, the time added between them, around a projected shortcut."""

    def __init__(self, before: int, after: int, time: int, config: UNetConfig, *, rngs: nnx.Rngs) -> None:
        dtype = config.dtype
        self.first_norm = nnx.GroupNorm(before, config.groups, dtype=dtype, rngs=rngs)
        self.first = nnx.Conv(before, after, (3, 3), dtype=dtype, rngs=rngs)
        self.time = nnx.Linear(time, after, dtype=dtype, rngs=rngs)
        self.second_norm = nnx.GroupNorm(after, config.groups, dtype=dtype, rngs=rngs)
        self.second = nnx.Conv(after, after, (3, 3), dtype=dtype, rngs=rngs)
        self.shortcut = nnx.Conv(before, after, (1, 1), dtype=dtype, rngs=rngs)

    def __call__(self, x: jax.Array, time: jax.Array) -> jax.Array:
        y = self.first(nnx.swish(self.first_norm(x))) + self.time(nnx.swish(time))[:, None, None]
        return activation(self.shortcut(x) + self.second(nnx.swish(self.second_norm(y))), "block")


class Attention(nnx.Module):
    """Self-attention over all pixels."""

    def __init__(self, width: int, config: UNetConfig, *, rngs: nnx.Rngs) -> None:
        self.norm = nnx.GroupNorm(width, config.groups, dtype=config.dtype, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(config.heads, width, dtype=config.dtype, decode=False, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        pixels = self.norm(x).reshape(x.shape[0], -1, x.shape[-1])
        return x + self.attention(pixels).reshape(x.shape)


class UNet(nnx.Module):
    """(images of shape (batch, image, image, 3), times of shape (batch,)) -> the noise, shaped like the images."""

    def __init__(self, config: UNetConfig, *, rngs: nnx.Rngs) -> None:
        dtype, widths = config.dtype, config.widths
        self.remat = config.remat
        above = (widths[0], *widths[:-1])
        time = 4 * widths[0]
        self.time_first = nnx.Linear(widths[0], time, dtype=dtype, rngs=rngs)
        self.time_second = nnx.Linear(time, time, dtype=dtype, rngs=rngs)
        self.enter = nnx.Conv(3, widths[0], (3, 3), dtype=dtype, rngs=rngs)
        self.down = nnx.List([Residual(a, b, time, config, rngs=rngs) for a, b in zip(above, widths, strict=True)])
        self.shrink = nnx.List([nnx.Conv(w, w, (3, 3), strides=2, dtype=dtype, rngs=rngs) for w in widths])
        self.middle = Residual(widths[-1], widths[-1], time, config, rngs=rngs)
        self.attention = Attention(widths[-1], config, rngs=rngs)
        self.grow = nnx.List(
            [nnx.ConvTranspose(w, w, (2, 2), strides=2, dtype=dtype, rngs=rngs) for w in reversed(widths)]
        )
        self.up = nnx.List(
            [
                Residual(2 * b, a, time, config, rngs=rngs)
                for a, b in zip(reversed(above), reversed(widths), strict=True)
            ]
        )
        self.leave = nnx.Conv(widths[0], 3, (3, 3), dtype=dtype, rngs=rngs)

    def __call__(self, images: jax.Array, times: jax.Array) -> jax.Array:
        time = self.time_second(nnx.swish(self.time_first(waves(times, self.time_first.in_features))))
        residual = remat_call(Residual.__call__, remat=self.remat)
        x = self.enter(images)
        skipped: list[jax.Array] = []
        for block, shrink in zip(self.down, self.shrink, strict=True):
            x = residual(block, x, time)
            skipped.append(x)
            x = shrink(x)
        x = self.attention(residual(self.middle, x, time))
        for grow, block in zip(self.grow, self.up, strict=True):
            x = residual(block, jnp.concatenate([grow(x), skipped.pop()], axis=-1), time)
        return self.leave(x).astype(jnp.float32)


def waves(times: jax.Array, width: int) -> jax.Array:
    """Sines and cosines of times at so many frequencies in all: (batch, width)."""
    half = width // 2
    angles = times[:, None] * 1e4 ** (-jnp.arange(half) / half)
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def noised(images: jax.Array, noise: jax.Array, times: jax.Array) -> jax.Array:
    """Images with noise in them, all of it at time 1."""
    angle = times[:, None, None, None] * jnp.pi / 2
    return jnp.cos(angle) * images + jnp.sin(angle) * noise


def unet(config: UNetConfig, *, batch: int, size: Size = "small", name: str = "unet") -> Model:
    """A train step on {"images", "noise", "times"}; the parameters are an `nnx.State`."""
    optimizer = optax.adamw(1e-4)

    graph, initial = nnx.split(module(lambda rngs: UNet(config, rngs=rngs), size))

    def loss(params: Tree, batch: Tree) -> jax.Array:
        noisy = noised(batch["images"], batch["noise"], batch["times"])
        noise = nnx.merge(graph, at_use(params, config.dtype))(noisy, 1000 * batch["times"])
        return jnp.mean((noise - batch["noise"]) ** 2)

    def make(params: Tree) -> tuple[Tree, ...]:
        key_images, key_noise, key_times = jax.random.split(seed(), 3)
        shape = (batch, config.image, config.image, 3)
        data = {
            "images": jax.random.normal(key_images, shape),
            "noise": jax.random.normal(key_noise, shape),
            "times": jax.random.uniform(key_times, (batch,)),
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
    """Small: 2 levels, 16 images of 16 x 16. Real: 3 levels of up to 1,024 channels, 512 images of 64 x 64."""
    if size == "small":
        return unet(SMALL, batch=16, size=size)
    return unet(REAL, batch=512, size=size)
