"""A multi-layer perceptron regressing random targets: Flax linen, Adam."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from benchmarks.models.base import Model, Size, Tree, arguments, seed, trained
from benchmarks.models.places import activation


class Perceptron(nn.Module):
    """`layers` dense layers of `hidden` features with a ReLU between any two."""

    hidden: int
    layers: int
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(self.layers - 1):
            x = activation(nn.relu(nn.Dense(self.hidden, use_bias=self.use_bias)(x)), "hidden")
        return nn.Dense(self.hidden, use_bias=self.use_bias)(x)


def mlp(
    *,
    batch: int,
    hidden: int,
    layers: int = 6,
    use_bias: bool = True,
    size: Size = "small",
    name: str = "mlp",
) -> Model:
    """A train step on `batch` rows of `hidden` features."""
    network = Perceptron(hidden=hidden, layers=layers, use_bias=use_bias)
    optimizer = optax.adam(1e-2)

    def loss(params: Tree, batch: Tree) -> jax.Array:
        return jnp.mean((network.apply(params, batch["x"]) - batch["y"]) ** 2)

    def make() -> tuple[Tree, ...]:
        key_x, key_y, key = jax.random.split(seed(), 3)
        data = {"x": jax.random.normal(key_x, (batch, hidden)), "y": jax.random.normal(key_y, (batch, hidden))}
        params = network.init(key, data["x"][:1])
        return params, optimizer.init(params), data

    return trained(
        name,
        loss,
        optimizer,
        arguments(make, size),
        batch=batch,
        tokens=batch,
        notes=f"{layers} layers of {hidden} features",
    )


def build(size: Size = "small") -> Model:
    """Small: 64 rows, 128 wide. Real: 8,192 rows, 8,192 wide."""
    if size == "small":
        return mlp(batch=64, hidden=128, size=size)
    return mlp(batch=8192, hidden=8192, size=size)
