"""A decoder as the published runs trained it: MaxText's, in plain JAX, from the figures of a row.

Stacked layers under `lax.scan`, each checkpointed by the names that the run saved; RMSNorm, RoPE, attention as a kernel
with its own derivative (causal flops) or plain; one or two matrices into the feed-forward layer, dense or a mixture of
experts with capacity; AdamW. bf16 compute over weights and moments of the run's dtypes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

import planner

Row = Mapping[str, Any]
Tree = Any

DOTS = ("query_proj", "key_proj", "value_proj", "out_proj", "mlpwi", "mlpwo")
SAVED: Mapping[str, tuple[str, ...]] = {
    "full": (),
    "minimal": DOTS,
    "minimal_flash": (*DOTS, "context"),
    "save_dot_except_mlpwi": tuple(name for name in DOTS if name != "mlpwi"),
    "save_dot_with_context_except_mlp": ("query_proj", "key_proj", "value_proj", "out_proj", "context"),
    "save_qkv_proj": ("query_proj", "key_proj", "value_proj"),
}
"""By policy of MaxText (`remat_policy`) the names that it saves beside the input of a layer."""

BACKWARD_PRODUCTS = 7
"""Products of matrices in the backward pass of a flash kernel of TPUs: dq and dk, dv are kernels of their own, and each
makes the scores and their gradient again (jax.experimental.pallas.ops.tpu.splash_attention)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """The figures of a run that its program depends on."""

    row: Row

    @property
    def model(self) -> Row:
        return self.row["model"]

    @property
    def compute(self) -> Any:
        return jnp.dtype(self.row["dtypes"]["compute"])

    @property
    def groups(self) -> int:
        """Query heads that share a key and value head."""
        return self.model["heads"] // self.model["kv"]


