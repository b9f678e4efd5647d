"""Ops of random programs that reduce or scan dims, or slide windows along them: sums, pooling, convolutions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.programs.builder import Array, Builder, Do, Op, Pool, Unfit, filled, is_float, is_int, is_real, rank


def _mean_like(x: Array, axis: Any) -> Array:
    """A sum scaled to stay of the order of its terms."""
    total = jnp.sum(x, axis=axis)
    return (total / np.sqrt(max(1, x.size // max(1, total.size))).item()).astype(x.dtype)


def _reduce(b: Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, rank(1))
    functions = (_mean_like, jnp.max, jnp.mean, jnp.min, jax.nn.logsumexp, jnp.argmax)
    return functions[do.c % len(functions)](x, axis=do.b % x.ndim)


def _reduce_any(b: Builder, do: Do, pool: Pool) -> Any:
    """A reduction of several dims, of floats, integers or booleans."""
    x = b.pick(pool, do.a, rank(1, kind=lambda v: is_real(v) or v.dtype == jnp.bool_))
    axes = tuple(sorted({do.b % x.ndim, do.d % x.ndim}))
    if x.dtype == jnp.bool_:
        return (jnp.all, jnp.any, jnp.sum)[do.c % 3](x, axis=axes)
    if is_int(x):
        whole = (
            lambda v: jnp.sum(v, axes),
            lambda v: jnp.max(v, axes),
            lambda v: jnp.min(v, axes),
            lambda v: jnp.prod(v, axes),
            lambda v: lax.reduce_and(v, axes),
            lambda v: lax.reduce_or(v, axes),
            lambda v: lax.reduce_xor(v, axes),
            lambda v: jnp.argmin(v, axes[0]),
        )
        return whole[do.c % len(whole)](x)
    smooth = (
        lambda v: _mean_like(v, axes),
        lambda v: jnp.prod(1 + 0.1 * jnp.tanh(v), axes),
        lambda v: jnp.var(v, axes),
        lambda v: jnp.max(v, axes, keepdims=True),
        lambda v: jnp.argmin(v, axes[0]),
        lambda v: lax.reduce(v, jnp.asarray(0.5, v.dtype), lax.add, axes) / 8,
        lambda v: jnp.linalg.norm(v + 2),
    )
    return smooth[do.c % len(smooth)](x)


def _cumulative(b: Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, rank(1, kind=is_real))
    axis, reverse = do.b % x.ndim, do.c % 2 == 1
    if is_int(x):
        return (lax.cumsum, lax.cummax, lax.cummin, lax.cumprod)[do.c % 4](x, axis=axis, reverse=reverse)
    functions = (
        lambda v: lax.cumsum(v, axis=axis, reverse=reverse) / max(1, v.shape[axis]),
        lambda v: lax.cummax(v, axis=axis, reverse=reverse),
        lambda v: lax.cumlogsumexp(v, axis=axis, reverse=reverse),
        lambda v: lax.cummin(v, axis=axis, reverse=reverse),
        lambda v: lax.cumprod(1 + 0.1 * jnp.tanh(v), axis=axis, reverse=reverse),
    )
    return functions[do.c % len(functions)](x)


def _pool(b: Builder, do: Do, pool: Pool) -> Any:
    """A reduction over windows: strided, padded, dilated; its gradients scatter."""
    x = b.pick(pool, do.a, rank(1, 4, kind=is_real))
    dice = do.dice()
    one = dice.randrange(x.ndim)
    windowed = [d == one or dice.random() < 0.4 for d in range(x.ndim)]
    window = [dice.choice((2, 3)) if w else 1 for w in windowed]
    strides = [dice.choice((1, 2)) if w else 1 for w in windowed]
    padding = [dice.choice(((0, 0), (1, 1), (1, 0))) if w else (0, 0) for w in windowed]
    plain = b.differentiated or dice.random() < 0.7
    base = [1 if plain or not w else 2 for w in windowed]
    inner = [1 if plain or not w else dice.choice((1, 2)) for w in windowed]
    # Plain numpy numbers, which JAX recognises as the identities of its window reducers.
    lowest = np.array(-np.inf if is_float(x) else jnp.iinfo(x.dtype).min, x.dtype)
    highest = np.array(np.inf if is_float(x) else jnp.iinfo(x.dtype).max, x.dtype)
    zero = np.array(0, x.dtype)
    start, combine = ((zero, lax.add), (lowest, lax.max), (highest, lax.min))[do.c % 3]
    found = lax.reduce_window(x, start, combine, window, strides, padding, base, inner)
    # A window that sees only padding leaves the start value.
    return jnp.clip(found, -8, 8) if is_float(x) else found


def _conv(b: Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, rank(3, 4))
    k = b.find(pool, do.b, lambda v: is_float(v) and v.ndim == 2 and v.shape[0] == x.shape[-1])
    k = filled(x, (x.shape[-1], 8), do.b) if k is None else k
    spatial = x.ndim - 2
    width = (3, 1, 2)[do.c % 3]
    window = jnp.cos(jnp.arange(width**spatial, dtype=x.dtype)).reshape((width,) * spatial)
    kernel = window[(..., None, None)] * k.astype(x.dtype)
    numbers = ("NHWC", "HWIO", "NHWC") if spatial == 2 else ("NWC", "WIO", "NWC")
    strides = (1 + do.d % 2,) * spatial
    scale = np.sqrt(x.shape[-1] * width**spatial).item()
    found = lax.conv_general_dilated(x, kernel, strides, ("SAME", "VALID")[do.d // 2 % 2], dimension_numbers=numbers)
    return found / scale


def _conv_any(b: Builder, do: Do, pool: Pool) -> Any:
    """A convolution in any of its forms: 1 to 3 window dims, groups, strides, dilations, paddings, orders of dims."""
    x = b.pick(pool, do.a, rank(3, 5))
    dice = do.dice()
    spatial = x.ndim - 2
    order = list(range(x.ndim))
    if dice.random() < 0.5:
        dice.shuffle(order)
    batch, features = order[:2]
    channels, count = x.shape[features], x.shape[batch]
    groups = dice.choice([g for g in (1, 1, 2, 4, channels) if channels % g == 0])
    batch_groups = dice.choice([g for g in (2, count) if count % g == 0] or [1]) if dice.random() < 0.15 else 1
    if batch_groups > 1:
        groups = 1
    made = max(groups, batch_groups) * dice.choice((1, 2))
    window = [dice.choice((1, 2, 3)) for _ in range(spatial)]
    # A kernel's dims: output features, input features, window, in an order of their own.
    kernel_order = list(range(x.ndim))
    if dice.random() < 0.5:
        dice.shuffle(kernel_order)
    extents = [0] * x.ndim
    for place, extent in zip(kernel_order, (made, channels // groups, *window), strict=True):
        extents[place] = extent
    given = b.find(
        pool,
        do.d,
        lambda v: (
            v.ndim == x.ndim and v.dtype == x.dtype and all(m >= n for m, n in zip(v.shape, extents, strict=True))
        ),
    )
    if given is None or dice.random() < 0.3:
        kernel = filled(b.pick(pool, do.d, lambda v: v.dtype == x.dtype), extents, do.c)
    else:
        kernel = lax.slice(given, (0,) * x.ndim, extents)
    result_order = order if dice.random() < 0.6 else dice.sample(order, x.ndim)
    transposed = dice.random() < 0.3
    padding = dice.choice(("SAME", "VALID")) if not transposed else [(dice.choice((0, 1, 2)),) * 2] * spatial
    found = lax.conv_general_dilated(
        x,
        kernel,
        window_strides=[1 if transposed else dice.choice((1, 1, 2)) for _ in range(spatial)],
        padding=padding,
        lhs_dilation=[2 if transposed else 1 for _ in range(spatial)],
        rhs_dilation=[dice.choice((1, 1, 2)) for _ in range(spatial)],
        dimension_numbers=lax.ConvDimensionNumbers(tuple(order), tuple(kernel_order), tuple(result_order)),
        feature_group_count=groups,
        batch_group_count=batch_groups,
    )
    return found / np.sqrt(channels // groups * np.prod(window)).item()


def _patches(b: Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, rank(3, 4))
    if x.size > 1024:
        raise Unfit
    spatial = x.ndim - 2
    return lax.conv_general_dilated_patches(x, (2,) * spatial, (1 + do.b % 2,) * spatial, ("SAME", "VALID")[do.c % 2])


WINDOW: Mapping[str, Op] = {
    "conv": _conv,
    "conv_any": _conv_any,
    "cumulative": _cumulative,
    "patches": _patches,
    "pool": _pool,
    "reduce": _reduce,
    "reduce_any": _reduce_any,
}
