"""The builder of random programs: interprets descriptions of ops over a pool of the values made so far.

A description is data: an op's name, four small numbers and, for control flow, the descriptions of a body. The numbers
choose among what fits (the values made so far, dims, windows), the most recent first, modulo how many there are. So
every description means something in every program, an op for which nothing fits is left out, and a failing program is
made smaller by deleting ops and lowering numbers.

Values stay of the order of 1, and functions are used where they are smooth and far from their poles, so that a
difference between two ways to compute a program is an error and not its rounding.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = Any
Pool = list[Array]
Fits = Callable[[Array], bool]

LARGEST = 4096
"""Most elements of a value; what would be larger is left out."""
HIGHEST = 5
"""Most dims of a value."""


@dataclass(frozen=True, slots=True)
class Do:
    """One op: its name, the numbers that choose its operands and form, and the body of control flow."""

    op: str
    a: int = 0
    b: int = 0
    c: int = 0
    d: int = 0
    body: tuple[Do, ...] = ()

    def dice(self) -> random.Random:
        """Further choices, for ops with more forms than four numbers choose from."""
        return random.Random(self.b + 16 * self.c + 256 * self.d)


class Unfit(Exception):
    """No value of the pool fits an op, or the op does not fit it: the op is left out."""


REFUSALS = (Unfit, TypeError, ValueError, NotImplementedError, IndexError, ZeroDivisionError, OverflowError)
"""What JAX raises for an op that does not fit its operands (an empty array, a type without that function)."""

Op = Callable[["Builder", Do, Pool], Any]
"""From a builder, a description and the pool to the values made: an array, or a sequence of them."""


class Builder:
    """Interprets descriptions; `used` are the values that were read, so that the rest can be returned."""

    def __init__(self, *, ops: Mapping[str, Op], key: Array, mode: str) -> None:
        self.ops, self.key, self.mode = ops, key, mode
        self.used: list[Array] = []
        self.made: set[str] = set()

    @property
    def differentiated(self) -> bool:
        """Whether derivatives will be taken of what is built."""
        return self.mode not in ("forward", "vmap")

    def word(self) -> Array:
        """A number of 0 or 1 that no compiler knows; int32."""
        return (jax.random.bits(self.key) % 2).astype(jnp.int32)

    def run(self, ops: Sequence[Do], pool: Pool) -> Pool:
        """The values in `pool` and those the ops make, in order."""
        pool = list(pool)
        for do in ops:
            reads = len(self.used)
            try:
                result = self.ops[do.op](self, do, pool)
            except REFUSALS:
                del self.used[reads:]
                continue
            kept = [v for v in (result if isinstance(result, (list, tuple)) else (result,)) if _fitting(v)]
            pool += kept
            if kept:
                self.made.add(do.op)
        return pool

    def find(self, pool: Pool, number: int, fits: Fits) -> Array | None:
        """A value that fits, the most recent first; None where there is none."""
        found = [value for value in reversed(pool) if fits(value)]
        if not found:
            return None
        self.used.append(found[number % len(found)])
        return self.used[-1]

    def pick(self, pool: Pool, number: int, fits: Fits) -> Array:
        """A value that fits, the most recent first. Raises: Unfit where there is none."""
        value = self.find(pool, number, fits)
        if value is None:
            raise Unfit
        return value

    def inner(self, body: Sequence[Do], pool: Pool, like: Array) -> Array:
        """What a body makes of `pool`: its last value of the shape and dtype of `like`, which `pool` must hold."""
        made = self.run(body, pool)
        return next(value for value in reversed(made) if twin(like)(value))


def _fitting(value: Array) -> bool:
    return value is not None and value.size <= LARGEST and value.ndim <= HIGHEST


# ---------------------------------------------------------------- what fits


def is_key(value: Array) -> bool:
    return jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)


def is_plain(value: Array) -> bool:
    """Anything but keys."""
    return not is_key(value)


def is_float(value: Array) -> bool:
    """A real number of 16 bits or more."""
    return is_plain(value) and jnp.issubdtype(value.dtype, jnp.floating) and value.dtype.itemsize > 1


def is_int(value: Array) -> bool:
    return is_plain(value) and jnp.issubdtype(value.dtype, jnp.integer)


def is_real(value: Array) -> bool:
    return is_float(value) or is_int(value)


def is_complex(value: Array) -> bool:
    return is_plain(value) and jnp.issubdtype(value.dtype, jnp.complexfloating)


def rank(least: int, most: int = HIGHEST, kind: Fits = is_float) -> Fits:
    return lambda value: least <= value.ndim <= most and kind(value)


def twin(value: Array) -> Fits:
    """Of the same shape and dtype."""
    return lambda other: other.shape == value.shape and other.dtype == value.dtype


# ---------------------------------------------------------------- values made inside programs


def places(shape: Sequence[int], extent: int, number: int) -> Array:
    """Indices below `extent` that repeat and skip; int32."""
    size = int(np.prod(shape))
    return ((jnp.arange(size, dtype=jnp.int32) * (2 * number + 3) + number) % max(extent, 1)).reshape(shape)


def filled(value: Array, shape: Sequence[int], number: int = 0) -> Array:
    """An array of that shape, of the dtype of `value` and depending on it."""
    size = int(np.prod(shape))
    if not jnp.issubdtype(value.dtype, jnp.inexact):
        base = jnp.max(value, initial=0) if value.dtype != jnp.bool_ else jnp.any(value)
        return (
            ((jnp.arange(size, dtype=jnp.int32) * (number + 3) + base.astype(jnp.int32)) % 8)
            .reshape(shape)
            .astype(value.dtype)
        )
    wave = jnp.cos(jnp.arange(size, dtype=jnp.float32) + number).reshape(shape).astype(value.dtype)
    return wave + jnp.mean(value) if value.size else wave


def tamed(value: Array) -> Array:
    """A float of the order of 1 from any number: integers are taken modulo 8, complex numbers by their real part."""
    if is_complex(value):
        value = lax.real(value)
    if is_int(value):
        return (value % jnp.asarray(8, value.dtype)).astype(jnp.float32)
    return value.astype(jnp.float32)
