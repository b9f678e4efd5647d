"""Control flow and calls of random programs, nested up to two levels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from tests.programs.builder import Array, Builder, Do, Op, Pool, Unfit, is_float, is_plain, is_real, rank, twin


def _scan(b: Builder, do: Do, pool: Pool) -> Any:
    """A scan with a carry, stacked inputs and outputs, and the latest value of the pool as a constant."""
    carry = b.pick(pool, do.a, is_float)
    xs = b.pick(pool, do.b, lambda v: 1 <= v.ndim <= 3 and v.shape[0] <= 8 and is_plain(v))
    const = b.pick(pool, do.c, is_float)

    def body(c: Array, x: Array) -> tuple[Array, tuple[Array, Array]]:
        made = b.run(do.body, [const, x, c])
        # A stacked input that no step reads would be moved by XLA all the same, which drops it later.
        return b.inner((), made, c), (made[-1], -x if x.dtype != jnp.bool_ else x)

    last, stacked = lax.scan(body, carry, xs, reverse=do.d % 2 == 1, unroll=2 if do.d % 4 == 3 else 1)
    return last, *stacked


def _map(b: Builder, do: Do, pool: Pool) -> Any:
    """A body mapped one by one over the leading dim, in batches where it divides."""
    xs = b.pick(pool, do.a, lambda v: rank(1, 4, is_plain)(v) and 0 < v.shape[0] <= 8)
    const = b.pick(pool, do.b, is_plain)
    return lax.map(lambda x: b.run(do.body, [const, x])[-1], xs, batch_size=2 if do.c % 3 == 2 else None)


def _loop(b: Builder, do: Do, pool: Pool) -> Any:
    carry = b.pick(pool, do.a, is_float)

    def body(i: Array, c: Array) -> Array:
        return b.inner(do.body, [c * (1 + 0.1 * i).astype(c.dtype), c], c)

    if do.b % 2 and not b.differentiated:
        state = lax.while_loop(lambda s: s[0] < 2 + do.c % 2, lambda s: (s[0] + 1, body(s[0], s[1])), (0, carry))
        return state[1]
    return lax.fori_loop(0, 2 + do.c % 2, body, carry)


def _while(b: Builder, do: Do, pool: Pool) -> Any:
    """A loop that ends by what it computed, with a second carry of another type."""
    if b.differentiated:
        raise Unfit
    carry = b.pick(pool, do.a, is_real)
    other = b.pick(pool, do.b, is_plain)

    def test(state: tuple[Array, Array, Array]) -> Array:
        return (state[0] < 3) & (jnp.max(jnp.abs(state[1].astype(jnp.float32)), initial=0) < 1e3)

    def body(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        count, value, kept = state
        made = b.run(do.body, [value, kept, value + value])
        return count + 1, b.inner((), [value, *made], value), b.inner((), [kept, *made], kept)

    return lax.while_loop(test, body, (jnp.int32(do.c % 2), carry, other))[1:]


def _cond(b: Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, is_float)
    y = b.pick(pool, do.b, is_float)
    return lax.cond(jnp.sum(x) > 0, lambda p, q: b.inner(do.body, [q, p], p), lambda p, q: jnp.tanh(p), x, y)


def _switch(b: Builder, do: Do, pool: Pool) -> Any:
    """One of three branches, two of which have bodies, by a computed number that may lie outside."""
    x = b.pick(pool, do.a, is_plain)
    y = b.pick(pool, do.b, is_plain)
    number = b.find(pool, do.c, lambda v: v.dtype == jnp.int32 and v.ndim == 0)
    which = jnp.int32(do.d % 3) + b.word() if number is None else number
    half = len(do.body) // 2
    branches = (
        lambda p, q: b.inner(do.body[: half + 1], [q, p], p),
        lambda p, q: p,
        lambda p, q: b.inner(do.body[half:], [q, p], p),
    )
    return lax.switch(which, branches, x, y)


def _associative(b: Builder, do: Do, pool: Pool) -> Any:
    """A parallel scan of a linear recurrence, or of a maximum."""
    x = b.pick(pool, do.a, rank(1, 3))
    axis = do.b % x.ndim
    if do.c % 2:
        return lax.associative_scan(jnp.maximum, x, axis=axis, reverse=do.d % 2 == 1)
    y = b.pick(pool, do.d, twin(x))

    def step(left: tuple[Array, Array], right: tuple[Array, Array]) -> tuple[Array, Array]:
        return left[0] * right[0], left[1] * right[0] + right[1]

    return lax.associative_scan(step, (jnp.tanh(x), y), axis=axis)[1]


def _call(b: Builder, do: Do, pool: Pool) -> Any:
    """A body behind a remat, a jit, a vmap over a dim, a custom rule, a barrier or a name."""
    x = b.pick(pool, do.a, rank(1))
    wraps = (jax.checkpoint, jax.jit, _mapped(do), _halved_gradient, _saved, _doubled_tangent, _behind)
    wrap = wraps[do.b % len(wraps)]
    if b.mode == "jvp" and wrap is _halved_gradient:
        raise Unfit
    return wrap(lambda p: b.run(do.body, [p])[-1])(x)


def _mapped(do: Do) -> Callable[..., Any]:
    return lambda fn: lambda x: jax.vmap(fn, in_axes=do.c % x.ndim, out_axes=0)(x)


def _saved(fn: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """`fn` computed again in the backward pass, but for a named value and its contractions."""
    policies = jax.checkpoint_policies
    policy = policies.save_from_both_policies(policies.save_only_these_names("kept"), policies.dots_saveable)
    return jax.checkpoint(lambda x: fn(checkpoint_name(jnp.sin(x), "kept")), policy=policy)


def _behind(fn: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda x: fn(lax.optimization_barrier((x, x * 2))[1])


def _halved_gradient(fn: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """`fn` with half of its gradient, as a custom rule."""

    @jax.custom_vjp
    def call(x: Array) -> Array:
        return fn(x)

    def forward(x: Array) -> tuple[Array, Array]:
        return fn(x), x

    def backward(x: Array, g: Array) -> tuple[Array]:
        if not is_float(g):
            return (jnp.zeros_like(x),)
        return (jax.vjp(fn, x)[1](g * 0.5)[0],)

    call.defvjp(forward, backward)
    return call


def _doubled_tangent(fn: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """`fn` beside a function that has a rule for its tangent."""

    @jax.custom_jvp
    def bent(x: Array) -> Array:
        return jnp.tanh(x)

    @bent.defjvp
    def tangent(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
        return bent(primals[0]), 2 * tangents[0] * (1 - jnp.tanh(primals[0]) ** 2)

    return lambda x: fn(bent(x))


CONTROL: Mapping[str, Op] = {
    "associative": _associative,
    "call": _call,
    "cond": _cond,
    "loop": _loop,
    "map": _map,
    "scan": _scan,
    "switch": _switch,
    "while": _while,
}
BODIES = ("call", "cond", "loop", "map", "scan", "switch", "while")
"""Ops with a body."""
