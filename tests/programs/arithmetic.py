"""Elementwise ops of random programs: floats, integers and their bits, complex numbers, conversions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special as special
from jax import lax

from tests.programs.builder import (
    Array,
    Builder,
    Do,
    Op,
    Pool,
    Unfit,
    is_complex,
    is_float,
    is_int,
    is_plain,
    is_real,
    tamed,
    twin,
)

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
SPECIAL: tuple[Callable[[Array], Array], ...] = (
    lambda x: lax.lgamma(jnp.abs(x) + 1),
    lambda x: lax.digamma(jnp.abs(x) + 1),
    lax.erf,
    lax.erfc,
    lambda x: lax.erf_inv(0.9 * jnp.tanh(x)),
    lambda x: jnp.log1p(jnp.abs(x)),
    lambda x: jnp.sqrt(x * x + 0.5),
    lambda x: jnp.cbrt(x * x + 1),
    lambda x: jnp.sinh(jnp.tanh(x)),
    lambda x: jnp.cosh(jnp.tanh(x)),
    lambda x: jnp.tan(jnp.tanh(x)),
    lambda x: jnp.arcsin(0.9 * jnp.tanh(x)),
    lambda x: jnp.arccos(0.9 * jnp.tanh(x)),
    jnp.arctan,
    jnp.arcsinh,
    lambda x: jnp.arccosh(1.5 + jnp.abs(x)),
    lambda x: jnp.arctanh(0.9 * jnp.tanh(x)),
    lambda x: jnp.exp2(jnp.tanh(x)),
    lambda x: jnp.expm1(jnp.tanh(x)),
    lambda x: jnp.log(x * x + 0.5),
    lax.square,
    lambda x: 1 / (1 + x * x),
    lambda x: lax.sign(x) * jnp.abs(x),
    lambda x: lax.reduce_precision(x, 8, 7),
    lambda x: jnp.where(lax.is_finite(x), x, 0),
    lambda x: x - lax.stop_gradient(jnp.tanh(x)),
    lambda x: lax.bessel_i0e(x) + lax.bessel_i1e(x),
    jax.nn.gelu,
    jax.nn.silu,
    jnp.floor,
    jnp.ceil,
    lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
    lambda x: jnp.cos(x) * jnp.sin(x),
    lax.neg,
)
BINARY: tuple[Callable[[Array, Array], Array], ...] = (
    jnp.add,
    jnp.multiply,
    jnp.maximum,
    jnp.subtract,
    lambda x, y: jnp.where(x > y, x, -y),
    lambda x, y: x / (1 + y * y),
)
PAIRED: tuple[Callable[[Array, Array], Array], ...] = (
    jnp.minimum,
    lambda x, y: lax.atan2(x, jnp.abs(y) + 1),
    lambda x, y: lax.pow(jnp.abs(x) + 0.5, jnp.tanh(y)),
    lambda x, y: jnp.hypot(x, y + 3),
    lambda x, y: lax.rem(x, jnp.abs(y) + 0.5),
    lambda x, y: lax.nextafter(lax.stop_gradient(x), lax.stop_gradient(y)) + x,
    lambda x, y: lax.clamp(-jnp.abs(y), x, jnp.abs(y)),
    lambda x, y: lax.select_n(x > 0, x, y),
    lambda x, y: jnp.logaddexp(x, y),
    lambda x, y: lax.mul(x, lax.logistic(y)),
)
SLOW: tuple[Callable[[Array, Array], Array], ...] = (
    lambda x, y: lax.igamma(jnp.abs(x) + 0.5, jnp.abs(y) + 0.5),
    lambda x, y: lax.igammac(jnp.abs(x) + 0.5, jnp.abs(y) + 0.5),
    lambda x, y: lax.zeta(jnp.abs(x) + 2, jnp.abs(y) + 1),
    lambda x, y: lax.polygamma(jnp.ones_like(x), jnp.abs(y) + 1),
    lambda x, y: special.betainc(jnp.abs(x) + 0.5, jnp.abs(y) + 0.5, jnp.full_like(x, 0.3)),
)
"""Functions of float32 with loops inside, whose derivatives take long to compile."""

INTEGER: tuple[Callable[[Array, Array], Array], ...] = (
    lax.add,
    lax.sub,
    lax.mul,
    lambda x, y: lax.div(x, _divisor(y)),
    lambda x, y: lax.rem(x, _divisor(y)),
    lambda x, y: x // _divisor(y),
    lambda x, y: x % _divisor(y),
    lax.bitwise_and,
    lax.bitwise_or,
    lax.bitwise_xor,
    lambda x, y: lax.shift_left(x, y & jnp.asarray(3, y.dtype)),
    lambda x, y: lax.shift_right_logical(x, y & jnp.asarray(3, y.dtype)),
    lambda x, y: lax.shift_right_arithmetic(x, y & jnp.asarray(3, y.dtype)),
    lambda x, y: lax.population_count(x) + lax.clz(y),
    lambda x, y: lax.max(x, lax.bitwise_not(y)),
    lambda x, y: lax.min(x, lax.abs(y)) if jnp.issubdtype(x.dtype, jnp.signedinteger) else lax.min(x, y),
    lambda x, y: lax.integer_pow(x, 2) + lax.sign(y),
    lambda x, y: lax.clamp(jnp.asarray(1, x.dtype), x, jnp.asarray(5, x.dtype)) + y,
    lambda x, y: jnp.where(x > y, x, y + jnp.asarray(1, y.dtype)),
)
LOGICAL: tuple[Callable[[Array, Array], Array], ...] = (
    jnp.logical_and,
    jnp.logical_or,
    jnp.logical_xor,
    lambda x, y: ~x,
    lambda x, y: x == y,
)
DTYPES = ("bfloat16", "int32", "float32")
NARROW = ("float16", "uint32", "uint8", "int8", "bool", "complex64", "float8_e4m3fn", "float8_e5m2", "int16", "int32")


def _divisor(y: Array) -> Array:
    return y % jnp.asarray(7, y.dtype) + jnp.asarray(8, y.dtype)


def _unary(b: Builder, do: Do, pool: Pool) -> Any:
    return UNARY[do.b % len(UNARY)](b.pick(pool, do.a, is_float))


def _special(b: Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, is_float)
    return SPECIAL[do.dice().randrange(len(SPECIAL))](x)


def _binary(b: Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, is_float)
    return BINARY[do.c % len(BINARY)](x, b.pick(pool, do.b, twin(x)))


def _paired(b: Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, is_float)
    y = b.pick(pool, do.b, twin(x))
    if do.d % 4 == 3 and not b.differentiated and x.dtype == jnp.float32:
        return SLOW[do.c % len(SLOW)](x, y)
    return PAIRED[(do.c + 8 * (do.d % 2)) % len(PAIRED)](x, y)


def _integer(b: Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, is_int)
    return INTEGER[(do.c + 8 * do.d) % len(INTEGER)](x, b.pick(pool, do.b, twin(x)))


def _logical(b: Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, lambda v: v.dtype == jnp.bool_)
    return LOGICAL[do.c % len(LOGICAL)](x, b.pick(pool, do.b, twin(x)))


def _convert(b: Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, is_plain)
    return _as(x, DTYPES[do.b % 3])


def _narrow(b: Builder, do: Do, pool: Pool) -> Any:
    return _as(b.pick(pool, do.a, is_plain), NARROW[(do.b + 8 * do.c) % len(NARROW)])


def _as(x: Array, dtype: str) -> Array:
    """The value in another dtype, scaled where it would not fit."""
    if is_complex(x) and dtype != "complex64":
        x = lax.real(x)
    target = jnp.dtype(dtype)
    if jnp.issubdtype(target, jnp.integer) and not is_int(x) and x.dtype != jnp.bool_:
        scaled = jnp.clip(x.astype(jnp.float32) * 4, -100, 100)
        return (jnp.abs(scaled) if jnp.issubdtype(target, jnp.unsignedinteger) else scaled).astype(target)
    if is_int(x) and not jnp.issubdtype(target, jnp.integer) and target != jnp.bool_:
        return tamed(x).astype(target)
    if target == jnp.bool_:
        return x > 0 if is_real(x) else x.astype(jnp.float32) != 0
    return x.astype(target)


def _bitcast(b: Builder, do: Do, pool: Pool) -> Any:
    """Words as bytes, bytes as words, or words of the other sign."""
    if do.b % 3 == 1:
        x = b.pick(pool, do.a, lambda v: v.dtype == jnp.uint8 and v.ndim > 1 and v.shape[-1] == 4)
        return lax.bitcast_convert_type(x, jnp.uint32)
    x = b.pick(pool, do.a, lambda v: v.dtype in (jnp.int32, jnp.uint32))
    if do.b % 3 == 2:
        return lax.bitcast_convert_type(x, jnp.uint8)
    return lax.bitcast_convert_type(x, jnp.uint32 if x.dtype == jnp.int32 else jnp.int32)


def _compare(b: Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, is_plain)
    if is_complex(x):
        raise Unfit
    y = b.pick(pool, do.b, twin(x))
    return (jnp.greater, jnp.less_equal, jnp.equal, jnp.not_equal, jnp.less, jnp.greater_equal)[do.c % 6](x, y)


def _complex(b: Builder, do: Do, pool: Pool) -> Any:
    """Complex numbers from reals, among themselves, and back."""
    if do.b % 2 == 0:
        x = b.pick(pool, do.a, lambda v: v.dtype == jnp.float32)
        return lax.complex(x, b.pick(pool, do.c, twin(x))) if do.d % 2 else jnp.exp(1j * x)
    x = b.pick(pool, do.a, is_complex)
    functions = (lax.real, lax.imag, lax.conj, lambda z: jnp.abs(z + 4), lambda z: z * z / 2, lambda z: z / (z + 4))
    return functions[do.c % len(functions)](x)


def _choose(b: Builder, do: Do, pool: Pool) -> Any:
    """A select between values by a mask, or by an integer of three cases."""
    x = b.pick(pool, do.a, is_plain)
    y = b.pick(pool, do.b, twin(x))
    if do.d % 2:
        which = b.find(pool, do.c, lambda v: v.dtype == jnp.int32 and v.shape == x.shape)
        if which is not None:
            return lax.select_n(lax.clamp(0, which, 2), x, y, x)
    mask = b.find(pool, do.c, lambda v: v.dtype == jnp.bool_ and v.shape == x.shape)
    return jnp.where(y > x if mask is None else mask, x, y)


MATH: Mapping[str, Op] = {
    "binary": _binary,
    "bitcast": _bitcast,
    "choose": _choose,
    "compare": _compare,
    "complex": _complex,
    "convert": _convert,
    "integer": _integer,
    "logical": _logical,
    "narrow": _narrow,
    "paired": _paired,
    "special": _special,
    "unary": _unary,
}
