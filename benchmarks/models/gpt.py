"""A GPT decoder: Flax linen, layers scanned and rematerialised or written out, bf16 activations over f32 parameters.

Trained by AdamW with clipping by the global norm and no decay of biases and norms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from benchmarks.models.attention import Kernel, causal_attention
from benchmarks.models.base import Model, Size, Tree, arguments, matrices_only, seed, trained
from benchmarks.models.checkpoints import remat
from benchmarks.models.places import activation


@dataclass(frozen=True, slots=True, kw_only=True)
class GPTConfig:
    """Sizes of a GPT; the feed-forward layer is four times as wide as the model; a `kernel` may compute its attention."""

    width: int
    layers: int
    heads: int
    vocabulary: int = 51200
    sequence: int = 1024
    kernel: Kernel | None = None


CONFIGS = {
    # Alpa (OSDI'22), section 8.1: https://arxiv.org/abs/2201.12023
    "1.3B": GPTConfig(width=2048, layers=24, heads=32),
    "2.6B": GPTConfig(width=2560, layers=32, heads=32),
    "6.7B": GPTConfig(width=4096, layers=32, heads=32),
    "15B": GPTConfig(width=5120, layers=48, heads=40),
    "39B": GPTConfig(width=8192, layers=48, heads=64),
    # "Language Models are Few-Shot Learners", table 2.1: https://arxiv.org/abs/2005.14165
    "175B": GPTConfig(width=12288, layers=96, heads=96, vocabulary=50304, sequence=2048),
}
SMALL = GPTConfig(width=64, layers=4, heads=8, vocabulary=256, sequence=32)


def _attention(kernel: Kernel | None) -> Callable[..., jax.Array]:
    """What Flax calls to mix values; a kernel masks by itself."""
    if kernel is None:
        return nn.dot_product_attention
    return lambda query, key, value, **_: causal_attention(query, key, value, kernel=kernel)


class Block(nn.Module):
    """Pre-norm attention and feed-forward; (x, mask) -> (x, None), the form that `nn.scan` wants."""

    config: GPTConfig

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> tuple[jax.Array, None]:
        c, dtype = self.config, jnp.bfloat16
        h = nn.LayerNorm(dtype=dtype, name="attention_norm")(x)
        mixed = nn.MultiHeadDotProductAttention(
            c.heads,
            dtype=dtype,
            force_fp32_for_softmax=True,
            deterministic=True,
            attention_fn=_attention(c.kernel),
            name="attention",
        )(h, mask=mask)
        x = activation(x + mixed, "residual")
        h = nn.LayerNorm(dtype=dtype, name="mlp_norm")(x)
        h = activation(nn.gelu(nn.Dense(4 * c.width, dtype=dtype, name="up")(h)), "hidden")
        return x + nn.Dense(c.width, dtype=dtype, name="down")(h), None


class GPT(nn.Module):
    """Token ids of shape (batch, sequence) -> f32 logits of shape (batch, sequence, vocabulary)."""

    config: GPTConfig
    scan: bool = True
    remat: bool = True
    tied: bool = True

    @nn.compact
    def __call__(self, ids: jax.Array) -> jax.Array:
        c, dtype = self.config, jnp.bfloat16
        embed = nn.Embed(c.vocabulary, c.width, dtype=dtype, name="embed")
        x = embed(ids) + nn.Embed(c.sequence, c.width, dtype=dtype, name="positions")(jnp.arange(ids.shape[1]))
        mask = nn.make_causal_mask(ids)
        block = remat(Block, prevent_cse=not self.scan) if self.remat else Block
        if self.scan:
            stack = nn.scan(
                block,
                variable_axes={"params": 0},
                split_rngs={"params": True},
                in_axes=nn.broadcast,
                length=c.layers,
            )
            x, _ = stack(c, name="layers")(x, mask)
        else:
            for n in range(c.layers):
                x, _ = block(c, name=f"layer_{n}")(x, mask)
        x = nn.LayerNorm(dtype=dtype, name="norm")(x)
        logits = embed.attend(x) if self.tied else nn.Dense(c.vocabulary, use_bias=False, dtype=dtype, name="head")(x)
        return logits.astype(jnp.float32)


def gpt(
    config: GPTConfig,
    *,
    batch: int,
    scan: bool = True,
    remat: bool = True,
    tied: bool = True,
    size: Size = "small",
    name: str = "gpt",
) -> Model:
    """A train step on `batch` sequences."""
    network = GPT(config, scan=scan, remat=remat, tied=tied)
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(3e-4, b2=0.95, weight_decay=0.1, mask=matrices_only)
    )

    def loss(params: Tree, ids: jax.Array) -> jax.Array:
        logits = network.apply(params, ids[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, ids[:, 1:]).mean()

    def make() -> tuple[Tree, ...]:
        key_ids, key = jax.random.split(seed())
        ids = jax.random.randint(key_ids, (batch, config.sequence + 1), 0, config.vocabulary)
        params = network.init(key, ids[:1, :-1])
        return params, optimizer.init(params), ids

    return trained(
        name,
        loss,
        optimizer,
        arguments(make, size),
        batch=batch,
        tokens=batch * config.sequence,
        notes=f"{config.layers} layers {'scanned' if scan else 'written out'}, {'tied' if tied else 'untied'} head",
    )


def build(size: Size = "small") -> Model:
    """Layers scanned. Small: 4 layers, 64 wide. Real: 1.3B parameters, 256 sequences of 1,024."""
    if size == "small":
        return gpt(SMALL, batch=16, size=size)
    return gpt(CONFIGS["1.3B"], batch=256, size=size)


def build_unrolled(size: Size = "small") -> Model:
    """The same with its layers written out one after the other, and a head of its own."""
    if size == "small":
        return gpt(SMALL, batch=16, scan=False, tied=False, size=size, name="gpt_unrolled")
    return gpt(CONFIGS["1.3B"], batch=256, scan=False, tied=False, size=size, name="gpt_unrolled")
