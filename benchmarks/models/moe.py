"""A mixture of experts as in GShard: tokens routed to their top two experts by einsums; Flax linen.

Tokens are cut into groups of S. Within a group each token takes a slot of the buffers, of capacity C = 2 S / E, of its
two best experts; what overflows is dropped. The dispatch and combine tensors of shape (group, S, expert, C) carry the
tokens there and back (Lepikhin et al. 2020, algorithm 1: https://arxiv.org/abs/2006.16668).
"""

from __future__ import annotations

from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from benchmarks.models.base import Model, Size, Tree, arguments, seed, trained
from benchmarks.models.bert import Embeddings, Layer, SelfAttention, masked_cross_entropy, token_batch
from benchmarks.models.places import activation


@dataclass(frozen=True, slots=True, kw_only=True)
class MoEConfig:
    """Sizes of a model whose layers are experts and dense in turn; `group` is S and `experts` is E."""

    layers: int
    hidden: int
    heads: int
    sequence: int
    group: int
    experts: int
    vocabulary: int
    balance: float = 0.0
    """Weight of the load-balancing loss."""


def top2_gating(gates: jax.Array, capacity: int) -> jax.Array:
    """Combine weights of shape (g, s, e, capacity) from gate probabilities of shape (g, s, e); 0 where not routed."""
    experts = gates.shape[-1]
    first = jax.nn.one_hot(jnp.argmax(gates, axis=-1), experts, dtype=gates.dtype)
    second = jax.nn.one_hot(jnp.argmax(gates * (1 - first), axis=-1), experts, dtype=gates.dtype)
    slot_first = jnp.cumsum(first, axis=1) - first
    kept_first = first * (slot_first < capacity)
    slot_second = jnp.cumsum(second, axis=1) - second + jnp.sum(kept_first, axis=1, keepdims=True)
    kept_second = second * (slot_second < capacity)

    weight_first = jnp.einsum("gse,gse->gs", gates, kept_first)
    weight_second = jnp.einsum("gse,gse->gs", gates, kept_second)
    total = weight_first + weight_second
    total = jnp.where(total > 0, total, 1.0)

    def combine(weight: jax.Array, kept: jax.Array, slot: jax.Array) -> jax.Array:
        place = jnp.einsum("gse,gse->gs", slot, kept).astype(jnp.int32)
        one_hot = jax.nn.one_hot(place, capacity, dtype=gates.dtype)
        return jnp.einsum("gs,gse,gsc->gsec", weight / total, kept, one_hot)

    return combine(weight_first, kept_first, slot_first) + combine(weight_second, kept_second, slot_second)


