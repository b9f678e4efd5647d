"""A decoder of experts in plain JAX: Mixtral, and one like DeepSeek-V3; layers scanned and rematerialised; AdamW.

Attention, norms and rotary positions are those of `llama`. Each token goes to its `top` experts by the dispatch and combine
tensors of GShard (https://arxiv.org/abs/2006.16668), within groups of tokens and up to a capacity per expert.
Architectures: https://arxiv.org/abs/2401.04088, https://arxiv.org/abs/2412.19437.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.models.attention import Kernel, causal_attention
from benchmarks.models.base import Model, Size, Tree
from benchmarks.models.checkpoints import scanned
from benchmarks.models.language import language_model
from benchmarks.models.llama import rms_norm, rope
from benchmarks.models.places import activation, at_use


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseConfig:
    """Sizes of a decoder of experts.

    `latent` is the width that keys and values are computed from (None: the model's), `shared_ffn` that of the expert that
    takes every token (None: there is none), `group` the tokens that share the experts' capacity. Attention is by a
    `kernel`, or `query_block` queries at a time.
    """

    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: int
    top: int
    expert_ffn: int
    shared_ffn: int | None = None
    latent: int | None = None
    vocabulary: int = 32000
    sequence: int = 4096
    group: int = 1024
    query_block: int | None = 512
    kernel: Kernel | None = None


CONFIGS = {
    "8x7B": SparseConfig(width=4096, layers=32, heads=32, kv_heads=8, head_dim=128, experts=8, top=2, expert_ffn=14336),
    # Every layer has experts; those of the original begin after three dense ones.
    "V3": SparseConfig(
        width=7168,
        layers=61,
        heads=128,
        kv_heads=128,
        head_dim=128,
        experts=256,
        top=8,
        expert_ffn=2048,
        shared_ffn=2048,
        latent=512,
        vocabulary=129280,
    ),
}
SMALL = SparseConfig(
    width=32,
    layers=2,
    heads=8,
    kv_heads=4,
    head_dim=8,
    experts=8,
    top=2,
    expert_ffn=64,
    shared_ffn=32,
    latent=16,
    vocabulary=256,
    sequence=16,
    group=16,
    query_block=None,
)


def shapes(config: SparseConfig) -> Tree:
    """The parameters; those of the layers are stacked in front."""
    c = config
    source = c.latent or c.width
    layer: dict[str, tuple[int, ...]] = {
        "wq": (c.width, c.heads, c.head_dim),
        "wk": (source, c.kv_heads, c.head_dim),
        "wv": (source, c.kv_heads, c.head_dim),
        "wo": (c.heads, c.head_dim, c.width),
        "router": (c.width, c.experts),
        "gate": (c.experts, c.width, c.expert_ffn),
        "up": (c.experts, c.width, c.expert_ffn),
        "down": (c.experts, c.expert_ffn, c.width),
        "attention_norm": (c.width,),
        "ffn_norm": (c.width,),
    }
    if c.latent is not None:
        layer |= {"latent": (c.width, c.latent), "latent_norm": (c.latent,)}
    if c.shared_ffn is not None:
        shared = (c.width, c.shared_ffn)
        layer |= {"shared_gate": shared, "shared_up": shared, "shared_down": shared[::-1]}
    return {
        "embed": (c.vocabulary, c.width),
        "layers": {name: (c.layers, *shape) for name, shape in layer.items()},
        "norm": (c.width,),
        "head": (c.width, c.vocabulary),
    }


def route(gates: jax.Array, top: int, capacity: int) -> jax.Array:
    """Combine weights of shape (g, s, e, capacity) from gate probabilities of shape (g, s, e); 0 where not routed."""
    weights, chosen = lax.top_k(gates, top)
    weights = weights / weights.sum(axis=-1, keepdims=True)
    groups, length, experts = gates.shape
    picked = jax.nn.one_hot(chosen, experts, dtype=gates.dtype)
    # All first choices take their slots before all second ones.
    ordered = jnp.swapaxes(picked, 1, 2).reshape(groups, top * length, experts)
    slots = ((jnp.cumsum(ordered, axis=1) - ordered) * ordered).sum(axis=-1)
    slot = jnp.swapaxes(slots.reshape(groups, top, length), 1, 2).astype(jnp.int32)
    places = jax.nn.one_hot(slot, capacity, dtype=gates.dtype)
    return jnp.einsum("gsk,gske,gskc->gsec", weights, picked, places)


def experts(config: SparseConfig, x: jax.Array, layer: Tree) -> jax.Array:
    """Each token of x of shape (batch, sequence, width) through its experts, and through the shared one."""
    c = config
    tokens = x.reshape(-1, c.group, c.width)
    gates = jax.nn.softmax(jnp.einsum("gsm,me->gse", tokens, layer["router"], preferred_element_type=jnp.float32))
    combine = route(gates, c.top, max(1, c.top * c.group // c.experts))
    dispatch = (combine > 0).astype(x.dtype)
    inputs = activation(jnp.einsum("gsec,gsm->egcm", dispatch, tokens), "dispatched")
    gated = jax.nn.silu(jnp.einsum("egcm,emh->egch", inputs, layer["gate"]))
    hidden = gated * jnp.einsum("egcm,emh->egch", inputs, layer["up"])
    outputs = jnp.einsum("egch,ehm->gecm", hidden, layer["down"])
    y = jnp.einsum("gsec,gecm->gsm", combine.astype(x.dtype), outputs).reshape(x.shape)
    if c.shared_ffn is not None:
        y = y + (jax.nn.silu(x @ layer["shared_gate"]) * (x @ layer["shared_up"])) @ layer["shared_down"]
    return y


def forward(config: SparseConfig, params: Tree, ids: jax.Array) -> jax.Array:
    """bf16 hidden states of shape (batch, sequence, width) before the head."""
    positions = jnp.arange(ids.shape[1])

    def block(x: jax.Array, layer: Tree) -> tuple[jax.Array, None]:
        layer = at_use(jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), layer))
        h = rms_norm(x, layer["attention_norm"])
        source = h if config.latent is None else rms_norm(h @ layer["latent"], layer["latent_norm"])
        query = rope(jnp.einsum("bsm,mhd->bshd", h, layer["wq"]), positions, 1e6)
        key = rope(jnp.einsum("bsm,mgd->bsgd", source, layer["wk"]), positions, 1e6)
        value = jnp.einsum("bsm,mgd->bsgd", source, layer["wv"])
        mixed = causal_attention(query, key, value, block=config.query_block, kernel=config.kernel)
        mixed = activation(mixed, "attention")
        x = activation(x + jnp.einsum("bshd,hdm->bsm", mixed, layer["wo"]), "residual")
        return x + experts(config, rms_norm(x, layer["ffn_norm"]), layer), None

    x = params["embed"].astype(jnp.bfloat16)[ids]
    x = scanned(block, x, params["layers"])
    return rms_norm(x, params["norm"])


def sparse(config: SparseConfig, *, batch: int, size: Size = "small", name: str = "sparse") -> Model:
    """A train step on `batch` sequences; the batch is {"ids", "labels"}, each of shape (batch, sequence)."""
    return language_model(
        name,
        lambda params, ids: forward(config, params, ids),
        shapes(config),
        vocabulary=config.vocabulary,
        sequence=config.sequence,
        batch=batch,
        size=size,
        notes=f"{config.experts} experts, top {config.top}",
    )


def build(size: Size = "small", *, config: str = "8x7B", batch: int = 256) -> Model:
    """Small: 2 layers, 8 experts, 16 sequences. Real: `config` of CONFIGS, by default 256 sequences."""
    if size == "small":
        return sparse(SMALL, batch=16, size=size)
    return sparse(CONFIGS[config], batch=batch, size=size, name=f"sparse_{config}")
