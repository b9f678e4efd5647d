"""A (wide) ResNet of bottleneck blocks: Flax nnx, batch norm with running statistics, SGD with momentum."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import optax
from flax import nnx

from benchmarks.models.base import Model, Size, Tree, arguments, seed
from benchmarks.models.modules import module
from benchmarks.models.places import activation, at_use


@dataclass(frozen=True, slots=True, kw_only=True)
class ResNetConfig:
    """Sizes of a ResNet: `stages[n]` blocks of `base * 2**n` channels, the inner ones `widen` times as many."""

    stages: tuple[int, ...]
    base: int
    widen: int = 1
    image: int = 224
    classes: int = 1024


_50, _101 = (3, 4, 6, 3), (3, 4, 23, 3)
CONFIGS = {
    "resnet50": ResNetConfig(stages=_50, base=64),
    # Wide-ResNets of Alpa (OSDI'22), section 8.1: https://arxiv.org/abs/2201.12023
    "250M": ResNetConfig(stages=_50, base=160, widen=2),
    "1B": ResNetConfig(stages=_50, base=320, widen=2),
    "4B": ResNetConfig(stages=_50, base=640, widen=2),
    "13B": ResNetConfig(stages=_101, base=320, widen=16),
}
SMALL = ResNetConfig(stages=(1, 1, 1), base=16, image=32, classes=16)


class ConvNorm(nnx.Module):
    """A convolution without bias and its batch norm."""

    def __init__(self, channels: tuple[int, int], window: int, strides: int, *, rngs: nnx.Rngs) -> None:
        self.conv = nnx.Conv(*channels, (window, window), strides=strides, use_bias=False, rngs=rngs)
        self.norm = nnx.BatchNorm(channels[1], momentum=0.9, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.norm(self.conv(x))


class Bottleneck(nnx.Module):
    """1x1, 3x3 and 1x1 convolutions around a shortcut, which is projected where shapes differ."""

    def __init__(self, before: int, inner: int, after: int, strides: int, *, rngs: nnx.Rngs) -> None:
        self.reduce = ConvNorm((before, inner), 1, 1, rngs=rngs)
        self.conv = ConvNorm((inner, inner), 3, strides, rngs=rngs)
        self.expand = ConvNorm((inner, after), 1, 1, rngs=rngs)
        same = before == after and strides == 1
        self.shortcut = None if same else ConvNorm((before, after), 1, strides, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.expand(nnx.relu(self.conv(nnx.relu(self.reduce(x)))))
        return activation(nnx.relu(y + (x if self.shortcut is None else self.shortcut(x))), "block")


class ResNet(nnx.Module):
    """Images of shape (batch, image, image, 3) -> logits of shape (batch, classes)."""

    def __init__(self, config: ResNetConfig, *, rngs: nnx.Rngs) -> None:
        self.stem = ConvNorm((3, config.base), 7, 2, rngs=rngs)
        blocks: list[Bottleneck] = []
        before = config.base
        for stage, count in enumerate(config.stages):
            channels = config.base * 2**stage
            for n in range(count):
                strides = 2 if stage and not n else 1
                blocks.append(Bottleneck(before, channels * config.widen, 4 * channels, strides, rngs=rngs))
                before = 4 * channels
        self.blocks = nnx.List(blocks)
        self.head = nnx.Linear(before, config.classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nnx.max_pool(nnx.relu(self.stem(x)), (3, 3), strides=(2, 2), padding="SAME")
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(axis=(1, 2)))


def resnet(config: ResNetConfig, *, batch: int, size: Size = "small", name: str = "resnet") -> Model:
    """A step (params, stats, opt_state, batch) -> (params, stats, opt_state, loss) on {"images", "labels"}."""
    optimizer = optax.chain(optax.add_decayed_weights(1e-4), optax.sgd(0.1, momentum=0.9))

    built = module(lambda rngs: ResNet(config, rngs=rngs), size)
    graph, params, stats = nnx.split(built, nnx.Param, nnx.BatchStat)

    def loss(params: Tree, stats: Tree, batch: Tree) -> tuple[jax.Array, Tree]:
        network = nnx.merge(graph, at_use(params), stats, copy=True)
        losses = optax.softmax_cross_entropy_with_integer_labels(network(batch["images"]), batch["labels"])
        return losses.mean(), nnx.state(network, nnx.BatchStat)

    def step(params: Tree, stats: Tree, opt_state: Tree, batch: Tree) -> tuple[Tree, Tree, Tree, jax.Array]:
        (value, stats), gradients = jax.value_and_grad(loss, has_aux=True)(params, stats, batch)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        return optax.apply_updates(params, updates), stats, opt_state, value

    def make(params: Tree, stats: Tree) -> tuple[Tree, ...]:
        key_images, key_labels = jax.random.split(seed())
        data = {
            "images": jax.random.normal(key_images, (batch, config.image, config.image, 3)),
            "labels": jax.random.randint(key_labels, (batch,), 0, config.classes),
        }
        return params, stats, optimizer.init(params), data

    return Model(
        name=name,
        kind="train",
        fn=step,
        args=arguments(make, size, params, stats),
        donate_argnums=(0, 1, 2),
        batch=batch,
        tokens=batch,
        notes=f"{3 * sum(config.stages) + 2} layers, base {config.base}, widened {config.widen} times",
    )


def build(size: Size = "small") -> Model:
    """Small: 3 blocks, 32 x 32 pixels. Real: Alpa's Wide-ResNet of 1B parameters, 1,536 images of 224 x 224."""
    if size == "small":
        return resnet(SMALL, batch=16, size=size)
    return resnet(CONFIGS["1B"], batch=1536, size=size)
