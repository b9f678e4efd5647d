"""A BERT encoder: Flax linen, post-norm, biases, no dropout, Adam; query, key and value come from one dense column.

The fused column holds, per head and head dim, the three values side by side: splitting its columns splits the heads.
"""

from __future__ import annotations

from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from benchmarks.models.base import Model, Size, Tree, arguments, seed, trained
from benchmarks.models.places import activation


@dataclass(frozen=True, slots=True, kw_only=True)
class BertConfig:
    """Sizes of an encoder; the feed-forward layer is four times as wide as the model."""

    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int = 30522
    remat: bool = False


LARGE = BertConfig(layers=24, hidden=1024, heads=16, sequence=512)
"""BERT-large (https://arxiv.org/abs/1810.04805)."""


class SelfAttention(nn.Module):
    """Attention over the unmasked positions, its output projection, the residual and its norm."""

    hidden: int
    heads: int

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        batch, sequence, _ = x.shape
        head_dim = self.hidden // self.heads
        qkv = nn.Dense(3 * self.hidden, name="qkv")(x).reshape(batch, sequence, self.heads, head_dim, 3)
        query, key, value = (qkv[..., n] for n in range(3))
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / jnp.sqrt(head_dim).astype(x.dtype)
        scores = scores + jnp.where(mask > 0, 0.0, -1e10)[:, None, None, :]
        mixed = activation(jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), value), "attention")
        y = nn.Dense(self.hidden, name="out")(mixed.reshape(batch, sequence, self.hidden))
        return nn.LayerNorm(epsilon=1e-12, name="norm")(activation(x + y, "residual"))


class Layer(nn.Module):
    """Self-attention and a feed-forward layer, each followed by the norm of its residual sum."""

    hidden: int
    heads: int

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        x = SelfAttention(self.hidden, self.heads, name="attention")(x, mask)
        h = activation(nn.gelu(nn.Dense(4 * self.hidden, name="fc1")(x), approximate=False), "hidden")
        return nn.LayerNorm(epsilon=1e-12, name="norm")(x + nn.Dense(self.hidden, name="fc2")(h))


class Encoder(nn.Module):
    """The layers alone: hidden states in, hidden states out."""

    config: BertConfig

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        layer = nn.remat(Layer) if self.config.remat else Layer
        for n in range(self.config.layers):
            x = layer(self.config.hidden, self.config.heads, name=f"layer_{n}")(x, mask)
        return x


class Embeddings(nn.Module):
    """Token, position and segment embeddings added and normed, and the table of tokens for a tied head."""

    vocabulary: int
    hidden: int
    sequence: int
    segments: int = 2

    @nn.compact
    def __call__(self, batch: Tree) -> tuple[jax.Array, nn.Embed]:
        tokens = nn.Embed(self.vocabulary, self.hidden, name="tokens")
        x = tokens(batch["ids"]) + nn.Embed(self.sequence, self.hidden, name="positions")(batch["positions"])
        if self.segments:
            x = x + nn.Embed(self.segments, self.hidden, name="segments")(batch["segments"])
        return nn.LayerNorm(epsilon=1e-12, name="norm")(x), tokens


class MaskedLM(nn.Module):
    """Embeddings, encoder, a transform, and logits from the tied embedding plus a bias."""

    config: BertConfig

    @nn.compact
    def __call__(self, batch: Tree) -> jax.Array:
        c = self.config
        x, tokens = Embeddings(c.vocabulary, c.hidden, c.sequence, name="embeddings")(batch)
        x = Encoder(c, name="encoder")(x, batch["mask"])
        x = nn.gelu(nn.Dense(c.hidden, name="transform")(x), approximate=False)
        x = nn.LayerNorm(epsilon=1e-12, name="norm")(x)
        return tokens.attend(x) + self.param("bias", nn.initializers.zeros, (c.vocabulary,))


def masked_cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """The mean cross-entropy over the labels that are not 0."""
    chosen = jax.nn.one_hot(labels, logits.shape[-1])
    losses = -jnp.sum(chosen * jax.nn.log_softmax(logits), axis=-1)
    weights = jnp.where(labels > 0, 1.0, 0.0)
    return jnp.sum(weights * losses) / jnp.sum(weights)


def token_batch(key: jax.Array, *, batch: int, sequence: int, vocabulary: int) -> Tree:
    """Random ids and labels of shape (batch, sequence), with mask, positions and segments, as encoders take them."""
    key_ids, key_labels = jax.random.split(key)
    shape = (batch, sequence)
    return {
        "ids": jax.random.randint(key_ids, shape, 1, vocabulary),
        "labels": jax.random.randint(key_labels, shape, 1, vocabulary),
        "mask": jnp.ones(shape, jnp.int32),
        "positions": jnp.broadcast_to(jnp.arange(sequence), shape),
        "segments": jnp.zeros(shape, jnp.int32),
    }


def bert_layers(config: BertConfig, *, batch: int, size: Size = "small", name: str = "bert_layers") -> Model:
    """A train step of the encoder layers alone, regressing random hidden states."""
    network = Encoder(config)
    optimizer = optax.adam(1e-2)

    def loss(params: Tree, batch: Tree) -> jax.Array:
        return jnp.mean((network.apply(params, batch["x"], batch["mask"]) - batch["y"]) ** 2)

    def make() -> tuple[Tree, ...]:
        key_x, key_y, key = jax.random.split(seed(), 3)
        shape = (batch, config.sequence, config.hidden)
        data = {
            "x": jax.random.normal(key_x, shape),
            "y": jax.random.normal(key_y, shape),
            "mask": jnp.ones(shape[:2], jnp.int32),
        }
        params = network.init(key, data["x"][:1], data["mask"][:1])
        return params, optimizer.init(params), data

    return trained(
        name,
        loss,
        optimizer,
        arguments(make, size),
        batch=batch,
        tokens=batch * config.sequence,
        notes=f"{config.layers} encoder layers{', rematerialised' if config.remat else ''}",
    )


def bert_mlm(config: BertConfig, *, batch: int, size: Size = "small", name: str = "bert") -> Model:
    """A train step of the masked language model."""
    network = MaskedLM(config)
    optimizer = optax.adam(1e-2)

    def loss(params: Tree, batch: Tree) -> jax.Array:
        return masked_cross_entropy(network.apply(params, batch), batch["labels"])

    def make() -> tuple[Tree, ...]:
        key_data, key = jax.random.split(seed())
        data = token_batch(key_data, batch=batch, sequence=config.sequence, vocabulary=config.vocabulary)
        params = network.init(key, jax.tree.map(lambda leaf: leaf[:1], data))
        return params, optimizer.init(params), data

    return trained(
        name,
        loss,
        optimizer,
        arguments(make, size),
        batch=batch,
        tokens=batch * config.sequence,
        notes=f"{config.layers} layers, tied embedding of {config.vocabulary}",
    )


def build(size: Size = "small") -> Model:
    """The masked language model. Small: 2 layers, 64 wide. Real: BERT-large, 256 sequences of 512."""
    if size == "small":
        return bert_mlm(BertConfig(layers=2, hidden=64, heads=8, sequence=32, vocabulary=512), batch=16, size=size)
    return bert_mlm(LARGE, batch=256, size=size)
