"""Contractions, matrix functions, Fourier transforms and random numbers of random programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg as linalg
import numpy as np
from jax import lax

from tests.programs.builder import (
    LARGEST,
    Array,
    Builder,
    Do,
    Op,
    Pool,
    Unfit,
    filled,
    is_complex,
    is_float,
    is_int,
    is_key,
    rank,
    tamed,
)


def _dot(b: Builder, do: Do, pool: Pool) -> Any:
    """A contraction of two values over a dim both have, with a batch dim where a second one matches and `d` is odd."""
    x = b.pick(pool, do.a, rank(1, 4))
    y = b.pick(pool, do.b, lambda v: rank(1, 4)(v) and not set(v.shape).isdisjoint(x.shape))
    pairs = [(i, j) for i, m in enumerate(x.shape) for j, n in enumerate(y.shape) if m == n]
    i, j = pairs[do.c % len(pairs)]
    left, right = "abcde"[: x.ndim], list("vwxyz"[: y.ndim])
    right[j] = left[i]
    shared = [left[i]]
    others = [(m, n) for m, n in pairs if m != i and n != j]
    batch = ""
    if others and do.d % 2:
        m, n = others[do.d % len(others)]
        right[n] = batch = left[m]
        shared.append(batch)
    out = batch + "".join(c for c in [*left, *right] if c not in shared)
    extents = dict(zip([*left, *right], [*x.shape, *y.shape], strict=True))
    if len(out) > 4 or np.prod([extents[c] for c in out]) > LARGEST:
        raise Unfit
    return jnp.einsum(f"{left},{''.join(right)}->{out}", x, y.astype(x.dtype)) / np.sqrt(extents[left[i]]).item()


def _einsum(b: Builder, do: Do, pool: Pool) -> Any:
    """Three values contracted over shared letters, which stand for extents; some letters are kept."""
    x = b.pick(pool, do.a, rank(1, 3))
    y = b.pick(pool, do.b, lambda v: rank(1, 3)(v) and v.dtype == x.dtype and not set(v.shape).isdisjoint(x.shape))
    z = b.pick(pool, do.c, lambda v: rank(1, 3)(v) and v.dtype == x.dtype and not set(v.shape).isdisjoint(y.shape))
    letters: dict[tuple[int, int], str] = {}

    def words(value: Array) -> str:
        seen: dict[int, int] = {}
        word = ""
        for extent in value.shape:
            seen[extent] = seen.get(extent, 0) + 1
            word += letters.setdefault((extent, seen[extent]), "abcdefghi"[len(letters)])
        return word

    terms = [words(value) for value in (x, y, z)]
    used = sorted(set("".join(terms)))
    kept = do.dice().sample(used, min(len(used), 2))
    summed = np.prod([extent for (extent, _), letter in letters.items() if letter not in kept], initial=1.0)
    return jnp.einsum(f"{','.join(terms)}->{''.join(kept)}", x, y, z) / np.sqrt(summed).item()


def _whole_dot(b: Builder, do: Do, pool: Pool) -> Any:
    """A contraction of integers, or of narrow floats added up in float32."""
    x = b.pick(pool, do.a, lambda v: v.ndim >= 1 and (is_int(v) or v.dtype in (jnp.bfloat16, jnp.float16)))
    y = b.find(pool, do.b, lambda v: v.dtype == x.dtype and v.ndim >= 1 and v.shape[0] == x.shape[-1])
    y = filled(x, (x.shape[-1], 8), do.c) if y is None else y
    wide = jnp.int32 if is_int(x) else jnp.float32
    return lax.dot_general(x, y, (((x.ndim - 1,), (0,)), ((), ())), preferred_element_type=wide)


def _ragged(b: Builder, do: Do, pool: Pool) -> Any:
    """Rows in groups, each group with weights of its own; the last rows may belong to none."""
    x = b.pick(pool, do.a, lambda v: rank(2, 2)(v) and v.dtype == jnp.float32 and v.shape[0] >= 4)
    y = b.find(pool, do.b, lambda v: rank(3, 3)(v) and v.dtype == x.dtype and v.shape[1] == x.shape[1])
    weights = filled(x, (4, x.shape[1], 8), do.c) if y is None else y
    groups = weights.shape[0]
    rows = x.shape[0] // groups
    sizes = jnp.full((groups,), rows, jnp.int32).at[0].add(x.shape[0] % groups - do.d % 2)
    return lax.ragged_dot(x, weights, jnp.maximum(sizes, 0)) / np.sqrt(x.shape[1]).item()


def _matrices(b: Builder, do: Do, pool: Pool) -> tuple[Array, Array]:
    """Well-conditioned symmetric matrices with distinct eigenvalues, and the values they were made of; float32."""
    x = tamed(b.pick(pool, do.a, lambda v: rank(2, 4)(v) and 0 < v.shape[-2] <= 8 and v.size))
    spread = jnp.diag(1 + jnp.arange(x.shape[-2], dtype=jnp.float32))
    x = jnp.tanh(x)
    return 0.05 * jnp.einsum("...ik,...jk->...ij", x, x) / x.shape[-1] + spread, x


def _linalg(b: Builder, do: Do, pool: Pool) -> Any:
    """A function of batches of matrices."""
    m, x = _matrices(b, do, pool)
    lower = do.d % 2 == 0
    triangle = jnp.tril(m) if lower else jnp.triu(m)
    functions = (
        lambda: jnp.linalg.cholesky(m),
        lambda: jnp.linalg.solve(m, x),
        lambda: jnp.linalg.inv(m),
        lambda: jnp.linalg.slogdet(m)[1],
        lambda: jnp.linalg.eigh(m)[0] / 4,
        lambda: jnp.linalg.qr(m)[1],
        lambda: jnp.linalg.qr(m)[0],
        lambda: jnp.linalg.svd(m, compute_uv=False) / 4,
        lambda: lax.linalg.triangular_solve(triangle, x, left_side=True, lower=lower, transpose_a=do.c % 2 == 1),
        lambda: lax.linalg.triangular_solve(
            triangle, jnp.swapaxes(x, -1, -2), lower=lower, unit_diagonal=do.c % 2 == 1, transpose_a=do.c % 3 == 1
        ),
        lambda: linalg.solve_triangular(triangle, x, lower=lower),
        lambda: linalg.lu(m)[2] / 4,
        lambda: _tridiagonal(m, x),
        lambda: jnp.linalg.det(m / 4),
        lambda: jnp.linalg.matrix_power(m / 8, 3),
        lambda: _plain_only(b, lambda: jnp.sort(lax.real(jnp.linalg.eigvals(m)), axis=-1) / 4),
        lambda: _plain_only(b, lambda: linalg.hessenberg(m, calc_q=False) / 4),
        lambda: _plain_only(b, lambda: lax.linalg.tridiagonal(m)[1] / 4),
    )
    return functions[do.dice().randrange(len(functions))]()


def _tridiagonal(m: Array, x: Array) -> Array:
    diagonal = jnp.diagonal(m, axis1=-2, axis2=-1)
    side = 0.1 * jnp.tanh(x[..., 0])
    first, last = side.at[..., 0].set(0), side.at[..., -1].set(0)
    return lax.linalg.tridiagonal_solve(first, diagonal, last, x)


def _plain_only(b: Builder, function: Any) -> Any:
    if b.differentiated:
        raise Unfit
    return function()


def _fft(b: Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, lambda v: (v.dtype == jnp.float32 or is_complex(v)) and v.ndim >= 1)
    dims = (-1,) if x.ndim == 1 or do.c % 2 else (-2, -1)
    size = np.sqrt(np.prod([x.shape[d] for d in dims])).item()
    if is_complex(x):
        functions = (jnp.fft.fftn, jnp.fft.ifftn, jnp.fft.irfftn)
        return functions[do.b % 3](x, axes=dims, norm="ortho")
    if do.b % 3 == 0:
        return lax.real(jnp.fft.fftn(x, axes=dims)) / size
    if do.b % 3 == 1:
        return jnp.fft.rfftn(x, axes=dims) / size
    return lax.imag(jnp.fft.fft(x, axis=do.d % x.ndim)) / size


def _solve(b: Builder, do: Do, pool: Pool) -> Any:
    """A linear solve or a root with a rule of its own for derivatives, and a loop inside."""
    m, x = _matrices(b, do, pool)
    while m.ndim > 2:
        m, x = m[0], x[0]
    y = x[:, 0]
    if do.b % 3 == 0:
        return jax.scipy.sparse.linalg.cg(lambda v: m @ v, y, tol=0.0, maxiter=3)[0]
    if do.b % 3 == 1:
        return lax.custom_linear_solve(lambda v: m @ v, y, lambda matvec, v: jnp.linalg.solve(m, v), symmetric=True)

    def solve(f: Any, start: Array) -> Array:
        return lax.fori_loop(0, 3, lambda _, v: v - f(v) / 2, start)

    return lax.custom_root(
        lambda v: v - 0.1 * jnp.sin(m @ v / 8) - y, y, solve, lambda g, v: jnp.linalg.solve(jax.jacobian(g)(v), v)
    )


def _random(b: Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, rank(0))
    key = jax.random.fold_in(b.key, do.b)
    if do.c % 2:
        return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0)
    return x + jax.random.uniform(key, x.shape, jnp.float32).astype(x.dtype)


def _draw(b: Builder, do: Do, pool: Pool) -> Any:
    """Random numbers of any kind, by a key computed from a value where there is one."""
    seed = b.find(pool, do.a, lambda v: v.dtype in (jnp.int32, jnp.uint32) and v.ndim == 0)
    key = jax.random.fold_in(b.key, do.b if seed is None else seed)
    shape = ((8,), (4, 8), (16, 2), (6,), (2, 5))[do.d % 5]
    functions = (
        lambda: jax.random.bits(key, shape),
        lambda: jax.random.bits(key, shape, "uint8"),
        lambda: jax.random.normal(key, shape),
        lambda: jax.random.randint(key, shape, 0, 8),
        lambda: jax.random.split(key, shape[0]),
        lambda: jax.random.permutation(key, shape[0]),
        lambda: jax.random.truncated_normal(key, -1, 1, shape),
        lambda: jax.random.categorical(key, filled(jnp.float32(0), (*shape, 4), do.b)),
        lambda: jax.random.key_data(jax.random.split(key, shape[0])),
        lambda: jax.random.exponential(key, shape) / 4,
    )
    return functions[(do.b + 8 * do.c) % len(functions)]()


def _by_key(b: Builder, do: Do, pool: Pool) -> Any:
    """Something drawn for every key of an array of keys, or the keys made into others."""
    keys = b.pick(pool, do.a, lambda v: is_key(v) and v.ndim == 1)
    functions = (
        jax.vmap(lambda k: jax.random.uniform(k, (4,))),
        jax.vmap(lambda k: jax.random.bits(k, (2, 4), "uint16")),
        jax.vmap(lambda k: jax.random.fold_in(k, do.c)),
        jax.vmap(lambda k: jax.random.split(k, 2)),
        jax.random.key_data,
        lambda k: jax.random.wrap_key_data(jax.random.key_data(k) + jnp.uint32(1)),
        lambda k: k[::2],
        jax.vmap(lambda k: jax.random.permutation(k, 4)),
    )
    return functions[do.b % len(functions)](keys)


def _attend(b: Builder, do: Do, pool: Pool) -> Any:
    """Attention of a value to itself or to another, by heads of its last dim."""
    x = b.pick(pool, do.a, lambda v: rank(3, 3)(v) and v.shape[-1] % 2 == 0 and v.size)
    y = b.pick(pool, do.b, lambda v: is_float(v) and v.shape == x.shape).astype(x.dtype)
    heads = x.reshape(*x.shape[:2], 2, -1)
    return jax.nn.dot_product_attention(heads, y.reshape(heads.shape), heads, is_causal=do.c % 2 == 1).reshape(x.shape)


LINALG: Mapping[str, Op] = {
    "attend": _attend,
    "by_key": _by_key,
    "dot": _dot,
    "draw": _draw,
    "einsum": _einsum,
    "fft": _fft,
    "linalg": _linalg,
    "ragged": _ragged,
    "random": _random,
    "solve": _solve,
    "whole_dot": _whole_dot,
}