def parameters(of: Decoder) -> Tree:
    """Shapes and dtypes of the weights."""
    m, dtype = of.model, jnp.dtype(of.row["dtypes"]["weights"])
    stack, width, ffn, experts = m["layers"], m["emb"], m["mlp"], m.get("experts")

    def shape(*dims: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(dims, dtype)

    into = (stack, experts, width, ffn) if experts else (stack, width, ffn)
    layers = {
        "query": shape(stack, width, m["kv"], of.groups, m["head_dim"]),
        "key": shape(stack, width, m["kv"], m["head_dim"]),
        "value": shape(stack, width, m["kv"], m["head_dim"]),
        "out": shape(stack, m["kv"], of.groups, m["head_dim"], width),
        "wi": {str(i): shape(*into) for i in range(len(m["act"]))},
        "wo": shape(*into[:-2], ffn, width),
        "norm_attention": shape(stack, width),
        "norm_mlp": shape(stack, width),
    }
    if experts:
        layers["router"] = shape(stack, width, experts)
    tree = {"embed": shape(m["vocab"], width), "layers": layers, "norm": shape(width)}
    return tree if m.get("tied") else {**tree, "head": shape(width, m["vocab"])}


# ------------------------------------------------------------ attention


def _reference(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Causal attention of queries (b s k g d) to keys and values (b t k d)."""
    scores = jnp.einsum("bskgd,btkd->bkgst", q, k).astype(jnp.float32) / math.sqrt(q.shape[-1])
    causal = jnp.arange(q.shape[1])[:, None] >= jnp.arange(k.shape[1])
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e30), axis=-1)
    return jnp.einsum("bkgst,btkd->bskgd", weights.astype(q.dtype), v)


def _forward(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
    """What the kernel computes: the result, and a float per query for the backward pass."""
    b, s, kv, g, _ = q.shape
    return _reference(q, k, v), jnp.zeros((b, kv, g, s), jnp.float32)


def _causal_flops(products: int) -> Any:
    """The flops of so many products over the half of the scores that a causal mask leaves, from the operands' parts."""

    def flops(q: Any, k: Any, *_: Any) -> float:
        return products * math.prod(q.shape) * k.shape[1]

    return flops


def flash(backward_products: int) -> Any:
    """Attention as a kernel, with another as its derivative."""
    dims = "b s k g d, b t k d, b t k d"
    forward = planner.rule_for(_forward, f"{dims} -> b s k g d, b k g s | replicate s t d", flops=_causal_flops(2))

    def gradients(q: Any, k: Any, v: Any, out: Any, rest: Any, given: Any) -> Any:
        del out, rest
        return jax.vjp(_reference, q, k, v)[1](given)

    backward = planner.rule_for(
        gradients,
        f"{dims}, b s k g d, b k g s, b s k g d -> {dims} | replicate s t d",
        flops=_causal_flops(backward_products),
    )

    @jax.custom_vjp
    def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return forward(q, k, v)[0]

    def saved(q: jax.Array, k: jax.Array, v: jax.Array) -> Any:
        out, rest = forward(q, k, v)
        out = checkpoint_name(out, "context")
        return out, (q, k, v, out, checkpoint_name(rest, "context"))

    attention.defvjp(saved, lambda kept, given: backward(*kept, given))
    return attention


# ------------------------------------------------------------ layers


def _normed(x: jax.Array, scale: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    return (wide * lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-6) * scale).astype(x.dtype)


def _rotated(x: jax.Array) -> jax.Array:
    """RoPE over dim 1 of (b s ... d)."""
    half = x.shape[-1] // 2
    angle = jnp.arange(x.shape[1])[:, None] * 10000.0 ** (-jnp.arange(half) / half)
    angle = angle.reshape(x.shape[1], *(1,) * (x.ndim - 3), half)
    first, second = jnp.split(x.astype(jnp.float32), 2, -1)
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1).astype(x.dtype)


ACTIVATIONS: Mapping[str, Any] = {
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
    "linear": lambda x: x,
}


def _gated(parts: list[jax.Array], names: list[str]) -> jax.Array:
    return functools.reduce(jnp.multiply, [ACTIVATIONS[name](x) for name, x in zip(names, parts, strict=True)])


def _mlp(of: Decoder, x: jax.Array, w: Tree) -> jax.Array:
    parts = [checkpoint_name(x @ w["wi"][i].astype(x.dtype), "mlpwi") for i in sorted(w["wi"])]
    return checkpoint_name(_gated(parts, of.model["act"]) @ w["wo"].astype(x.dtype), "mlpwo")


def _experts(of: Decoder, x: jax.Array, w: Tree) -> jax.Array:
    """A mixture of experts with capacity: dispatched and combined by one-hot matmuls, as MaxText does without megablox."""
    m = of.model
    capacity = math.ceil(x.shape[1] * m["topk"] * m["capacity"] / m["experts"])
    gates = jax.nn.softmax((x @ w["router"].astype(x.dtype)).astype(jnp.float32), -1)
    best, chosen = lax.top_k(gates, m["topk"])
    picked = jax.nn.one_hot(chosen, m["experts"], dtype=jnp.float32)
    place = jnp.cumsum(picked.sum(2), axis=1) - 1
    slot = jax.nn.one_hot(place.astype(jnp.int32), capacity, dtype=x.dtype)
    dispatch = slot * picked.sum(2).astype(x.dtype)[..., None]
    combine = dispatch * jnp.einsum("bsk,bske->bse", best, picked).astype(x.dtype)[..., None]
    sent = jnp.einsum("bsm,bsec->ebcm", x, dispatch)
    parts = [
        checkpoint_name(jnp.einsum("ebcm,emf->ebcf", sent, w["wi"][i].astype(x.dtype)), "mlpwi")
        for i in sorted(w["wi"])
    ]
    back = jnp.einsum("ebcf,efm->ebcm", _gated(parts, m["act"]), w["wo"].astype(x.dtype))
    return jnp.einsum("ebcm,bsec->bsm", checkpoint_name(back, "mlpwo"), combine)


def _layer(of: Decoder, attention: Any, x: jax.Array, w: Tree) -> jax.Array:
    rotated = _rotated if of.model.get("rope", True) else lambda x: x
    x = checkpoint_name(x, "decoder_layer_input")
    normed = _normed(x, w["norm_attention"])
    q = checkpoint_name(jnp.einsum("bsm,mkgd->bskgd", normed, w["query"].astype(x.dtype)), "query_proj")
    k = checkpoint_name(jnp.einsum("bsm,mkd->bskd", normed, w["key"].astype(x.dtype)), "key_proj")
    v = checkpoint_name(jnp.einsum("bsm,mkd->bskd", normed, w["value"].astype(x.dtype)), "value_proj")
    out = jnp.einsum("bskgd,kgdm->bsm", attention(rotated(q), rotated(k), v), w["out"].astype(x.dtype))
    x = x + checkpoint_name(out, "out_proj")
    mlp = _experts if of.model.get("experts") else _mlp
    return x + mlp(of, _normed(x, w["norm_mlp"]), w)


def _saved(of: Decoder) -> tuple[str, ...]:
    remat = of.row["remat"]
    return tuple(remat["saved"]) if isinstance(remat, Mapping) else SAVED[remat]


def _loss(of: Decoder, params: Tree, tokens: jax.Array) -> jax.Array:
    row, m = of.row, of.model
    attention = flash(row.get("bwd_products", BACKWARD_PRODUCTS)) if row["attention"] == "flash" else _reference
    policy = jax.checkpoint_policies.save_only_these_names(*_saved(of))
    layer = jax.checkpoint(functools.partial(_layer, of, attention), policy=policy)
    table = params["embed"].astype(of.compute)
    if row.get("iota_embed", True):
        x = jax.nn.one_hot(tokens, m["vocab"], dtype=of.compute) @ table
    else:
        x = table[tokens]
    x, _ = lax.scan(lambda x, w: (layer(x, w), None), x, params["layers"])
    x = _normed(x, params["norm"])
    head = params["embed"].T if m.get("tied") else params["head"]

    def summed(x: jax.Array, targets: jax.Array) -> jax.Array:
        logits = (x @ head.astype(x.dtype)).astype(jnp.float32)
        wanted = jnp.sum(jax.nn.one_hot(targets, m["vocab"], dtype=logits.dtype) * logits, -1)
        return jnp.sum(jax.nn.logsumexp(logits, -1) - wanted)

    targets, tiles = jnp.roll(tokens, -1, axis=1), row.get("vocab_tiling", 1)
    if tiles == 1:
        return summed(x, targets) / tokens.size
    cut = [jnp.moveaxis(a.reshape(a.shape[0], tiles, -1, *a.shape[2:]), 1, 0) for a in (x, targets)]
    part = jax.checkpoint(summed)
    total, _ = lax.scan(lambda sum_, xs: (sum_ + part(*xs), None), jnp.zeros(()), tuple(cut))
    return total / tokens.size


def train_step(of: Decoder, state: Tree, tokens: jax.Array) -> tuple[Tree, jax.Array]:
    """One step of AdamW."""
    loss, gradients = jax.value_and_grad(functools.partial(_loss, of))(state["params"], tokens)
    count = state["count"] + 1

    def updated(p: jax.Array, mu: jax.Array, nu: jax.Array, g: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        g = g.astype(jnp.float32)
        first = 0.9 * mu.astype(jnp.float32) + 0.1 * g
        second = 0.95 * nu.astype(jnp.float32) + 0.05 * g * g
        step = first / (1 - 0.9**count) / (jnp.sqrt(second / (1 - 0.95**count)) + 1e-8) + 0.1 * p.astype(jnp.float32)
        return (p - 1e-4 * step).astype(p.dtype), first.astype(mu.dtype), second.astype(nu.dtype)

    parts = jax.tree.map(updated, state["params"], state["mu"], state["nu"], gradients)
    params, mu, nu = jax.tree.transpose(jax.tree.structure(gradients), jax.tree.structure((0, 0, 0)), parts)
    return {"params": params, "mu": mu, "nu": nu, "count": count}, loss


def train_arguments(of: Decoder) -> tuple[Any, ...]:
    """The state and a batch of tokens."""
    dtypes, params = of.row["dtypes"], parameters(of)

    def moments(kind: str) -> Tree:
        dtype = jnp.dtype(dtypes.get(kind, dtypes["optimizer"]))
        return jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape, dtype), params)

    count = jax.ShapeDtypeStruct((), jnp.int32)
    state = {"params": params, "mu": moments("mu"), "nu": moments("nu"), "count": count}
    return state, jax.ShapeDtypeStruct((of.row["global_batch"], of.row["seq"]), jnp.int32)


