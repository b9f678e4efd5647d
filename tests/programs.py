"""Random JAX programs for property tests: a program is a list of op descriptions, interpreted by a builder.

A description is data: an op's name, four small numbers and, for control flow, the descriptions of a body. The numbers
choose among what fits (the values made so far, dims, windows), the most recent first, modulo how many there are. So
every description means something in every program, an op for which nothing fits is left out, and Hypothesis shrinks a
failing program by deleting ops and lowering numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = Any
Pool = list[Array]
LARGEST = 4096
"""Most elements of a value; what would be larger is left out."""

MESHES: tuple[Mapping[str, int], ...] = (
    {"x": 8},
    {"x": 4, "y": 2},
    {"x": 2, "y": 4},
    {"x": 2, "y": 2, "z": 2},
    {"x": 2, "y": 2},
)
SHAPES: tuple[tuple[int, ...], ...] = (
    (8, 16),
    (16, 8),
    (16,),
    (8, 8),
    (4, 8, 8),
    (2, 8, 16),
    (8, 4, 4, 8),
    (2, 4, 8, 4),
)


@dataclass(frozen=True, slots=True)
class Do:
    """One op: its name in `OPS`, the numbers that choose its operands and form, and the body of control flow."""

    op: str
    a: int = 0
    b: int = 0
    c: int = 0
    d: int = 0
    body: tuple[Do, ...] = ()


@dataclass(frozen=True, slots=True)
class Description:
    """A program: the (shape, dtype) of its arguments, its ops, and whether it is the gradient of their mean."""

    arguments: tuple[tuple[tuple[int, ...], str], ...]
    ops: tuple[Do, ...]
    grad: bool = False

    @property
    def kinds(self) -> frozenset[str]:
        """The names of its ops, those of bodies included."""
        return frozenset(do.op for outer in self.ops for do in (outer, *outer.body))

    def function(self) -> Callable[..., Any]:
        """The program as a function of its arguments (a key, then arrays); `arguments` makes such."""

        def forward(key: Array, *args: Array) -> tuple[Array, ...]:
            builder = _Builder(key=key, grad=self.grad)
            made = builder.run(self.ops, list(args))
            used = {id(value) for value in builder.used}
            return tuple(value for value in made if id(value) not in used) or (args[-1],)

        def loss(floats: Sequence[Array], key: Array, others: Mapping[int, Array]) -> Array:
            rest = iter(floats)
            results = forward(key, *(others[i] if i in others else next(rest) for i in range(len(self.arguments))))
            terms = [jnp.mean(r.astype(jnp.float32)) for r in results if jnp.issubdtype(r.dtype, jnp.floating)]
            return sum(terms, jnp.float32(0))

        def gradient(key: Array, *args: Array) -> Any:
            others = {i: a for i, a in enumerate(args) if not jnp.issubdtype(a.dtype, jnp.floating)}
            floats = [a for i, a in enumerate(args) if i not in others]
            return jax.grad(loss)(floats, key, others)

        return gradient if self.grad else forward

    def example(self, seed: int = 0) -> tuple[Array, ...]:
        """Arguments with random numbers of about 1 (integers: 0 to 7)."""
        rng = np.random.default_rng(seed)
        made: list[Array] = [jax.random.key(seed)]
        for shape, dtype in self.arguments:
            values = rng.integers(0, 8, shape) if dtype == "int32" else rng.normal(size=shape)
            made.append(jnp.asarray(values, dtype))
        return tuple(made)


# ---------------------------------------------------------------- the builder


class _Builder:
    """Interprets descriptions; `used` are the values that were read, so that the rest can be returned."""

    def __init__(self, *, key: Array, grad: bool) -> None:
        self.key, self.grad = key, grad
        self.used: list[Array] = []

    def run(self, ops: Sequence[Do], pool: Pool) -> Pool:
        """The values in `pool` and those the ops make, in order."""
        pool = list(pool)
        for do in ops:
            result = OPS[do.op](self, do, pool)
            for value in result if isinstance(result, (list, tuple)) else () if result is None else (result,):
                if 0 < value.size <= LARGEST and value.ndim <= 5:
                    pool.append(value)
        return pool

    def pick(self, pool: Pool, number: int, fits: Callable[[Array], bool] = lambda value: True) -> Array:
        """A value that fits, the most recent first; None where there is none."""
        found = [value for value in reversed(pool) if fits(value)]
        if not found:
            return None
        self.used.append(found[number % len(found)])
        return self.used[-1]

    def inner(self, body: Sequence[Do], pool: Pool, like: Array) -> Array:
        """What a body makes of `pool`, its last value of the shape and dtype of `like`."""
        made = self.run(body, pool)
        return next(v for v in reversed(made) if v.shape == like.shape and v.dtype == like.dtype)


def _float(value: Array) -> bool:
    return jnp.issubdtype(value.dtype, jnp.floating)


def _rank(least: int, most: int = 5) -> Callable[[Array], bool]:
    return lambda value: least <= value.ndim <= most and _float(value)


def _twin(value: Array) -> Callable[[Array], bool]:
    return lambda other: other.shape == value.shape and other.dtype == value.dtype


def _indices(shape: Sequence[int], extent: int, number: int) -> Array:
    """Indices below `extent` that repeat and skip, made inside the program."""
    size = int(np.prod(shape))
    return ((jnp.arange(size, dtype=jnp.int32) * (2 * number + 3) + number) % extent).reshape(shape)


UNARY: tuple[Callable[[Array], Array], ...] = (
    jnp.tanh,
    jnp.sin,
    jax.nn.relu,
    jax.nn.sigmoid,
    lambda x: lax.integer_pow(jnp.clip(x, -2, 2), 3),
    lambda x: jnp.exp(-jnp.abs(x)),
    lambda x: lax.rsqrt(x * x + 1),
    lambda x: lax.clamp(jnp.asarray(-1, x.dtype), x, jnp.asarray(1, x.dtype)),
    lambda x: jax.nn.softmax(x, axis=-1) if x.ndim else x,
    lambda x: x * 2 + 1,
)
BINARY: tuple[Callable[[Array, Array], Array], ...] = (
    jnp.add,
    jnp.multiply,
    jnp.maximum,
    jnp.subtract,
    lambda x, y: jnp.where(x > y, x, -y),
    lambda x, y: x / (1 + y * y),
)
DTYPES = ("bfloat16", "int32", "float32")


def _unary(b: _Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, _float)
    return None if x is None else UNARY[do.b % len(UNARY)](x)


def _binary(b: _Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, _float)
    return None if x is None else BINARY[do.c % len(BINARY)](x, b.pick(pool, do.b, _twin(x)))


def _convert(b: _Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a)
    dtype = DTYPES[do.b % 3]
    return (x * 4).astype(dtype) if dtype == "int32" and _float(x) else x.astype(dtype)


def _compare(b: _Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a)
    y = b.pick(pool, do.b, _twin(x))
    return (jnp.greater, jnp.less_equal, jnp.equal)[do.c % 3](x, y)


def _broadcast(b: _Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, _rank(0, 3))
    if x is None:
        return None
    position = do.b % (x.ndim + 1)
    shape = (*x.shape[:position], (2, 4, 8)[do.c % 3], *x.shape[position:])
    return lax.broadcast_in_dim(x, shape, tuple(d for d in range(len(shape)) if d != position))


def _outer_add(b: _Builder, do: Do, pool: Pool) -> Any:
    """Adds a row to every row, as a bias is added."""
    x = b.pick(pool, do.a, _rank(2))
    row = None if x is None else b.pick(pool, do.b, lambda v: v.shape == x.shape[-1:] and v.dtype == x.dtype)
    return None if row is None else x + row


def _merge(b: _Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, lambda v: v.ndim >= 2)
    if x is None:
        return None
    d = do.b % (x.ndim - 1)
    return x.reshape(*x.shape[:d], x.shape[d] * x.shape[d + 1], *x.shape[d + 2 :])


def _split(b: _Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, lambda v: 1 <= v.ndim <= 4 and any(e % 4 == 0 for e in v.shape))
    if x is None:
        return None
    dims = [d for d, extent in enumerate(x.shape) if extent % 4 == 0]
    d = dims[do.b % len(dims)]
    first = (2, x.shape[d] // 2)[do.c % 2]
    return x.reshape(*x.shape[:d], first, x.shape[d] // first, *x.shape[d + 1 :])


def _reshape(b: _Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, lambda v: v.ndim >= 1 and v.size % 8 == 0)
    return None if x is None else x.reshape(((8, -1), (-1, 4), (2, -1, 2))[do.b % 3])


def _transpose(b: _Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, lambda v: v.ndim >= 2)
    return None if x is None else jnp.moveaxis(x, do.b % x.ndim, do.c % x.ndim)


def _reduce(b: _Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, _rank(1))
    if x is None:
        return None
    functions = (jnp.sum, jnp.max, jnp.mean, jnp.min, jax.nn.logsumexp, jnp.argmax)
    return functions[do.c % len(functions)](x, axis=do.b % x.ndim)


def _cumulative(b: _Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, _rank(1))
    functions = (lax.cumsum, lax.cummax, lax.cumlogsumexp)
    return None if x is None else functions[do.c % 3](x, axis=do.b % x.ndim, reverse=do.c % 2 == 1)


def _dot(b: _Builder, do: Do, pool: Pool) -> Any:
    """A contraction of two values over a dim both have, with a batch dim where a second one matches and `d` is odd."""
    x = b.pick(pool, do.a, _rank(1, 4))
    y = None if x is None else b.pick(pool, do.b, lambda v: _rank(1, 4)(v) and set(v.shape) & set(x.shape))
    if y is None:
        return None
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
        return None
    return jnp.einsum(f"{left},{''.join(right)}->{out}", x, y.astype(x.dtype)) / np.sqrt(extents[left[i]]).item()


def _conv(b: _Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, _rank(3, 4))
    k = None if x is None else b.pick(pool, do.b, lambda v: _float(v) and v.ndim == 2 and v.shape[0] == x.shape[-1])
    if k is None:
        return None
    spatial = x.ndim - 2
    width = (3, 1, 2)[do.c % 3]
    window = jnp.cos(jnp.arange(width**spatial, dtype=x.dtype)).reshape((width,) * spatial)
    kernel = window[(..., None, None)] * k.astype(x.dtype)
    numbers = ("NHWC", "HWIO", "NHWC") if spatial == 2 else ("NWC", "WIO", "NWC")
    strides = (1 + do.d % 2,) * spatial
    return lax.conv_general_dilated(x, kernel, strides, ("SAME", "VALID")[do.d // 2 % 2], dimension_numbers=numbers)


def _take(b: _Builder, do: Do, pool: Pool) -> Any:
    """Rows of a table: by indices of the pool where there are some, else by indices made here."""
    table = b.pick(pool, do.a, _rank(1, 3))
    if table is None:
        return None
    indices = b.pick(pool, do.b, lambda v: v.dtype == jnp.int32 and v.ndim <= 2) if do.c % 2 else None
    if indices is None:
        indices = _indices(((8,), (4, 8))[do.b % 2], table.shape[0], do.c)
    return jnp.take(
        table, indices % table.shape[0], axis=(0, table.ndim - 1)[do.d % 2], mode=("clip", "fill")[do.c % 2]
    )


def _along(b: _Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, _rank(1, 3))
    if x is None:
        return None
    axis = do.b % x.ndim
    shape = [*x.shape[:axis], (2, 4)[do.c % 2], *x.shape[axis + 1 :]]
    return jnp.take_along_axis(x, _indices(shape, x.shape[axis], do.d), axis=axis)


def _scatter(b: _Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, _rank(1, 3))
    y = (
        None
        if x is None
        else b.pick(pool, do.b, lambda v: v.dtype == x.dtype and v.shape[1:] == x.shape[1:] and v.ndim)
    )
    if y is None:
        return None
    place = x.at[_indices(y.shape[:1], x.shape[0], do.c)]
    return place.max(y) if do.d % 3 == 2 and not b.grad else place.add(y)


def _dynamic_slice(b: _Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, _rank(1))
    if x is None:
        return None
    axis = do.b % x.ndim
    return lax.dynamic_slice_in_dim(x, jnp.argmax(x.ravel()[:4]) * (do.d % 2), max(1, x.shape[axis] // 2), axis)


def _dynamic_update(b: _Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, _rank(1))
    if x is None:
        return None
    axis, width = do.b % x.ndim, (1, 2)[do.c % 2]
    update = lax.slice_in_dim(jnp.sin(x), 0, min(width, x.shape[axis]), axis=axis)
    return lax.dynamic_update_slice_in_dim(x, update, do.d, axis)


def _slice(b: _Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, lambda v: v.ndim >= 1)
    if x is None:
        return None
    axis = do.b % x.ndim
    half = max(1, x.shape[axis] // 2)
    start, stop, stride = ((0, half, 1), (x.shape[axis] - half, x.shape[axis], 1), (0, x.shape[axis], 2))[do.c % 3]
    return lax.slice_in_dim(x, start, stop, stride, axis)


def _pad(b: _Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, _rank(1))
    if x is None:
        return None
    config = [(0, 0, 0)] * x.ndim
    config[do.b % x.ndim] = ((1, 1, 0), (0, 2, 0), (0, 0, 1), (2, -1, 0))[do.c % 4]
    return lax.pad(x, jnp.asarray(0, x.dtype), config)


def _concatenate(b: _Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, _rank(1))
    return None if x is None else jnp.concatenate([x, b.pick(pool, do.b, _twin(x))], axis=do.c % x.ndim)


def _iota(b: _Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, _rank(1))
    return None if x is None else x + jnp.cos(lax.broadcasted_iota(jnp.float32, x.shape, do.b % x.ndim)).astype(x.dtype)


def _sort(b: _Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, _rank(1))
    return None if x is None else lax.sort(x, dimension=do.b % x.ndim)


def _top_k(b: _Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, lambda v: _rank(1)(v) and v.shape[-1] >= 2)
    return None if x is None else lax.top_k(x, 2)


def _random(b: _Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, _rank(0))
    if x is None:
        return None
    key = jax.random.fold_in(b.key, do.b)
    if do.c % 2:
        return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0)
    return x + jax.random.uniform(key, x.shape, jnp.float32).astype(x.dtype)


def _rev(b: _Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, lambda v: v.ndim >= 1)
    return None if x is None else lax.rev(x, (do.b % x.ndim,))


def _scan(b: _Builder, do: Do, pool: Pool) -> Any:
    """A scan with a carry, stacked inputs and outputs, and the latest value of the pool as a constant."""
    carry, xs = b.pick(pool, do.a, _float), b.pick(pool, do.b, lambda v: 1 <= v.ndim <= 3 and v.shape[0] <= 8)
    if carry is None or xs is None:
        return None
    const = b.pick(pool, do.c, _float)

    def body(c: Array, x: Array) -> tuple[Array, tuple[Array, Array]]:
        made = b.run(do.body, [const, x, c])
        # A stacked input that no step reads would be moved by XLA all the same, which drops it later.
        return b.inner((), made, c), (made[-1], -x if x.dtype != jnp.bool_ else x)

    last, stacked = lax.scan(body, carry, xs, reverse=do.d % 2 == 1)
    return last, *stacked


def _loop(b: _Builder, do: Do, pool: Pool) -> Any:
    carry = b.pick(pool, do.a, _float)
    if carry is None:
        return None

    def body(i: Array, c: Array) -> Array:
        return b.inner(do.body, [c * (1 + 0.1 * i).astype(c.dtype), c], c)

    if do.b % 2 and not b.grad:
        state = lax.while_loop(lambda s: s[0] < 2 + do.c % 2, lambda s: (s[0] + 1, body(s[0], s[1])), (0, carry))
        return state[1]
    return lax.fori_loop(0, 2 + do.c % 2, body, carry)


def _cond(b: _Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, _float)
    if x is None:
        return None
    y = b.pick(pool, do.b, _float)
    return lax.cond(jnp.sum(x) > 0, lambda p, q: b.inner(do.body, [q, p], p), lambda p, q: jnp.tanh(p), x, y)


def _call(b: _Builder, do: Do, pool: Pool) -> Any:
    """A body behind a remat, a jit, a vmap over the leading dim or a custom rule."""
    x = b.pick(pool, do.a, _rank(1))
    if x is None:
        return None
    wraps = (jax.checkpoint, jax.jit, jax.vmap, _halved_gradient)
    return wraps[do.b % 4](lambda p: b.run(do.body, [p])[-1])(x)


def _halved_gradient(fn: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """`fn` with half of its gradient, as a custom rule."""

    @jax.custom_vjp
    def call(x: Array) -> Array:
        return fn(x)

    def forward(x: Array) -> tuple[Array, Array]:
        return fn(x), x

    def backward(x: Array, g: Array) -> tuple[Array]:
        if not _float(g):
            return (jnp.zeros_like(x),)
        return (jax.vjp(fn, x)[1](g * 0.5)[0],)

    call.defvjp(forward, backward)
    return call


OPS: Mapping[str, Callable[[_Builder, Do, Pool], Any]] = {
    "along": _along,
    "binary": _binary,
    "broadcast": _broadcast,
    "call": _call,
    "compare": _compare,
    "concatenate": _concatenate,
    "cond": _cond,
    "conv": _conv,
    "convert": _convert,
    "cumulative": _cumulative,
    "dot": _dot,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update": _dynamic_update,
    "iota": _iota,
    "loop": _loop,
    "merge": _merge,
    "outer_add": _outer_add,
    "pad": _pad,
    "random": _random,
    "reduce": _reduce,
    "reshape": _reshape,
    "rev": _rev,
    "scan": _scan,
    "scatter": _scatter,
    "slice": _slice,
    "sort": _sort,
    "split": _split,
    "take": _take,
    "top_k": _top_k,
    "transpose": _transpose,
    "unary": _unary,
}
BODIES = ("call", "cond", "loop", "scan")
"""Ops with a body."""
FREQUENT = ("dot", "unary", "binary", "reduce", "transpose", "outer_add")
"""Ops drawn more often, as they are in real programs."""


# ---------------------------------------------------------------- strategies


def _dos(kinds: Sequence[str], bodies: st.SearchStrategy[tuple[Do, ...]]) -> st.SearchStrategy[Do]:
    number = st.integers(0, 5)
    return st.builds(Do, st.sampled_from(kinds), number, number, number, number, bodies)


def descriptions(*, most: int = 7) -> st.SearchStrategy[Description]:
    """Programs of up to `most` ops, control flow with bodies of up to three (no loop within a loop)."""
    leaves = [kind for kind in OPS if kind not in BODIES]
    leaf = _dos([*FREQUENT, *leaves], st.just(()))
    block = _dos(BODIES, st.lists(leaf, min_size=1, max_size=3).map(tuple))
    argument = st.tuples(st.sampled_from(SHAPES), st.sampled_from(("float32", "float32", "float32", "bfloat16")))
    return st.builds(
        Description,
        st.lists(argument, min_size=1, max_size=3).map(tuple),
        st.lists(st.one_of(leaf, leaf, leaf, block), min_size=1, max_size=most).map(tuple),
        st.booleans(),
    )


meshes: st.SearchStrategy[Mapping[str, int]] = st.sampled_from(MESHES)
