"""Plain stacks of convolutions, batch norm and pooling, ordinary or depthwise: Flax linen, SGD with momentum."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from benchmarks.models.base import Model, Size, Tree, arguments, seed


class Stack(nn.Module):
    """`layers` times: a 3x3 convolution of stride 2, batch norm, ReLU, 2x2 max pooling of stride 1."""

    layers: int
    channels: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(self.layers):
            x = nn.Conv(self.channels, (3, 3), strides=(2, 2), use_bias=False)(x)
            x = nn.relu(nn.BatchNorm(use_running_average=False)(x))
            x = nn.max_pool(x, (2, 2), strides=(1, 1), padding="SAME")
        return x


class Depthwise(nn.Module):
    """A convolution to eight times the channels, a depthwise one, one back, ReLU, batch norm."""

    channels: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        wide = 8 * self.channels
        x = nn.Conv(wide, (3, 3), use_bias=False)(x)
        x = nn.Conv(wide, (3, 3), feature_group_count=wide, use_bias=False)(x)
        x = nn.Conv(self.channels, (3, 3), use_bias=False)(x)
        return nn.BatchNorm(use_running_average=False)(nn.relu(x))


def conv(
    *,
    batch: int,
    image: int,
    channels: int,
    layers: int = 3,
    depthwise: bool = False,
    size: Size = "small",
    name: str = "conv",
) -> Model:
    """A step (params, stats, opt_state, batch) -> (params, stats, opt_state, loss), regressing random images."""
    network = Depthwise(channels) if depthwise else Stack(layers, channels)
    optimizer = optax.sgd(0.1, momentum=0.9)
    out = image if depthwise else -(-image // 2**layers)

    def loss(params: Tree, stats: Tree, batch: Tree) -> tuple[jax.Array, Tree]:
        y, state = network.apply({"params": params, "batch_stats": stats}, batch["x"], mutable=["batch_stats"])
        return jnp.mean((y - batch["y"]) ** 2), state["batch_stats"]

    def step(params: Tree, stats: Tree, opt_state: Tree, batch: Tree) -> tuple[Tree, Tree, Tree, jax.Array]:
        (value, stats), gradients = jax.value_and_grad(loss, has_aux=True)(params, stats, batch)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        return optax.apply_updates(params, updates), stats, opt_state, value

    def make() -> tuple[Tree, ...]:
        key_x, key_y, key = jax.random.split(seed(), 3)
        data = {
            "x": jax.random.normal(key_x, (batch, image, image, channels)),
            "y": jax.random.normal(key_y, (batch, out, out, channels)),
        }
        variables = network.init(key, data["x"][:1])
        return variables["params"], variables["batch_stats"], optimizer.init(variables["params"]), data

    return Model(
        name=name,
        kind="train",
        fn=step,
        args=arguments(make, size),
        donate_argnums=(0, 1, 2),
        batch=batch,
        tokens=batch,
        notes="depthwise" if depthwise else f"{layers} layers of {channels} channels",
    )
