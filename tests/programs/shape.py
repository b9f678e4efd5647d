"""Ops of random programs that move elements: broadcasts, reshapes, slices, concatenations, constants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.programs.builder import Builder, Do, Op, Pool, Unfit, filled, is_float, is_plain, is_real, rank, twin

ANY = rank(1, kind=is_plain)


def _broadcast(b: Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, rank(0, 3))
    position = do.b % (x.ndim + 1)
    shape = (*x.shape[:position], (2, 4, 8)[do.c % 3], *x.shape[position:])
    return lax.broadcast_in_dim(x, shape, tuple(d for d in range(len(shape)) if d != position))


def _stretch(b: Builder, do: Do, pool: Pool) -> Any:
    """A value of any kind beside itself: broadcast along a dim of 1, tiled, repeated, or added to its transpose."""
    x = b.pick(pool, do.a, ANY)
    d = do.b % x.ndim
    if do.c % 4 == 0:
        return jnp.tile(x, tuple((2 if i == d else 1) for i in range(x.ndim)))
    if do.c % 4 == 1:
        return jnp.repeat(x, 2, axis=d)
    if do.c % 4 == 2:
        kept = lax.slice_in_dim(x, 0, 1, axis=d)
        return jnp.broadcast_to(kept, x.shape)
    return jnp.broadcast_to(jnp.expand_dims(x, d), (*x.shape[:d], 2 + do.d % 3, *x.shape[d:]))


def _outer_add(b: Builder, do: Do, pool: Pool) -> Any:
    """Adds a row to every row, as a bias is added."""
    x = b.pick(pool, do.a, rank(2))
    row = b.find(pool, do.b, lambda v: v.shape == x.shape[-1:] and v.dtype == x.dtype)
    return x + (filled(x, x.shape[-1:], do.b) if row is None else row)


def _merge(b: Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, rank(2, kind=is_plain))
    d = do.b % (x.ndim - 1)
    return x.reshape(*x.shape[:d], x.shape[d] * x.shape[d + 1], *x.shape[d + 2 :])


def _split(b: Builder, do: Do, pool: Pool) -> Any:
    """A dim as two: a small factor of its extent and the rest, in either order."""
    x = b.pick(pool, do.a, lambda v: 1 <= v.ndim <= 4 and is_plain(v) and any(_factor(e) for e in v.shape))
    dims = [d for d, extent in enumerate(x.shape) if _factor(extent)]
    d = dims[do.b % len(dims)]
    small = _factor(x.shape[d])
    first = (small, x.shape[d] // small)[do.c % 2]
    return x.reshape(*x.shape[:d], first, x.shape[d] // first, *x.shape[d + 1 :])


def _factor(extent: int) -> int:
    """The smallest proper factor of an extent, or 0."""
    return next((f for f in (2, 3, 5) if extent > f and extent % f == 0), 0)


def _reshape(b: Builder, do: Do, pool: Pool) -> Any:
    """All elements in another shape, whose extents need not divide those of the old one."""
    x = b.pick(pool, do.a, ANY)
    return x.reshape(((8, -1), (-1, 4), (2, -1, 2), (-1,), (3, -1), (-1, 6), (5, -1))[do.b % 7])


def _transpose(b: Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, rank(2, kind=is_plain))
    return jnp.moveaxis(x, do.b % x.ndim, do.c % x.ndim)


def _slice(b: Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, ANY)
    axis = do.b % x.ndim
    extent = x.shape[axis]
    half = max(1, extent // 2)
    cuts = ((0, half, 1), (extent - half, extent, 1), (0, extent, 2), (1, extent, 1), (1, extent, 3), (0, 0, 1))
    start, stop, stride = cuts[do.c % len(cuts)]
    return lax.slice_in_dim(x, start, stop, stride, axis)


def _pad(b: Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, rank(1, kind=is_real))
    config = [(0, 0, 0)] * x.ndim
    config[do.b % x.ndim] = ((1, 1, 0), (0, 2, 0), (0, 0, 1), (2, -1, 0), (-1, -1, 0), (8, 0, 0))[do.c % 6]
    return lax.pad(x, jnp.asarray(do.d % 2, x.dtype), config)


def _concatenate(b: Builder, do: Do, pool: Pool) -> Any:
    """Values joined along a dim, in which the second one may differ."""
    x = b.pick(pool, do.a, ANY)
    d = do.c % x.ndim
    rest = (*x.shape[:d], *x.shape[d + 1 :])
    y = b.pick(
        pool,
        do.b,
        lambda v: v.ndim == x.ndim and v.dtype == x.dtype and (*v.shape[:d], *v.shape[d + 1 :]) == rest,
    )
    return jnp.concatenate([x, y, x] if do.d % 3 == 2 else [x, y], axis=d)


def _stack(b: Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, rank(0, 4, is_plain))
    return jnp.stack([x, b.pick(pool, do.b, twin(x))], axis=do.c % (x.ndim + 1))


def _parts(b: Builder, do: Do, pool: Pool) -> Any:
    """A value taken apart along a dim, in uneven parts or in single elements."""
    x = b.pick(pool, do.a, lambda v: ANY(v) and v.shape[do.b % v.ndim] >= 2)
    d = do.b % x.ndim
    extent = x.shape[d]
    if do.c % 3 == 2 and extent <= 8:
        return list(jnp.unstack(x, axis=d))[:3]
    first = (1, extent // 2)[do.c % 2]
    return list(lax.split(x, (first, extent - first), axis=d))


def _iota(b: Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, rank(1))
    return x + jnp.cos(lax.broadcasted_iota(jnp.float32, x.shape, do.b % x.ndim)).astype(x.dtype)


def _constant(b: Builder, do: Do, pool: Pool) -> Any:
    """A closed-over array added to a value, or a mask of a triangle."""
    x = b.pick(pool, do.a, is_float)
    if do.b % 2 and x.ndim >= 2:
        return jnp.tril(x) if do.c % 2 else jnp.triu(x, 1)
    values = np.sin(np.arange(x.size, dtype=np.float32)).reshape(x.shape)
    return x + jnp.asarray(values, x.dtype)


def _rev(b: Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, ANY)
    dims = {do.b % x.ndim, do.c % x.ndim} if do.d % 2 else {do.b % x.ndim}
    return lax.rev(x, tuple(sorted(dims)))


def _roll(b: Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, ANY)
    return jnp.roll(x, do.c - 3, axis=do.b % x.ndim)


def _dims(b: Builder, do: Do, pool: Pool) -> Any:
    """A dim of 1 made, or one taken away."""
    if do.b % 2:
        x = b.pick(pool, do.a, lambda v: 1 in v.shape)
        return lax.squeeze(x, (x.shape.index(1),))
    x = b.pick(pool, do.a, rank(0, 4, is_plain))
    return lax.expand_dims(x, (do.c % (x.ndim + 1),))


def _diagonal(b: Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, lambda v: is_plain(v) and v.ndim in (1, 2))
    if x.ndim == 1 and x.size > 16:
        raise Unfit
    return jnp.diag(x)


SHAPE: Mapping[str, Op] = {
    "broadcast": _broadcast,
    "concatenate": _concatenate,
    "constant": _constant,
    "diagonal": _diagonal,
    "dims": _dims,
    "iota": _iota,
    "merge": _merge,
    "outer_add": _outer_add,
    "pad": _pad,
    "parts": _parts,
    "reshape": _reshape,
    "rev": _rev,
    "roll": _roll,
    "slice": _slice,
    "split": _split,
    "stack": _stack,
    "stretch": _stretch,
    "transpose": _transpose,
}
