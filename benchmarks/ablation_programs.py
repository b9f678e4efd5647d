"""Small programs for the ablation: each brings passes of the compiler model to bear that no program of the suite does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.models.base import Model

BF16, F32, I32 = jnp.bfloat16, jnp.float32, jnp.int32


def _array(*shape: int, dtype: Any = BF16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def _model(name: str, fn: Callable[..., Any], *args: Any, donated: tuple[int, ...] = ()) -> Model:
    return Model(name=name, kind="inference", fn=fn, args=args, donate_argnums=donated, batch=1, tokens=0, notes="")


def lookup() -> Model:
    """Rows of a table of 64 columns."""

    def fn(table: Any, rows: Any, w: Any) -> Any:
        return jnp.tanh(table[rows] @ w)

    return _model("lookup", fn, _array(1 << 20, 64, dtype=F32), _array(1 << 20, dtype=I32), _array(64, 256, dtype=F32))


def messages() -> Model:
    """Rows of 8 columns, gathered by their senders and added up at their receivers."""

    def fn(nodes: Any, senders: Any, receivers: Any) -> Any:
        return jnp.zeros_like(nodes).at[receivers].add(jnp.tanh(nodes[senders]))

    edges = _array(1 << 22, dtype=I32)
    return _model("messages", fn, _array(1 << 18, 8, dtype=F32), edges, edges)


def scattered() -> Model:
    """Rows of 64 columns added to zeros."""

    def fn(rows: Any, at: Any) -> Any:
        return jnp.zeros((1 << 18, 64), F32).at[at].add(rows)

    return _model("scattered", fn, _array(1 << 20, 64, dtype=F32), _array(1 << 20, dtype=I32))


def single_query() -> Model:
    """One query per head over a cache, in which it is stored."""

    def fn(caches: Any, query: Any, at: Any) -> Any:
        def body(n: Any, carry: Any) -> Any:
            caches, query = carry
            caches = lax.dynamic_update_slice(caches, query[None, :, None], (n, 0, at, 0, 0))
            scores = jnp.einsum("bhd,bthd->bht", query, caches[n]).astype(F32)
            return caches, jnp.einsum("bht,bthd->bhd", jax.nn.softmax(scores, -1).astype(BF16), caches[n])

        return lax.fori_loop(0, 8, body, (caches, query))

    cache = _array(8, 64, 2048, 32, 128)
    return _model("single query", fn, cache, _array(64, 32, 128), _array(dtype=I32), donated=(0,))


def grouped_queries() -> Model:
    """Four queries per head over a cache in the carry of a loop."""

    def fn(caches: Any, query: Any, at: Any) -> Any:
        def body(n: Any, carry: Any) -> Any:
            caches, query = carry
            caches = lax.dynamic_update_slice(caches, query[None, :, None, :, 0], (n, 0, at, 0, 0))
            scores = jnp.einsum("bkgd,btkd->bkgt", query, caches[n]).astype(F32)
            return caches, jnp.einsum("bkgt,btkd->bkgd", jax.nn.softmax(scores, -1).astype(BF16), caches[n])

        return lax.fori_loop(0, 8, body, (caches, query))

    cache = _array(8, 64, 2048, 16, 128)
    return _model("grouped queries", fn, cache, _array(64, 16, 4, 128), _array(dtype=I32), donated=(0,))


def sines() -> Model:
    """The gradient of layers whose activation is a sine."""

    def loss(weights: Any, x: Any) -> Any:
        for up, down in weights:
            h = x @ up
            x = (h * jnp.sin(h)) @ down
        return (x.astype(F32) ** 2).mean()

    pair = (_array(4096, 8192), _array(8192, 4096))
    return _model("sines", jax.grad(loss), (pair,) * 3, _array(1 << 16, 4096))


def ragged() -> Model:
    """The gradient of a ragged dot of eight groups."""

    def loss(w: Any, x: Any, sizes: Any) -> Any:
        return (lax.ragged_dot(x, w, sizes).astype(F32) ** 2).mean()

    return _model("ragged", jax.grad(loss), _array(8, 2048, 2048), _array(1 << 14, 2048), _array(8, dtype=I32))


def transposed() -> Model:
    """Short inner dims, exchanged."""

    def fn(x: Any, y: Any) -> Any:
        return (jnp.transpose(x, (0, 2, 1)) * y).sum(0)

    return _model("transposed", fn, _array(1 << 16, 4, 512, dtype=F32), _array(1 << 16, 512, 4, dtype=F32))


SMALL: Mapping[str, Callable[[], Model]] = {
    build().name: build
    for build in (
        lookup,
        messages,
        scattered,
        single_query,
        grouped_queries,
        sines,
        ragged,
        transposed,
    )
}
"""By name."""
