# ruff: noqa: E501 - one case is one line: a table to be read down its columns
"""Every primitive with a rule, as a table of small cases; the tests of rules all run over it.

A case is the primitive's name (and what is particular, after a space), a function that uses the primitive, the arrays
it takes, and the text of the rule. Arrays are extents and a type: `4,6:i32`; `()` is a scalar, the type defaults to
float32. Where a function uses the primitive several times, the last use is meant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import Literal
from jax.extend.core import primitives as core
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from planner.program.graph import Aval
from planner.program.jaxpr.canonicalize.rolls import roll

DTYPES: Mapping[str, Any] = {
    "b": np.bool_,
    "c64": np.complex64,
    "f32": np.float32,
    "f8": jnp.float8_e4m3fn,
    "f8scale": jnp.float8_e8m0fnu,
    "i32": np.int32,
    "key": jax.random.key(0).dtype,
    "u32": np.uint32,
    "u8": np.uint8,
}
NEWER = frozenset({"log2", "one_minus_square", "polynomial"})
"""Primitives that JAX 0.10 does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Equation:
    """The use of a primitive that a case is about. `literals` maps operand positions to scalars written in place."""

    primitive: Any
    operands: tuple[Aval, ...]
    results: tuple[Aval, ...]
    params: Mapping[str, Any]
    dtypes: tuple[Any, ...]
    literals: Mapping[int, Any]


def structs(text: str) -> list[jax.ShapeDtypeStruct]:
    """The arrays that a case's third entry describes."""

    def struct(word: str) -> jax.ShapeDtypeStruct:
        extents, _, dtype = word.partition(":")
        shape = tuple(int(extent) for extent in extents.strip("()").split(",") if extent)
        return jax.ShapeDtypeStruct(shape, DTYPES[dtype or "f32"])

    return [struct(word) for word in text.split()]


def equation(name: str, function: Callable[..., Any], arrays: str) -> Equation | None:
    """The last equation of the case's primitive in the traced function; None where this JAX lacks the primitive."""
    kind = name.split()[0]
    if kind in NEWER and not hasattr(lax, f"{kind}_p"):
        return None
    found = [eqn for eqn in _equations(jax.make_jaxpr(function)(*structs(arrays)).jaxpr) if eqn.primitive.name == kind]
    if not found:
        raise LookupError(f"case {name!r}: the traced function has no equation {kind!r}")
    eqn = found[-1]
    return Equation(
        primitive=eqn.primitive,
        operands=tuple(_aval(var.aval) for var in eqn.invars),
        results=tuple(_aval(var.aval) for var in eqn.outvars),
        params=eqn.params,
        dtypes=tuple(var.aval.dtype for var in eqn.invars),
        literals={n: var.val for n, var in enumerate(eqn.invars) if isinstance(var, Literal)},
    )


def _equations(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        for value in eqn.params.values():
            if hasattr(getattr(value, "jaxpr", value), "eqns"):
                yield from _equations(getattr(value, "jaxpr", value))
        yield eqn


def _aval(aval: Any) -> Aval:
    return Aval(shape=tuple(aval.shape), dtype=str(aval.dtype), itemsize=aval.dtype.itemsize)


def conv(x: Any, kernel: Any, stride: tuple[int, int] = (1, 1), padding: Any = "SAME", **more: Any) -> Any:
    """A two-dimensional convolution, channels last."""
    return lax.conv_general_dilated(x, kernel, stride, padding, dimension_numbers=("NHWC", "HWIO", "NHWC"), **more)


def conv_kernel_gradient(x: Any, kernel: Any, gradient: Any) -> Any:
    """The gradient of `conv` by its kernel."""
    return jax.vjp(lambda k: conv(x, k), kernel)[1](gradient)


def max_pool(x: Any) -> Any:
    """Maxima of pairs along the second dim."""
    return lax.reduce_window(x, -np.inf, lax.max, (1, 2, 1), (1, 2, 1), "VALID")


def ragged(x: Any, y: Any, sizes: Any, numbers: Any, rows: list[int], groups: list[int]) -> Any:
    """A ragged dot."""
    return lax.ragged_dot_general(x, y, sizes, lax.RaggedDotDimensionNumbers(numbers, rows, groups))


def scatter_window(x: Any, indices: Any, updates: Any) -> Any:
    """Windows of two rows added to `x`."""
    numbers = lax.ScatterDimensionNumbers((1, 2), (), (0,))
    return lax.scatter_add(x, indices, updates, numbers)


def constrained(x: Any) -> Any:
    """`x` with its first dim split."""
    mesh = AbstractMesh((2,), ("data",), axis_types=(AxisType.Auto,))
    return lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec("data")))