class Experts(nn.Module):
    """(x) -> (y, balance): each token through its two experts, and GShard's load-balancing loss."""

    experts: int
    group: int

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        hidden = x.shape[-1]
        init = nn.initializers.lecun_normal(batch_axis=0)
        gate = self.param("gate", nn.initializers.lecun_normal(), (hidden, self.experts))
        up = self.param("up", init, (self.experts, hidden, 4 * hidden))
        down = self.param("down", init, (self.experts, 4 * hidden, hidden))

        tokens = x.reshape(-1, self.group, hidden)
        gates = jax.nn.softmax(jnp.einsum("gsm,me->gse", tokens, gate))
        combine = top2_gating(gates, capacity=max(1, 2 * self.group // self.experts))
        dispatch = (combine > 0).astype(x.dtype)
        inputs = activation(jnp.einsum("gsec,gsm->egcm", dispatch, tokens), "dispatched")
        h = nn.relu(jnp.einsum("egcm,emh->egch", inputs, up))
        outputs = jnp.einsum("egch,ehm->gecm", h, down)
        y = jnp.einsum("gsec,gecm->gsm", combine, outputs)

        share = jnp.mean(jnp.sum(dispatch, axis=-1), axis=1)
        balance = self.experts * jnp.mean(jnp.sum(share * jnp.mean(gates, axis=1), axis=-1))
        return y.reshape(x.shape), balance


class MoELayer(nn.Module):
    """(x, mask) -> (x, balance): self-attention, then experts, each followed by the norm of its residual sum."""

    config: MoEConfig

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
        c = self.config
        x = SelfAttention(c.hidden, c.heads, name="attention")(x, mask)
        y, balance = Experts(c.experts, c.group, name="moe")(x)
        return nn.LayerNorm(epsilon=1e-12, name="norm")(x + y), balance


class MoELM(nn.Module):
    """(batch) -> (logits, balance): expert layers and dense layers in turn, a tied head with a bias."""

    config: MoEConfig

    @nn.compact
    def __call__(self, batch: Tree) -> tuple[jax.Array, jax.Array]:
        c = self.config
        x, tokens = Embeddings(c.vocabulary, c.hidden, c.sequence, segments=0, name="embeddings")(batch)
        total = jnp.zeros(())
        for n in range(c.layers):
            if n % 2 == 0:
                x, balance = MoELayer(c, name=f"layer_{n}")(x, batch["mask"])
                total = total + balance
            else:
                x = Layer(c.hidden, c.heads, name=f"layer_{n}")(x, batch["mask"])
        return tokens.attend(x) + self.param("bias", nn.initializers.zeros, (c.vocabulary,)), total


def moe_layer(config: MoEConfig, *, batch: int, size: Size = "small", name: str = "moe_layer") -> Model:
    """A train step of one expert layer, regressing random hidden states, by Adam."""
    network = MoELayer(config)
    optimizer = optax.adam(1e-2)

    def loss(params: Tree, batch: Tree) -> jax.Array:
        y, _ = network.apply(params, batch["x"], batch["mask"])
        return jnp.mean((y - batch["y"]) ** 2)

    def make() -> tuple[Tree, ...]:
        key_x, key_y, key = jax.random.split(seed(), 3)
        shape = (batch, config.sequence, config.hidden)
        data = {
            "x": jax.random.normal(key_x, shape),
            "y": jax.random.normal(key_y, shape),
            "mask": jnp.ones(shape[:2], jnp.int32),
        }
        params = network.init(key, data["x"], data["mask"])
        return params, optimizer.init(params), data

    return trained(
        name,
        loss,
        optimizer,
        arguments(make, size),
        batch=batch,
        tokens=batch * config.sequence,
        notes=f"{config.experts} experts, groups of {config.group}",
    )


def moe_lm(config: MoEConfig, *, batch: int, size: Size = "small", name: str = "moe") -> Model:
    """A train step of the language model, by Adafactor."""
    network = MoELM(config)
    optimizer = optax.adafactor(1e-2, min_dim_size_to_factor=4)

    def loss(params: Tree, batch: Tree) -> jax.Array:
        logits, balance = network.apply(params, batch)
        value = masked_cross_entropy(logits, batch["labels"])
        return value + config.balance * balance if config.balance else value

    def make() -> tuple[Tree, ...]:
        key_data, key = jax.random.split(seed())
        data = token_batch(key_data, batch=batch, sequence=config.sequence, vocabulary=config.vocabulary)
        del data["segments"]
        params = network.init(key, data)
        return params, optimizer.init(params), data

    return trained(
        name,
        loss,
        optimizer,
        arguments(make, size),
        batch=batch,
        tokens=batch * config.sequence,
        notes=f"{config.layers} layers, every other of {config.experts} experts, groups of {config.group}",
    )


def build(size: Size = "small") -> Model:
    """The language model. Small: 2 layers, 8 experts. Real: 16 layers, 1,024 wide, 16 experts."""
    if size == "small":
        config = MoEConfig(layers=2, hidden=32, heads=8, sequence=16, group=32, experts=8, vocabulary=256, balance=0.01)
        return moe_lm(config, batch=16, size=size)
    config = MoEConfig(
        layers=16, hidden=1024, heads=16, sequence=1024, group=2048, experts=16, vocabulary=32000, balance=0.01
    )
    return moe_lm(config, batch=256, size=size)