# ------------------------------------------------------------ decoding


def _attend(q: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
    """Attention of one query of every sequence (b k g d) to its cache (b t k d)."""
    scores = jnp.einsum("bkgd,btkd->bkgt", q, keys).astype(jnp.float32) / math.sqrt(q.shape[-1])
    return jnp.einsum("bkgt,btkd->bkgd", jax.nn.softmax(scores, -1).astype(q.dtype), values)


_decode_kernel = planner.rule_for(
    _attend,
    "b k g d, b t k d, b t k d -> b k g d | replicate t d",
    flops=lambda q, keys, _: 4 * math.prod(q.shape) * keys.shape[1],
)


def decode_step(
    of: Decoder, params: Tree, cache: Tree, tokens: jax.Array, position: jax.Array
) -> tuple[jax.Array, Tree]:
    """The next token of every sequence of a batch, greedily; the cache takes its keys and values when it is computed."""
    x = params["embed"][tokens]

    def layer(x: jax.Array, both: Tree) -> tuple[jax.Array, Tree]:
        w, kept = both
        normed = _normed(x, w["norm_attention"])
        q = jnp.einsum("bm,mkgd->bkgd", normed, w["query"])
        k = jnp.einsum("bm,mkd->bkd", normed, w["key"])
        v = jnp.einsum("bm,mkd->bkd", normed, w["value"])
        x = x + jnp.einsum("bkgd,kgdm->bm", _decode_kernel(q, kept["k"], kept["v"]), w["out"])
        return x + _mlp(of, _normed(x, w["norm_mlp"]), w), {"k": k, "v": v}

    x, new = lax.scan(layer, x, (params["layers"], cache))
    cache = {
        name: lax.dynamic_update_slice_in_dim(cache[name], new[name][:, :, None], position, axis=2) for name in cache
    }
    return jnp.argmax(_normed(x, params["norm"]) @ params["head"], -1).astype(jnp.int32), cache


def decode_arguments(of: Decoder) -> tuple[Any, ...]:
    """Weights, cache, the last tokens and the position."""
    m, row = of.model, of.row
    shape = (m["layers"], row["global_batch"], row["seq"], m["kv"], m["head_dim"])
    cache = {name: jax.ShapeDtypeStruct(shape, jnp.dtype(row["dtypes"]["cache"])) for name in ("k", "v")}
    tokens = jax.ShapeDtypeStruct((row["global_batch"],), jnp.int32)
    return parameters(of), cache, tokens, jax.ShapeDtypeStruct((), jnp.int32)
