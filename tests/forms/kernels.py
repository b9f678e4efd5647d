"""Small programs with kernels, loops and branches in layers; the backward pass reads more of them than the forward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

LAYERS, WIDTH, BATCH, CHUNK = 3, 8, 4, 2
Step = Callable[..., Any]
Attention = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
Saved = tuple[jax.Array, jax.Array]
"""What an attention kernel makes: its result, and the logarithms of the sums of its weights."""


def _flash(q: jax.Array, k: jax.Array, v: jax.Array) -> Saved:
    def add(carry: Any, chunk: Any) -> Any:
        out, top, total = carry
        keys, values = chunk
        scores = q @ keys.T
        higher = jnp.maximum(top, scores.max(-1))
        weights, less = jnp.exp(scores - higher[:, None]), jnp.exp(top - higher)
        return (out * less[:, None] + weights @ values, higher, total * less + weights.sum(-1)), None

    start = (jnp.zeros_like(q), jnp.full(BATCH, -jnp.inf), jnp.zeros(BATCH))
    chunks = tuple(x.reshape(-1, CHUNK, WIDTH) for x in (k, v))
    (out, top, total), _ = lax.scan(jax.checkpoint(add), start, chunks)
    return out / total[:, None], top + jnp.log(total)


def _attend(q_ref: Any, k_ref: Any, v_ref: Any, out_ref: Any, sums_ref: Any) -> None:
    scores = q_ref[...] @ k_ref[...].T
    sums = jnp.log(jnp.exp(scores).sum(-1, keepdims=True))
    out_ref[...] = jnp.exp(scores - sums) @ v_ref[...]
    sums_ref[...] = sums


def _pallas(q: jax.Array, k: jax.Array, v: jax.Array) -> Saved:
    results = (jax.ShapeDtypeStruct(q.shape, q.dtype), jax.ShapeDtypeStruct((BATCH, 1), q.dtype))
    out, sums = pl.pallas_call(_attend, out_shape=results, interpret=True)(q, k, v)
    return out, sums[:, 0]


def _kernel(forward: Callable[..., Saved]) -> Attention:
    """Attention with a derivative of its own."""

    def kept(q: jax.Array, k: jax.Array, v: jax.Array) -> Any:
        out, sums = forward(q, k, v)
        return out, (q, k, v, out, sums)

    def backward(kept: Any, g: jax.Array) -> Any:
        q, k, v, out, sums = kept
        weights = jnp.exp(q @ k.T - sums[:, None])
        scores = weights * (g @ v.T - (g * out).sum(-1, keepdims=True))
        return scores @ k, scores.T @ q, weights.T @ g

    attention = jax.custom_vjp(lambda q, k, v: forward(q, k, v)[0])
    attention.defvjp(kept, backward)
    return attention


def _inner_loop(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """A recurrence, of which the backward pass reads every state."""

    def step(state: jax.Array, row: Any) -> Any:
        state = jnp.tanh(state @ k.T @ v + row)
        return state, state * 2

    return lax.scan(step, jnp.zeros(WIDTH), q)[1]


def _branches(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """A branch, of which the backward pass reads what it makes on the way."""
    return lax.cond(q.sum() > 0, lambda: jnp.tanh(q @ k.T) @ v, lambda: jnp.sin(k @ v.T) @ q)


def _looped(q: jax.Array, k: jax.Array, v: jax.Array) -> Saved:
    """A loop whose end is not known."""
    out, turns = lax.while_loop(
        lambda c: (jnp.abs(c[0]).max() > 0.5) & (c[1] < 5), lambda c: (jnp.tanh(c[0]) * 0.7, c[1] + 1), (q @ k.T, 0)
    )
    return jnp.exp(out + turns - turns) @ v, jnp.log(jnp.exp(q @ k.T).sum(-1)) + 0 * turns


def _layer(attention: Attention) -> Step:
    def layer(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
        q, k, v = jnp.split(x @ w["up"] @ w["up"].T @ jnp.tile(w["down"][:WIDTH], (1, 3)), 3, axis=-1)
        x = x + jnp.tanh(attention(q * w["scale"], k, v) @ w["up"]) @ w["down"]
        return x, None

    return layer


def _scanned(attention: Attention) -> Callable[[], Step]:
    layer = jax.checkpoint(_layer(attention))
    return lambda: jax.value_and_grad(lambda params, x: jnp.mean(lax.scan(layer, x, params)[0] ** 2))


def _written_out(attention: Attention) -> Callable[[], Step]:
    layer = jax.checkpoint(_layer(attention))

    def loss(params: Any, x: jax.Array) -> jax.Array:
        for n in range(LAYERS):
            x, _ = layer(x, jax.tree.map(lambda leaf, n=n: leaf[n], params))
        return jnp.mean(x**2)

    return lambda: jax.value_and_grad(loss)


def _read_later() -> Step:
    """A second loop that reads what the first has carried to its end, beside what it has stacked."""

    def step(params: Any, x: jax.Array) -> Any:
        last, seen = lax.scan(lambda c, w: (jnp.tanh(c @ w @ w.T), c), x, params["up"])
        return lax.scan(lambda total, one: (total + 1, jnp.sin(one * last) + total), 0.0, seen)[1]

    return step


KERNELS: Mapping[str, Attention] = {
    "flash": _kernel(_flash),
    "pallas": _kernel(_pallas),
    "inner_loop": _inner_loop,
    "branches": _branches,
    "looped": _kernel(_looped),
}
PROGRAMS: Mapping[str, Callable[[], Step]] = {
    **{name: _scanned(attention) for name, attention in KERNELS.items()},
    **{f"{name}_written_out": _written_out(attention) for name, attention in KERNELS.items()},
    "read_later": lambda: _read_later(),
}