# fmt: off
CASES: tuple[tuple[str, Callable[..., Any], str, str], ...] = (
    ("abs", lax.abs, "4,6", "a b -> a b"),
    ("acos", lax.acos, "4,6", "a b -> a b"),
    ("acosh", lax.acosh, "4,6", "a b -> a b"),
    ("add", lax.add, "4,6 4,6", "a b, a b -> a b"),
    ("add extent 1", lambda x: lax.add_p.bind(x, np.ones((1, 1), np.float32)), "4,6", "a b, 1 1 -> a b"),
    ("add scalar", lambda x: x + 2.0, "4,6", "a b, () -> a b"),
    ("add_any", jax.grad(lambda x: lax.reduce_sum(lax.mul(x, x), (0, 1))), "4,6", "a b, a b -> a b"),
    ("and", lax.bitwise_and, "4,6:i32 4,6:i32", "a b, a b -> a b"),
    ("approx_top_k", lambda x: lax.approx_max_k(x, 2), "4,8", "a b -> a c, a c | replicate b c"),
    ("argmax", lambda x: lax.argmax(x, 1, np.int32), "4,6", "a b -> a | reduce(arg) b"),
    ("argmin", lambda x: lax.argmin(x, 0, np.int32), "4,6", "a b -> b | reduce(arg) a"),
    ("asin", lax.asin, "4,6", "a b -> a b"),
    ("asinh", lax.asinh, "4,6", "a b -> a b"),
    ("atan", lax.atan, "4,6", "a b -> a b"),
    ("atan2", lax.atan2, "4,6 4,6", "a b, a b -> a b"),
    ("atanh", lax.atanh, "4,6", "a b -> a b"),
    ("bessel_i0e", lax.bessel_i0e, "4,6", "a b -> a b"),
    ("bessel_i1e", lax.bessel_i1e, "4,6", "a b -> a b"),
    ("bitcast_convert_type", lambda x: lax.bitcast_convert_type(x, np.int32), "4,6", "a b -> a b"),
    ("bitcast_convert_type narrower", lambda x: lax.bitcast_convert_type(x, np.uint8), "4,6", "a b -> a b c | replicate c"),
    ("bitcast_convert_type wider", lambda x: lax.bitcast_convert_type(x, np.float32), "4,6,4:u8", "a b c -> a b | replicate c"),
    ("broadcast_in_dim", lambda x: lax.broadcast_in_dim(x, (4, 6, 8), (1,)), "6", "a -> b a c"),
    ("broadcast_in_dim extent 1", lambda x: lax.broadcast_in_dim(x, (4, 6, 8), (0, 2)), "4,1", "a 1 -> a b c"),
    ("broadcast_in_dim scalar", lambda x: lax.broadcast_in_dim(x, (4, 6), ()), "()", "() -> a b"),
    ("cbrt", lax.cbrt, "4,6", "a b -> a b"),
    ("ceil", lax.ceil, "4,6", "a b -> a b"),
    ("cholesky", lambda x: lax.linalg.cholesky_p.bind(x), "4,6,6", "a b c -> a b c | replicate b c"),
    ("cholesky_update", lax.linalg.cholesky_update, "6,6 6", "a b, a -> a b | replicate a b"),
    ("clamp", lax.clamp, "4,6 4,6 4,6", "a b, a b, a b -> a b"),
    ("clamp scalar", lambda x: lax.clamp(0.2, x, 0.5), "4,6", "(), a b, () -> a b"),
    ("clz", lax.clz, "4,6:i32", "a b -> a b"),
    ("complex", lax.complex, "4,6 4,6", "a b, a b -> a b"),
    ("concatenate", lambda x, y: lax.concatenate([x, y], 1), "4,6 4,8", "a b, a c -> a d | replicate b c d"),
    ("conj", lax.conj, "4,6:c64", "a b -> a b"),
    ("conv_general_dilated", lambda x, k: conv(x, k), "4,8,10,6 3,3,6,8", "a b c d, e f d g -> a b c g | reduce d | replicate e f | permute b c"),
    ("conv_general_dilated NCHW", lambda x, k: lax.conv(x, k, (1, 1), "VALID"), "4,6,8,10 8,6,3,3", "a b c d, e b f g -> a e h i | reduce b | replicate c d f g h i"),
    ("conv_general_dilated batch groups", lambda x, k: conv(x, k, batch_group_count=2), "8,8,10,6 3,3,6,8", "(a b) c d e, f g e (a h) -> b c d (a h) | reduce e | replicate f g | permute c d"),
    ("conv_general_dilated depthwise", lambda x, k: conv(x, k, feature_group_count=6), "4,8,10,6 3,3,1,12", "a b c d, e f 1 (d g) -> a b c (d g) | replicate e f | permute b c"),
    ("conv_general_dilated dilated", lambda x, k: conv(x, k, rhs_dilation=(2, 2)), "4,8,10,6 3,3,6,8", "a b c d, e f d g -> a b c g | reduce d | replicate e f | permute b c"),
    ("conv_general_dilated feature groups", lambda x, k: conv(x, k, feature_group_count=2), "4,8,10,8 3,3,4,12", "a b c (d e), f g e (d h) -> a b c (d h) | reduce e | replicate f g | permute b c"),
    ("conv_general_dilated kernel gradient", lambda x, k, g: conv_kernel_gradient(x, k, g), "4,8,10,6 3,3,6,8 4,8,10,8", "a b c d, a b c e -> f g d e | reduce a b c | replicate f g"),
    ("conv_general_dilated patches", lambda x, k: conv(x, k, stride=(2, 2), padding="VALID"), "4,8,10,6 2,2,6,8", "a (b c) (d e) f, g h f i -> a b d i | reduce f | replicate c e g h | permute b d"),
    ("conv_general_dilated pointwise", lambda x, k: conv(x, k), "4,8,10,6 1,1,6,8", "a b c d, 1 1 d e -> a b c e | reduce d"),
    ("conv_general_dilated strided", lambda x, k: conv(x, k, stride=(2, 2)), "4,8,10,6 3,3,6,8", "a (b c) (d e) f, g h f i -> a b d i | reduce f | replicate c e g h | permute b d"),
    ("conv_general_dilated transposed", lambda x, k: conv(x, k, padding=((1, 2), (1, 2)), lhs_dilation=(2, 2)), "4,8,10,6 3,3,6,8", "a b c d, e f d g -> a (b h) (c i) g | reduce d | replicate e f h i | permute b c"),
    ("convert_element_type", lambda x: lax.convert_element_type(x, np.int32), "4,6", "a b -> a b"),
    ("copy", core.copy_p.bind, "4,6", "a b -> a b"),
    ("cos", lax.cos, "4,6", "a b -> a b"),
    ("cosh", lax.cosh, "4,6", "a b -> a b"),
    ("cumlogsumexp", lambda x: lax.cumlogsumexp(x, 1), "4,6", "a b -> a b | replicate b"),
    ("cummax", lambda x: lax.cummax(x, 1), "4,6", "a b -> a b | replicate b"),
    ("cummin", lambda x: lax.cummin(x, 1), "4,6", "a b -> a b | replicate b"),
    ("cumprod", lambda x: lax.cumprod(x, 1), "4,6", "a b -> a b | replicate b"),
    ("cumsum", lambda x: lax.cumsum(x, 0, reverse=True), "4,6", "a b -> a b | replicate a"),
    ("device_put", lambda x, y: jax.device_put((x, y), jax.devices()[0]), "4,6 8", "a b, c -> a b, c"),
    ("digamma", lax.digamma, "4,6", "a b -> a b"),
    ("div", lax.div, "4,6 4,6", "a b, a b -> a b"),
    ("dot_general", lambda x, y: lax.dot_general(x, y, (((2,), (1,)), ((0,), (0,)))), "4,6,8 4,8,10", "a b c, a c d -> a b d | reduce c"),
    ("dot_general attention", lambda q, k: jnp.einsum("bthd,bshd->bhts", q, k), "2,4,6,8 2,10,6,8", "a b c d, a e c d -> a c b e | reduce d"),
    ("dot_general matrix", lax.dot, "4,6 6,8", "a b, b c -> a c | reduce b"),
    ("dot_general two sums", lambda x, y: lax.dot_general(x, y, (((0, 2), (1, 0)), ((), ()))), "4,6,8 8,4,10", "a b c, c a d -> b d | reduce a c"),
    ("dot_general vectors", lax.dot, "6 6", "a, a -> () | reduce a"),
    ("dynamic_slice", lambda x, i: lax.dynamic_slice(x, (i, i), (2, 6)), "4,6 ():i32", "a b, (), () -> c b | replicate a c"),
    ("dynamic_update_slice", lambda x, y, i: lax.dynamic_update_slice(x, y, (i, i)), "4,6 2,6 ():i32", "a b, c b, (), () -> a b | replicate a c"),
    ("dynamic_update_slice one", lambda x, y, i: lax.dynamic_update_slice(x, y, (i, i)), "4,6 1,6 ():i32", "a b, 1 b, (), () -> a b"),
    ("eig", lax.linalg.eig, "4,6,6", "a b c -> a b, a b c, a b c | replicate b c"),
    ("eigh", lambda x: lax.linalg.eigh(x, symmetrize_input=False), "4,6,6", "a b c -> a b c, a b | replicate b c"),
    ("empty", lambda: lax.empty((4, 6), np.float32), "", " -> a b"),
    ("eq", lax.eq, "4,6 4,6", "a b, a b -> a b"),
    ("eq_to", core.eq_to_p.bind, "4,6 4,6", "a b, a b -> a b"),
    ("erf", lax.erf, "4,6", "a b -> a b"),
    ("erf_inv", lax.erf_inv, "4,6", "a b -> a b"),
    ("erfc", lax.erfc, "4,6", "a b -> a b"),
    ("exp", lax.exp, "4,6", "a b -> a b"),
    ("exp2", lax.exp2, "4,6", "a b -> a b"),
    ("expm1", lax.expm1, "4,6", "a b -> a b"),
    ("fft", lambda x: lax.fft(x, "FFT", (6, 8)), "4,6,8:c64", "a b c -> a b c | replicate b c"),
    ("fft inverse real", lambda x: lax.fft(x, "IRFFT", (8,)), "4,5:c64", "a b -> a c | replicate b c"),
    ("fft real", lambda x: lax.fft(x, "RFFT", (8,)), "4,8", "a b -> a c | replicate b c"),
    ("floor", lax.floor, "4,6", "a b -> a b"),
    ("gather along", lambda x, i: jnp.take_along_axis(x, i, axis=1), "4,8 4,6:i32", "a b, a c 1 -> a c | reduce b"),
    ("gather elements", lambda x, i, j: x[i, j], "8,6 4:i32 4:i32", "a b, c d -> c | reduce a b | replicate d"),
    ("gather embedding", lambda x, i: jnp.take(x, i, axis=0), "8,6 2,4:i32", "a b, c d 1 -> c d b | reduce a"),
    ("gather middle", lambda x, i: x[:, i, :], "4,8,6 2:i32", "a b c, d 1 -> a d c | reduce b"),
    ("gather vmapped", lambda x, i: jax.vmap(lambda v, n: v[n])(x, i), "4,8,6 4,2:i32", "a b c, a d 1 -> a d c | reduce b"),
    ("gather window", lambda x, i: jax.vmap(lambda n: lax.dynamic_slice(x, (n, n), (2, 6)))(i), "8,6 4:i32", "a b, c d -> c e b | replicate a d e"),
    ("ge", lax.ge, "4,6 4,6", "a b, a b -> a b"),
    ("geqp3", lambda x, c: jax.scipy.linalg.qr_multiply(x, c, pivoting=True), "8,6 4,8", "a b, c -> a b, c, c | replicate a b c"),
    ("geqrf", lambda x, c: jax.scipy.linalg.qr_multiply(x, c), "8,6 4,8", "a b -> a b, c | replicate a b c"),
    ("gt", lax.gt, "4,6 4,6", "a b, a b -> a b"),
    ("hessenberg", lax.linalg.hessenberg, "4,6,6", "a b c -> a b c, a d | replicate b c d"),
    ("householder_product", lax.linalg.householder_product, "4,8,6 4,6", "a b c, a d -> a b c | replicate b c d"),
    ("igamma", lax.igamma, "4 4", "a, a -> a"),
    ("igamma_grad_a", lax.igamma_grad_a, "4 4", "a, a -> a"),
    ("igammac", lax.igammac, "4 4", "a, a -> a"),
    ("imag", lax.imag, "4,6:c64", "a b -> a b"),
    ("integer_pow", lambda x: lax.integer_pow(x, 3), "4,6", "a b -> a b"),
    ("iota", lambda: lax.broadcasted_iota(np.int32, (4, 6), 1), "", " -> a b"),
    ("is_finite", lax.is_finite, "4,6", "a b -> a b"),
    ("le", lax.le, "4,6 4,6", "a b, a b -> a b"),
    ("le_to", core.le_to_p.bind, "4,6 4,6", "a b, a b -> a b"),
    ("lgamma", lax.lgamma, "4,6", "a b -> a b"),
    ("log", lax.log, "4,6", "a b -> a b"),
    ("log1p", lax.log1p, "4,6", "a b -> a b"),
    ("log2", lambda x: lax.log2(x), "4,6", "a b -> a b"),
    ("logistic", lax.logistic, "4,6", "a b -> a b"),
    ("lt", lax.lt, "4,6 4,6", "a b, a b -> a b"),
    ("lt_to", core.lt_to_p.bind, "4,6 4,6", "a b, a b -> a b"),
    ("lu", lax.linalg.lu, "4,8,6", "a b c -> a b c, a d, a b | replicate b c d"),
    ("lu_pivots_to_permutation", lambda p: lax.linalg.lu_pivots_to_permutation(p, 8), "4,6:i32", "a b -> a c | replicate b c"),
    ("max", lax.max, "4,6 4,6", "a b, a b -> a b"),
    ("min", lax.min, "4,6 4,6", "a b, a b -> a b"),
    ("mul", lax.mul, "4,6 4,6", "a b, a b -> a b"),
    ("mulhi", lambda x, y: lax.mulhi_p.bind(x, y), "4,6:u32 4,6:u32", "a b, a b -> a b"),
    ("name", lambda x: checkpoint_name(x, "hidden"), "4,6", "a b -> a b"),
    ("ne", lax.ne, "4,6 4,6", "a b, a b -> a b"),
    ("neg", lax.neg, "4,6", "a b -> a b"),
    ("nextafter", lax.nextafter, "4,6 4,6", "a b, a b -> a b"),
    ("not", lax.bitwise_not, "4,6:i32", "a b -> a b"),
    ("one_minus_square", lambda x: lax.one_minus_square_p.bind(x), "4,6", "a b -> a b"),
    ("optimization_barrier", lambda x, y: lax.optimization_barrier((x, y)), "4,6 8", "a b, c -> a b, c"),
    ("or", lax.bitwise_or, "4,6:i32 4,6:i32", "a b, a b -> a b"),
    ("ormqr", lax.linalg.ormqr, "4,6,6 4,6 4,6,8", "a b c, a b, a b d -> a b d | replicate b c d"),
    ("pad", lambda x: lax.pad(x, 0.0, ((0, 0, 0), (1, 2, 0))), "4,6", "a b, () -> a c | replicate b c"),
    ("pad interior", lambda x: lax.pad(x, 0.0, ((0, 0, 1), (0, 0, 0))), "4,6", "a b, () -> c b | replicate a c"),
    ("polygamma", lax.polygamma, "4 4", "a, a -> a"),
    ("polynomial", lambda x: lax.polynomial_p.bind(x, 1.0, 2.0), "4,6", "a b, (), () -> a b"),
    ("population_count", lax.population_count, "4,6:i32", "a b -> a b"),
    ("pow", lax.pow, "4,6 4,6", "a b, a b -> a b"),
    ("qr", lambda x: lax.linalg.qr(x, full_matrices=False), "4,8,6", "a b c -> a b c, a d c | replicate b c d"),
    ("ragged_dot_general batch", lambda x, y, g: ragged(x, y, g, (((2,), (1,)), ((0,), (0,))), [0], []), "4,6,8 4,8,10 2:i32", "a b c, a c d, e -> a b d | reduce c | replicate a e"),
    ("ragged_dot_general rows", lambda x, y, g: ragged(x, y, g, (((1,), (1,)), ((), ())), [0], [0]), "8,6 2,6,10 2:i32", "a b, c b d, c -> a d | reduce b | replicate a c"),
    ("ragged_dot_general sum", lambda x, y, g: ragged(x, y, g, (((0,), (0,)), ((), ())), [0], []), "8,6 8,10 2:i32", "a b, a c, d -> d b c | replicate a d"),
    ("random_bits", lambda k: jax.random.bits(k, (4, 6)), "():key", "() -> a b"),
    ("random_clone", jax.random.clone, "4:key", "a -> a"),
    ("random_fold_in", lambda k, i: jax.vmap(jax.random.fold_in)(k, i), "4:key 4:u32", "a, a -> a"),
    ("random_gamma", lambda k, a: jax.random.gamma(k, a), "():key 4,6", "(), a b -> a b"),
    ("random_seed", lambda s: jax.vmap(jax.random.key)(s), "4:u32", "a -> a"),
    ("random_split", lambda k: jax.random.split(k, (4, 6)), "():key", "() -> a b"),
    ("random_split vmapped", lambda k: jax.vmap(lambda n: jax.random.split(n, 6))(k), "4:key", "a -> a b"),
    ("random_unwrap", jax.random.key_data, "4:key", "a -> a b | replicate b"),
    ("random_wrap", jax.random.wrap_key_data, "4,2:u32", "a b -> a | replicate b"),
    ("real", lax.real, "4,6:c64", "a b -> a b"),
    ("reduce", lambda x: lax.reduce(x, 1.0, lambda a, b: a * 2 + b, (1,)), "4,6", "a b, () -> a | replicate a b"),
    ("reduce two operands", lambda x, y: lax.reduce((x, y), (0.0, 0.0), lambda a, b: (a[0] + b[1], a[1] - b[0]), (0,)), "4,6 4,6", "a b, a b, (), () -> b, b | replicate a b"),
    ("reduce_and", lambda x: lax.reduce_and(x, (1,)), "4,6:b", "a b -> a | reduce(and) b"),
    ("reduce_and bits", lambda x: core.reduce_and_p.bind(x, axes=(1,)), "4,6:i32", "a b -> a | replicate b"),
    ("reduce_max", lambda x: lax.reduce_max(x, (0, 2)), "4,6,8", "a b c -> b | reduce(max) a c"),
    ("reduce_max complex", lambda x: lax.reduce_max(x, (1,)), "4,6:c64", "a b -> a | replicate b"),
    ("reduce_min", lambda x: lax.reduce_min(x, (1,)), "4,6", "a b -> a | reduce(min) b"),
    ("reduce_or", lambda x: lax.reduce_or(x, (1,)), "4,6:b", "a b -> a | reduce(or) b"),
    ("reduce_precision", lambda x: lax.reduce_precision(x, 8, 7), "4,6", "a b -> a b"),
    ("reduce_prod", lambda x: lax.reduce_prod(x, (1,)), "4,6", "a b -> a | reduce(mul) b"),
    ("reduce_sum", lambda x: lax.reduce_sum(x, (1,)), "4,6", "a b -> a | reduce b"),
    ("reduce_sum whole", lambda x: lax.reduce_sum(x, (0, 1)), "4,6", "a b -> () | reduce a b"),
    ("reduce_window", lambda x: lax.reduce_window(x, 1.0, lambda a, b: a * 2 + b, (1, 3), (1, 1), "SAME"), "4,6", "a b, () -> a b | replicate b"),
    ("reduce_window_max", lambda x: lax.reduce_window(x, -np.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"), "4,8,10,6", "a (b c) (d e) f -> a b d f | replicate c e | permute b d"),
    ("reduce_window_min", lambda x: lax.reduce_window(x, np.inf, lax.min, (1, 3), (1, 1), "VALID"), "4,6", "a b -> a c | replicate b c"),
    ("reduce_window_sum", lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 3), (1, 1), "SAME"), "4,6", "a b -> a b | permute b"),
    ("reduce_xor", lambda x: lax.reduce_xor(x, (1,)), "4,6:i32", "a b -> a | replicate b"),
    ("regularized_incomplete_beta", lax.betainc, "4 4 4", "a, a, a -> a"),
    ("rem", lax.rem, "4,6 4,6", "a b, a b -> a b"),
    ("reshape apart", lambda x: lax.reshape(x, (4, 6)), "24", "(a b) -> a b"),
    ("reshape crossing", lambda x: lax.reshape(x, (6, 4)), "4,6", "(a b) c -> (a d) e | replicate b c d e"),
    ("reshape crossing, then alike", lambda x: lax.reshape(x, (15, 2, 4)), "10,3,4", "(a b) c d -> (a e) f d | replicate b c e f"),
    ("reshape extents 1", lambda x: lax.reshape(x, (1, 4, 1, 6)), "4,6,1", "a b 1 -> 1 a 1 b"),
    ("reshape heads", lambda x: lax.reshape(x, (2, 4, 6, 8)), "2,4,48", "a b (c d) -> a b c d"),
    ("reshape merge", lambda x: lax.reshape(x, (24,)), "4,6", "a b -> (a b)"),
    ("reshape of nothing", lambda x: lax.reshape(x, (6, 0)), "0,4", "a b -> c d | replicate a b c d"),
    ("reshape regroup", lambda x: lax.reshape(x, (4, 15)), "12,5", "(a b) c -> a (b c)"),
    ("reshape reordered", lambda x: lax.reshape(x, (24,), (1, 0)), "4,6", "a b -> (b a)"),
    ("reshape unlike", lambda x: lax.reshape(x, (3, 7, 2)), "2,7,3", "a b c -> d e f | replicate a b c d e f"),
    ("rev", lambda x: lax.rev(x, (1,)), "4,6", "a b -> a b | replicate b"),
    ("rng_bit_generator", lambda k: lax.rng_bit_generator(k, (4, 6)), "4:u32", "a -> a, b c | replicate a"),
    ("rng_uniform", lambda a, b: lax.rng_uniform(a, b, (4, 6)), "() ()", "(), () -> a b"),
    ("roll", lambda x: roll(x, 2, 1), "4,6", "a (b c) -> a (b c) | replicate c | permute b"),
    ("roll past the middle", lambda x: roll(x, 4, 1), "4,6", "a b -> a b | replicate b"),
    ("round", lax.round, "4,6", "a b -> a b"),
    ("rsqrt", lax.rsqrt, "4,6", "a b -> a b"),
    ("scaled_dot", lambda x, y, a, b: lax.scaled_dot(x, y, lhs_scale=a, rhs_scale=b, dimension_numbers=(((2,), (2,)), ((0,), (0,)))), "2,4,64:f8 2,6,64:f8 2,4,2:f8scale 2,6,2:f8scale", "a b c, a d c, a b e, a d f -> a b d | replicate c e f"),
    ("scatter", lambda x, i, u: x.at[i].set(u), "8,6 4:i32 4,6", "a b, c 1, c b -> a b | replicate c"),
    ("scatter kv cache", lambda x, i, u: jax.vmap(lambda c, n, v: c.at[n].set(v))(x, i, u), "4,8,6 4:i32 4,6", "a b c, a 1, a c -> a b c"),
    ("scatter-add along", lambda x, i, u: jax.vmap(lambda c, n, v: c.at[n].add(v))(x, i, u), "4,8 4,2:i32 4,2", "a b, a c 1, a c -> a b | reduce c"),
    ("scatter-add elements", lambda x, i, j, u: x.at[i, j].add(u), "8,6 4:i32 4:i32 4", "a b, c d, c -> a b | reduce c | replicate d"),
    ("scatter-add embedding", lambda x, i, u: x.at[i].add(u), "8,6 2,4:i32 2,4,6", "a b, c d 1, c d b -> a b | reduce c d"),
    ("scatter-add window", scatter_window, "8,6 4,1:i32 4,2,6", "a b, c 1, c d b -> a b | reduce c | replicate a d"),
    ("scatter-max", lambda x, i, u: x.at[i].max(u), "8,6 4:i32 4,6", "a b, c 1, c b -> a b | reduce(max) c"),
    ("scatter-min", lambda x, i, u: x.at[i].min(u), "8,6 4:i32 4,6", "a b, c 1, c b -> a b | reduce(min) c"),
    ("scatter-mul", lambda x, i, u: x.at[i].mul(u), "8,6 4:i32 4,6", "a b, c 1, c b -> a b | reduce(mul) c"),
    ("scatter-sub", lambda x, i, u: x.at[i].subtract(u), "8,6 4:i32 4,6", "a b, c 1, c b -> a b | replicate c"),
    ("schur", lax.linalg.schur, "4,6,6", "a b c -> a b c, a b c | replicate b c"),
    ("select_and_gather_add", lambda x, t: jax.jvp(max_pool, (x,), (t,)), "4,8,6 4,8,6", "a b c, a b c -> a d c | replicate b d"),
    ("select_and_scatter_add", lambda x, g: jax.vjp(max_pool, x)[1](g), "4,8,6 4,4,6", "a b c, a (b d) c -> a (b d) c | replicate d | permute b"),
    ("select_n", lax.select_n, "4,6:b 4,6 4,6", "a b, a b, a b -> a b"),
    ("select_n scalar", lax.select_n, "():b 4,6 4,6", "(), a b, a b -> a b"),
    ("sharding_constraint", constrained, "4,6", "a b -> a b"),
    ("shift_left", lax.shift_left, "4,6:i32 4,6:i32", "a b, a b -> a b"),
    ("shift_right_arithmetic", lax.shift_right_arithmetic, "4,6:i32 4,6:i32", "a b, a b -> a b"),
    ("shift_right_logical", lax.shift_right_logical, "4,6:i32 4,6:i32", "a b, a b -> a b"),
    ("sign", lax.sign, "4,6", "a b -> a b"),
    ("sin", lax.sin, "4,6", "a b -> a b"),
    ("sinh", lax.sinh, "4,6", "a b -> a b"),
    ("slice", lambda x: lax.slice(x, (0, 1), (4, 5)), "4,6", "a b -> a c | replicate b c"),
    ("slice strided", lambda x: lax.slice(x, (0, 0), (4, 6), (1, 2)), "4,6", "a b -> a c | replicate b c"),
    ("sort", lambda x, y: lax.sort((x, y), dimension=1), "4,6 4,6", "a b, a b -> a b, a b | replicate b"),
    ("split", lambda x: lax.split(x, (2, 4), 1), "4,6", "a b -> a c, a d | replicate b c d"),
    ("split off nothing", lambda x: lax.split(x, (6, 0), 1), "4,6", "a b -> a c, a d | replicate b c d"),
    ("sqrt", lax.sqrt, "4,6", "a b -> a b"),
    ("square", lax.square, "4,6", "a b -> a b"),
    ("squeeze", lambda x: lax.squeeze(x, (1,)), "4,1,6", "a 1 b -> a b"),
    ("stack", lambda x, y: lax.stack((x, y), 1), "4,6 4,6", "a b, a b -> a c b | replicate c"),
    ("stop_gradient", core.stop_gradient_p.bind, "4,6", "a b -> a b"),
    ("sub", lax.sub, "4,6 4,6", "a b, a b -> a b"),
    ("svd", lambda x: lax.linalg.svd(x, full_matrices=False), "4,8,6", "a b c -> a d, a b c, a d c | replicate b c d"),
    ("symmetric_product", lax.linalg.symmetric_product, "4,6,8 4,6,6", "a b c, a b d -> a b d | replicate b c d"),
    ("tan", lax.tan, "4,6", "a b -> a b"),
    ("tanh", lax.tanh, "4,6", "a b -> a b"),
    ("threefry2x32", lambda a, b, x, y: core.threefry2x32_p.bind(a, b, x, y), "():u32 ():u32 24:u32 24:u32", "(), (), a, a -> a, a"),
    ("tile", lambda x: lax.tile(x, (1, 3)), "4,6", "a b -> a (c b)"),
    ("top_k", lambda x: lax.top_k(x, 2), "4,6", "a b -> a c, a c | replicate b c"),
    ("transpose", lambda x: lax.transpose(x, (2, 0, 1)), "4,6,8", "a b c -> c a b"),
    ("triangular_solve", lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True), "4,6,6 4,6,8", "a b c, a b d -> a b d | replicate b c"),
    ("triangular_solve right", lambda a, b: lax.linalg.triangular_solve(a, b, left_side=False), "4,6,6 4,8,6", "a b c, a d b -> a d b | replicate b c"),
    ("tridiagonal", lambda x: lax.linalg.tridiagonal_p.bind(x, lower=True), "4,6,6", "a b c -> a b c, a b, a d, a d | replicate b c d"),
    ("tridiagonal_solve", lambda d, b: lax.linalg.tridiagonal_solve(d, d, d, b), "4,6 4,6,8", "a b, a b, a b, a b c -> a b c | replicate b"),
    ("unstack", lambda x: lax.unstack(x, 1), "4,6", "a b -> a, a, a, a, a, a | replicate b"),
    ("xor", lax.bitwise_xor, "4,6:i32 4,6:i32", "a b, a b -> a b"),
    ("zeta", lax.zeta, "4 4", "a, a -> a"),
)
# fmt: on
