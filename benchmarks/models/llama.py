"""Llama 3 in plain JAX: stacked layers under `lax.scan`, each rematerialised; RoPE, RMSNorm, grouped-query attention,
SwiGLU; bf16 compute over f32 master weights, trained by AdamW with f32 moments and clipping by the global norm.

Architecture: "The Llama 3 Herd of Models", https://arxiv.org/abs/2407.21783, table 3.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.models.attention import Kernel, causal_attention
from benchmarks.models.base import Model, Size, Tree
from benchmarks.models.checkpoints import checkpoint, scanned
from benchmarks.models.language import language_model
from benchmarks.models.places import activation, at_use


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    """Sizes of a Llama; `query_block` is how many queries attend at a time in training (None: all at once).

    Instead, a `kernel` may compute the attention of training. The layers are scanned, or written out one after the other.
    """

    width: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocabulary: int = 128256
    sequence: int = 8192
    rope_base: float = 500000.0
    query_block: int | None = None
    kernel: Kernel | None = None
    scan: bool = True

    @property
    def head_dim(self) -> int:
        """Features of one head."""
        return self.width // self.heads

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        attention = self.width * self.head_dim * 2 * (self.heads + self.kv_heads)
        layer = attention + 3 * self.width * self.ffn + 2 * self.width
        return self.layers * layer + 2 * self.vocabulary * self.width + self.width


CONFIGS = {
    "8B": LlamaConfig(width=4096, layers=32, heads=32, kv_heads=8, ffn=14336),
    "70B": LlamaConfig(width=8192, layers=80, heads=64, kv_heads=8, ffn=28672),
    "405B": LlamaConfig(width=16384, layers=126, heads=128, kv_heads=8, ffn=53248),
}
SMALL = LlamaConfig(width=64, layers=4, heads=8, kv_heads=4, ffn=128, vocabulary=256, sequence=32)


def shapes(config: LlamaConfig) -> Tree:
    """The parameters; those of the layers are stacked in front if they are scanned, else a list of one tree per layer."""
    c, stack = config, (config.layers,) if config.scan else ()
    layer = {
        "wq": (*stack, c.width, c.heads, c.head_dim),
        "wk": (*stack, c.width, c.kv_heads, c.head_dim),
        "wv": (*stack, c.width, c.kv_heads, c.head_dim),
        "wo": (*stack, c.heads, c.head_dim, c.width),
        "gate": (*stack, c.width, c.ffn),
        "up": (*stack, c.width, c.ffn),
        "down": (*stack, c.ffn, c.width),
        "attention_norm": (*stack, c.width),
        "ffn_norm": (*stack, c.width),
    }
    return {
        "embed": (c.vocabulary, c.width),
        "layers": layer if c.scan else [layer] * c.layers,
        "norm": (c.width,),
        "head": (c.width, c.vocabulary),
    }


def rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    """x over its root mean square along the last dim, times `scale`; computed in f32, of the type of x."""
    y = x.astype(jnp.float32)
    y = y * lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + 1e-5)
    return (y * scale).astype(x.dtype)


def rope(x: jax.Array, positions: jax.Array, base: float) -> jax.Array:
    """x of shape (batch, sequence, heads, head_dim), its two halves rotated by position (https://arxiv.org/abs/2104.09864)."""
    half = x.shape[-1] // 2
    frequencies = base ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = positions[:, None, None].astype(jnp.float32) * frequencies
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    first, second = x[..., :half].astype(jnp.float32), x[..., half:].astype(jnp.float32)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


def swiglu(x: jax.Array, layer: Tree) -> jax.Array:
    """The gated feed-forward layer (https://arxiv.org/abs/2002.05202)."""
    return (jax.nn.silu(x @ layer["gate"]) * (x @ layer["up"])) @ layer["down"]


def forward(config: LlamaConfig, params: Tree, ids: jax.Array) -> jax.Array:
    """bf16 hidden states of shape (batch, sequence, width) before the head."""
    positions = jnp.arange(ids.shape[1])

    def block(x: jax.Array, layer: Tree) -> tuple[jax.Array, None]:
        layer = at_use(jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), layer))
        h = rms_norm(x, layer["attention_norm"])
        query = rope(jnp.einsum("bsm,mhd->bshd", h, layer["wq"]), positions, config.rope_base)
        key = rope(jnp.einsum("bsm,mgd->bsgd", h, layer["wk"]), positions, config.rope_base)
        value = jnp.einsum("bsm,mgd->bsgd", h, layer["wv"])
        mixed = causal_attention(query, key, value, block=config.query_block, kernel=config.kernel)
        mixed = activation(mixed, "attention")
        x = x + jnp.einsum("bshd,hdm->bsm", mixed, layer["wo"])
        x = activation(x, "residual")
        return x + swiglu(rms_norm(x, layer["ffn_norm"]), layer), None

    x = params["embed"].astype(jnp.bfloat16)[ids]
    if config.scan:
        x = scanned(block, x, params["layers"])
    else:
        for n in range(config.layers):
            x, _ = checkpoint(block)(x, params["layers"][n])
    return rms_norm(x, params["norm"])


def llama(config: LlamaConfig, *, batch: int, size: Size = "small", name: str = "llama") -> Model:
    """A train step on `batch` sequences; the batch is {"ids", "labels"}, each of shape (batch, sequence)."""
    return language_model(
        name,
        lambda params, ids: forward(config, params, ids),
        shapes(config),
        vocabulary=config.vocabulary,
        sequence=config.sequence,
        batch=batch,
        size=size,
        notes=f"{config.parameters / 1e9:.1f}B parameters, sequence {config.sequence}",
    )


def build(size: Size = "small", *, config: str = "8B", batch: int | None = None) -> Model:
    """Small: 4 layers, 64 wide, 16 sequences. Real: `config` of CONFIGS, by default 256 sequences of 8,192."""
    if size == "small":
        return llama(SMALL, batch=batch or 16, size=size)
    return llama(CONFIGS[config], batch=batch or 256, size=size, name=f"llama_{config}")
