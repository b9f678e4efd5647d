"""A language model of stacked LSTM cells: Equinox, `lax.scan` over time, Adam with clipping by the global norm."""

from __future__ import annotations

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import lax

from benchmarks.models.base import Model, Size, Tree, arguments, seed, trained
from benchmarks.models.places import activation, at_use


@dataclass(frozen=True, slots=True, kw_only=True)
class LSTMConfig:
    """Sizes of the model; the embedding is as wide as the cells."""

    width: int
    layers: int
    vocabulary: int
    sequence: int


class LanguageModel(eqx.Module):
    """Token ids of shape (sequence,) -> logits of shape (sequence, vocabulary)."""

    embedding: eqx.nn.Embedding
    cells: list[eqx.nn.LSTMCell]
    head: eqx.nn.Linear

    def __init__(self, config: LSTMConfig, key: jax.Array) -> None:
        keys = jax.random.split(key, config.layers + 2)
        self.embedding = eqx.nn.Embedding(config.vocabulary, config.width, key=keys[0])
        self.cells = [eqx.nn.LSTMCell(config.width, config.width, key=one) for one in keys[2:]]
        self.head = eqx.nn.Linear(config.width, config.vocabulary, key=keys[1])

    def __call__(self, ids: jax.Array) -> jax.Array:
        def step(states: Tree, x: jax.Array) -> tuple[Tree, jax.Array]:
            after: list[tuple[jax.Array, jax.Array]] = []
            for cell, state in zip(self.cells, states, strict=True):
                state = cell(x, state)
                x = activation(state[0], "hidden")
                after.append(state)
            return after, x

        zeros = [(jnp.zeros(cell.hidden_size), jnp.zeros(cell.hidden_size)) for cell in self.cells]
        _, hidden = lax.scan(step, zeros, jax.vmap(self.embedding)(ids))
        return jax.vmap(self.head)(hidden)


def lstm(config: LSTMConfig, *, batch: int, size: Size = "small", name: str = "lstm") -> Model:
    """A train step on `batch` sequences; the parameters are the arrays of the Equinox module."""
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
    shapes = eqx.filter_eval_shape(LanguageModel, config, seed())
    static = eqx.partition(shapes, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))[1]

    def loss(params: Tree, ids: jax.Array) -> jax.Array:
        logits = jax.vmap(eqx.combine(at_use(params), static))(ids[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, ids[:, 1:]).mean()

    def make() -> tuple[Tree, ...]:
        key_ids, key = jax.random.split(seed())
        ids = jax.random.randint(key_ids, (batch, config.sequence + 1), 0, config.vocabulary)
        params = eqx.filter(LanguageModel(config, key), eqx.is_array)
        return params, optimizer.init(params), ids

    return trained(
        name,
        loss,
        optimizer,
        arguments(make, size),
        batch=batch,
        tokens=batch * config.sequence,
        notes=f"{config.layers} layers of {config.width}, {config.sequence} steps",
    )


def build(size: Size = "small") -> Model:
    """Small: 2 layers of 64, 16 steps. Real: 4 layers of 4,096, 256 steps."""
    if size == "small":
        return lstm(LSTMConfig(width=64, layers=2, vocabulary=128, sequence=16), batch=16, size=size)
    return lstm(LSTMConfig(width=4096, layers=4, vocabulary=32768, sequence=256), batch=1024, size=size)
