"""Small programs that put the compiler's partitioner to the test: every strategy of every op in them is compiled and run.

A case is a name (the primitive first), a function of arrays, and those arrays, written as in `rule_cases`: extents and a
type, and for integers the end of their range after `<`, or `perm` for integers none of which comes twice along the first
dim: `16,8:f32`, `16,1:i32<16`, `8:i32perm`. Extents are divisible by 8 wherever a rule may split them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.rules import rule_cases

TYPES: Mapping[str, Any] = {
    **rule_cases.DTYPES,
    "bf16": jnp.bfloat16,
    "f16": np.float16,
    "i16": np.int16,
    "i8": np.int8,
    "u16": np.uint16,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A function and what it takes: `shapes`, the `types` (names of `TYPES`), and the range of integers."""

    name: str
    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    types: tuple[str, ...]
    ends: tuple[int | str, ...]

    @property
    def kind(self) -> str:
        """The primitive it is about."""
        return self.name.split()[0]

    def structs(self) -> list[jax.ShapeDtypeStruct]:
        """Its arguments without values."""
        return [jax.ShapeDtypeStruct(shape, TYPES[dtype]) for shape, dtype in zip(self.shapes, self.types, strict=True)]

    def arguments(self) -> list[Any]:
        """Its arguments: floats of both signs, square matrices well-conditioned, integers within their range."""
        rng = np.random.default_rng(sum(map(ord, self.name)))
        return [_values(self, n, rng) for n in range(len(self.shapes))]


def _values(case: Case, position: int, rng: np.random.Generator) -> Any:
    shape, dtype, end = case.shapes[position], TYPES[case.types[position]], case.ends[position]
    if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        return jax.random.split(jax.random.key(0), shape)
    if end == "perm":
        whole = [rng.permutation(2 * shape[0])[: shape[0]] for _ in range(math.prod(shape[1:]))]
        return np.stack(whole, 1).reshape(shape).astype(dtype)
    if np.issubdtype(dtype, np.integer) or dtype == np.bool_:
        return rng.integers(0, 2 if dtype == np.bool_ else end, shape).astype(dtype)
    values = rng.uniform(0.1, 0.9, shape) if case.kind in POSITIVE else rng.normal(size=shape)
    if case.kind in MATRICES and len(shape) >= 2 and shape[-1] == shape[-2]:
        values = (values + np.swapaxes(values, -1, -2)) / 8 + shape[-1] * np.eye(shape[-1])
    if np.issubdtype(dtype, np.complexfloating):
        values = values + 1j * rng.normal(size=shape)
    return values.astype(dtype)


POSITIVE = frozenset(
    (
        *(
            "acosh",
            "acos",
            "asin",
            "atanh",
            "bessel_i0e",
            "bessel_i1e",
            "digamma",
            "erf_inv",
            "igamma",
            "igamma_grad_a",
        ),
        *("igammac", "lgamma", "log", "log1p", "log2", "polygamma", "pow", "random_gamma", "rng_uniform", "rsqrt"),
        *("regularized_incomplete_beta", "sqrt", "zeta"),
    )
)
"""Primitives that want floats within 0 and 1."""
MATRICES = frozenset(
    (
        *("cholesky", "cholesky_update", "eig", "eigh", "hessenberg", "lu", "schur", "svd", "symmetric_product"),
        *("triangular_solve", "tridiagonal"),
    )
)
"""Primitives that want well-conditioned matrices."""


def case(name: str, function: Callable[..., Any], arrays: str) -> Case:
    """A case from the text of its arrays."""
    shapes: list[tuple[int, ...]] = []
    types: list[str] = []
    ends: list[int | str] = []
    for word in arrays.split():
        extents, _, dtype = word.partition(":")
        shapes.append(tuple(int(extent) for extent in extents.strip("()").split(",") if extent))
        end: int | str = 3
        if dtype.endswith("perm"):
            dtype, end = dtype.removesuffix("perm"), "perm"
        elif "<" in dtype:
            dtype, last = dtype.split("<")
            end = int(last)
        types.append(dtype or "f32")
        ends.append(end)
    return Case(name=name, function=function, shapes=tuple(shapes), types=tuple(types), ends=tuple(ends))


# ---------------------------------------------------------------- convolutions

LAYOUTS = {
    1: (("NHC", "HIO", "NHC"), ("NCH", "OIH", "NCH")),
    2: (("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")),
    3: (("NDHWC", "DHWIO", "NDHWC"), ("NCDHW", "OIDHW", "NCDHW")),
}
FORMS: Mapping[str, tuple[int, Mapping[str, Any]]] = {
    "3": (3, {}),
    "3 stride 2": (3, {"window_strides": 2}),
    "3 dilated": (3, {"rhs_dilation": 2}),
    "4 transposed": (4, {"lhs_dilation": 2, "padding": (2, 2)}),
    "3 uneven padding": (3, {"padding": (0, 3)}),
    "2 patches": (2, {"window_strides": 2, "padding": "VALID"}),
    "1": (1, {}),
    "1 stride 2": (1, {"window_strides": 2}),
}
"""Name to (extent of the window, parameters for every space dim)."""


def _convolution(
    dims: int, layout: int, form: str, *, groups: int, channels: int = 16, batch_groups: int = 1
) -> tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...]]:
    """A convolution and the shapes of its operands."""
    window, params = FORMS[form]
    numbers = LAYOUTS[dims][layout]
    extents = {"N": 16 if batch_groups > 1 else 8, "C": channels, "O": channels, "I": channels // groups}
    lhs = tuple(extents.get(letter, 8) for letter in numbers[0])
    rhs = tuple(extents.get(letter, window) for letter in numbers[1])
    padding = params.get("padding", "SAME")
    keywords = {
        "window_strides": (params.get("window_strides", 1),) * dims,
        "padding": padding if isinstance(padding, str) else (padding,) * dims,
        "lhs_dilation": (params.get("lhs_dilation", 1),) * dims,
        "rhs_dilation": (params.get("rhs_dilation", 1),) * dims,
        "dimension_numbers": numbers,
        "feature_group_count": groups,
        "batch_group_count": batch_groups,
    }
    return (lambda x, k: lax.conv_general_dilated(x, k, **keywords)), lhs, rhs


def _with_gradients(name: str, function: Callable[..., Any], lhs: Sequence[int], rhs: Sequence[int]) -> Iterator[Case]:
    """A convolution, and the two convolutions that its gradients consist of, each alone."""
    x, k = jax.ShapeDtypeStruct(tuple(lhs), np.float32), jax.ShapeDtypeStruct(tuple(rhs), np.float32)
    yield _one(name, function, x, k)
    out = jax.eval_shape(function, x, k)
    for which, position in (("input gradient", 0), ("kernel gradient", 1)):

        def gradient(x: Any, k: Any, ct: Any, position: int = position) -> Any:
            return jax.vjp(function, x, k)[1](ct)[position]

        eqns = [e for e in jax.make_jaxpr(gradient)(x, k, out).jaxpr.eqns if e.primitive.name == "conv_general_dilated"]
        eqn = eqns[-1]
        alone = _bound(eqn)
        yield _one(f"{name} {which}", alone, *(v.aval for v in eqn.invars))


def _bound(eqn: Any) -> Callable[..., Any]:
    return lambda *operands: eqn.primitive.bind(*operands, **eqn.params)


def _one(name: str, function: Callable[..., Any], *avals: Any) -> Case:
    return Case(
        name=name,
        function=function,
        shapes=tuple(a.shape for a in avals),
        types=("f32",) * len(avals),
        ends=(3,) * len(avals),
    )


def convolutions() -> Iterator[Case]:
    """Convolutions of every form, group count, layout and number of dims that matters, with their gradients."""
    for form, groups in product(FORMS, (1, 2, 4, 8, 16)):
        function, lhs, rhs = _convolution(2, 0, form, groups=groups)
        yield from _with_gradients(f"conv_general_dilated {form} groups {groups}", function, lhs, rhs)
    for form, groups in product(("3", "3 stride 2", "2 patches"), (1, 2, 8, 16)):
        function, lhs, rhs = _convolution(1, 0, form, groups=groups)
        yield from _with_gradients(f"conv_general_dilated 1D {form} groups {groups}", function, lhs, rhs)
        function, lhs, rhs = _convolution(2, 1, form, groups=groups)
        yield from _with_gradients(f"conv_general_dilated NCHW {form} groups {groups}", function, lhs, rhs)
    for form, groups in product(("3", "3 stride 2"), (1, 4, 16)):
        function, lhs, rhs = _convolution(3, 0, form, groups=groups)
        yield from _with_gradients(f"conv_general_dilated 3D {form} groups {groups}", function, lhs, rhs)
    for groups in (1, 2, 8):
        function, lhs, rhs = _convolution(2, 0, "3", groups=groups, channels=64)
        yield from _with_gradients(f"conv_general_dilated wide groups {groups}", function, lhs, rhs)
    for form, groups in product(("3", "3 stride 2", "1"), (2, 4, 8, 16)):
        function, lhs, rhs = _convolution(2, 0, form, groups=1, batch_groups=groups)
        yield from _with_gradients(f"conv_general_dilated {form} batch groups {groups}", function, lhs, rhs)


# ---------------------------------------------------------------- everything else


def _dots() -> Iterator[Case]:
    for dtype in ("f32", "bf16", "i32", "c64"):
        yield case(
            f"dot_general batch {dtype}", lambda x, y: jnp.einsum("bik,bkj->bij", x, y), f"8,8,8:{dtype} 8,8,8:{dtype}"
        )
    for equation, arrays in (
        ("bik,bkj->bij", "8,8,8 8,8,8"),
        ("bik,bjk->bij", "8,8,8 8,8,8"),
        ("bki,bkj->ijb", "8,8,8 8,8,8"),
        ("bthd,bshd->bhts", "8,8,8,4 8,8,8,4"),
        ("bhts,bshd->bthd", "8,8,8,8 8,8,8,4"),
        ("abik,abkj->abij", "8,8,4,8 8,8,8,4"),
        ("ik,kj->ij", "16,16 16,16"),
        ("ki,jk->ij", "16,16 16,16"),
        ("ikl,klj->ij", "8,8,8 8,8,8"),
        ("ikl,lkj->ij", "8,8,8 8,8,8"),
        ("k,k->", "16 16"),
        ("i,j->ij", "16 16"),
        ("b,b->b", "16 16"),
        ("bk,bk->b", "16,16 16,16"),
        ("ik,k->i", "16,16 16"),
    ):
        yield case(f"dot_general {equation}", lambda x, y, e=equation: jnp.einsum(e, x, y), arrays)
    rows = lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), [0], [0])
    sums = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), [0], [])
    batch = lax.RaggedDotDimensionNumbers((((2,), (1,)), ((0,), (0,))), [0], [])
    for name, numbers, arrays in (
        ("rows", rows, "16,8 8,8,16 8:i32<4"),
        ("sum", sums, "16,8 16,16 8:i32<4"),
        ("batch", batch, "8,8,8 8,8,16 8:i32<2"),
    ):
        yield case(f"ragged_dot_general {name}", lambda x, y, g, n=numbers: lax.ragged_dot_general(x, y, g, n), arrays)


def _gathers() -> Iterator[Case]:
    for mode in ("fill", "clip", "promise_in_bounds"):
        end = 16 if mode == "promise_in_bounds" else 24
        yield case(f"gather rows {mode}", lambda x, i, m=mode: x.at[i].get(mode=m), f"16,8 8,8:i32<{end}")
        yield case(f"gather middle {mode}", lambda x, i, m=mode: x.at[:, i].get(mode=m), f"8,16,8 8:i32<{end}")
        yield case(
            f"gather elements {mode}", lambda x, i, j, m=mode: x.at[i, j].get(mode=m), f"16,16 8:i32<{end} 8:i32<{end}"
        )
        yield case(
            f"gather batched {mode}",
            lambda x, i, m=mode: jax.vmap(lambda v, n: v.at[n].get(mode=m))(x, i),
            f"8,16,8 8,8:i32<{end}",
        )
    yield case(
        "gather beyond both ends",
        lambda x, i: x.at[i - 8].get(mode="clip", wrap_negative_indices=False),
        "16,8 8:i32<32",
    )
    yield case(
        "gather beyond, filled", lambda x, i: x.at[i - 8].get(mode="fill", wrap_negative_indices=False), "16,8 8:i32<32"
    )
    yield case("gather along", lambda x, i: jnp.take_along_axis(x, i, axis=1), "8,16 8,8:i32<16")
    yield case("gather along rows", lambda x, i: jnp.take_along_axis(x, i, axis=0), "16,8,8 8,8,8:i32<16")
    yield case("gather along batches", lambda x, i: jnp.take_along_axis(x, i, axis=2), "8,8,16 8,8,8:i32<16")
    yield case("gather labels", lambda x, i: jnp.take_along_axis(x, i[..., None], axis=-1)[..., 0], "8,8,16 8,8:i32<16")
    yield case(
        "gather windows", lambda x, i: jax.vmap(lambda n: lax.dynamic_slice(x, (n, 0), (4, 16)))(i), "16,16 8:i32<20"
    )
    yield case(
        "gather windows of batches",
        lambda x, i: jax.vmap(lambda v, n: lax.dynamic_slice(v, (n, 0), (4, 8)))(x, i),
        "8,16,8 8:i32<20",
    )
    yield case("gather integers", lambda x, i: x[i], "16,8:i32<99 8:i32<16")
    yield case("gather booleans", lambda x, i: x[i], "16,8:b 8:i32<16")
    yield case("gather bf16", lambda x, i: x[i], "16,8:bf16 8:i32<16")
    yield case("gather small indices", lambda x, i: x[i], "16,8 8:u8<16")


def _scatters() -> Iterator[Case]:
    for method in ("set", "add", "multiply", "min", "max", "subtract", "divide"):
        kind = {
            "set": "scatter",
            "add": "scatter-add",
            "multiply": "scatter-mul",
            "divide": "scatter-mul",
            "subtract": "scatter-sub",
        }.get(method, f"scatter-{method}")

        def at(x: Any, i: Any, u: Any, method: str = method) -> Any:
            return getattr(x.at[i], method)(u)

        def middle(x: Any, i: Any, u: Any, method: str = method) -> Any:
            return getattr(x.at[:, i], method)(u)

        def elements(x: Any, i: Any, j: Any, u: Any, method: str = method) -> Any:
            return getattr(x.at[i, j], method)(u)

        def unique(x: Any, i: Any, u: Any, method: str = method) -> Any:
            return getattr(x.at[i], method)(u, unique_indices=True, mode="drop")

        once = "perm" if method == "set" else "<24"
        yield case(f"{kind} {method} rows", at, f"16,8 8:i32{once} 8,8")
        yield case(f"{kind} {method} middle", middle, f"8,16,8 8:i32{once} 8,8,8")
        yield case(f"{kind} {method} elements", elements, f"16,16 8:i32{once} 8:i32<16 8")
        yield case(f"{kind} {method} unique", unique, "16,8 8:i32perm 8,8")
        yield case(
            f"{kind} {method} batched",
            jax.vmap(at),
            f"8,16,8 8,8:i32{'<1' if method == 'set' else '<24'} 8,8,8"
            if method != "set"
            else "8,16,8 8,1:i32<16 8,1,8",
        )
        yield case(f"{kind} {method} one value", lambda x, i, f=at: f(x, i, 2.0), "16,8 8:i32perm")
        if method != "set":
            yield case(f"{kind} {method} embedding", at, "16,8 8,8:i32<16 8,8,8")
            yield case(f"{kind} {method} bf16", at, "16,8:bf16 8:i32perm 8,8:bf16")
    for method in ("set", "add", "min", "max", "multiply"):
        kind = {"set": "scatter", "multiply": "scatter-mul"}.get(method, f"scatter-{method}")

        def integers(x: Any, i: Any, u: Any, method: str = method) -> Any:
            return getattr(x.at[i], method)(u)

        yield case(f"{kind} {method} integers", integers, "16,8:i32<99 8:i32perm 8,8:i32<99")
    for mode in ("clip", "drop"):
        yield case(
            f"scatter {mode} beyond both ends",
            lambda x, i, u, m=mode: x.at[i * 40 - 8].set(u, mode=m, wrap_negative_indices=False),
            "16,8 1:i32<2 1,8",
        )
        yield case(
            f"scatter-add {mode} beyond both ends",
            lambda x, i, u, m=mode: x.at[i - 8].add(u, mode=m, wrap_negative_indices=False),
            "16,8 8:i32<32 8,8",
        )
        yield case(
            f"scatter-max {mode} beyond both ends, two dims",
            lambda x, i, j, u, m=mode: x.at[i - 8, j - 8].max(u, mode=m, wrap_negative_indices=False),
            "16,16 8:i32<32 8:i32<32 8",
        )
    yield case(
        "scatter of windows vmapped",
        jax.vmap(lambda c, n, v: lax.dynamic_update_slice(c, v, (n - 4, 0))),
        "8,16,8 8:i32<24 8,1,8",
    )
    yield case(
        "gather of windows vmapped", jax.vmap(lambda c, n: lax.dynamic_slice(c, (n - 4, 0), (1, 8))), "8,16,8 8:i32<24"
    )
    yield case("scatter-add kv cache", jax.vmap(lambda c, n, v: c.at[n].add(v)), "8,16,8 8:i32<16 8,8")
    yield case("scatter kv cache", jax.vmap(lambda c, n, v: c.at[n].set(v)), "8,16,8 8:i32<16 8,8")
    numbers = lax.ScatterDimensionNumbers((1, 2), (), (0,))
    yield case("scatter-add windows", lambda x, i, u: lax.scatter_add(x, i, u, numbers), "16,8 8,1:i32<14 8,2,8")
    yield case(
        "scatter-add gradient of along",
        lambda x, i, g: jax.vjp(lambda x: jnp.take_along_axis(x, i, axis=1), x)[1](g)[0],
        "8,16 8,8:i32<16 8,8",
    )
    yield case(
        "scatter_apply",
        lambda x, i: lax.scatter_apply(
            x, i, jnp.sin, lax.ScatterDimensionNumbers((1,), (0,), (0,)), update_shape=(8, 8)
        ),
        "16,8 8,1:i32perm",
    )


def _slices() -> Iterator[Case]:
    for sizes in ((16, 4), (4, 16), (1, 16), (16, 1), (4, 4)):
        yield case(
            f"dynamic_slice {sizes}",
            lambda x, i, j, s=sizes: lax.dynamic_slice(x, (i, j), s),
            "16,16 ():i32<9 ():i32<9",
        )
        yield case(
            f"dynamic_update_slice {sizes}",
            lambda x, u, i, j: lax.dynamic_update_slice(x, u, (i, j)),
            f"16,16 {sizes[0]},{sizes[1]} ():i32<9 ():i32<9",
        )
    yield case(
        "dynamic_update_slice cache",
        lambda x, u, i: lax.dynamic_update_slice(x, u, (0, i, 0, 0)),
        "8,16,8,8 8,1,8,8 ():i32<16",
    )
    yield case(
        "dynamic_update_slice row", lambda x, u, i: lax.dynamic_update_slice(x, u, (i, 0, 0)), "8,8,8 1,8,8 ():i32<8"
    )
    yield case("dynamic_slice row", lambda x, i: lax.dynamic_slice(x, (i, 0, 0), (1, 8, 8)), "8,8,8 ():i32<8")
    yield case("dynamic_slice one of rows", lambda x, i: lax.dynamic_slice(x, (i - 4, 0), (1, 8)), "16,8 ():i32<24")
    yield case("dynamic_slice whole", lambda x, i: lax.dynamic_slice(x, (i, i), (16, 8)), "16,8 ():i32<8")
    for name, arguments in (
        ("part", ((0, 0), (16, 8), (1, 1))),
        ("strided", ((0, 0), (16, 16), (2, 1))),
        ("middle", ((4, 0), (12, 16), (1, 1))),
    ):
        yield case(f"slice {name}", lambda x, a=arguments: lax.slice(x, *a), "16,16")
    for name, config in (
        ("edges", ((1, 2, 0), (0, 0, 0))),
        ("inside", ((0, 0, 1), (0, 0, 0))),
        ("negative", ((-4, -4, 0), (0, 0, 0))),
        ("to a multiple", ((0, 16, 0), (0, 0, 0))),
    ):
        yield case(f"pad {name}", lambda x, v, c=config: lax.pad(x, v, c), "16,16 ()")
    yield case("concatenate", lambda x, y: lax.concatenate([x, y], 1), "16,8 16,16")
    yield case("concatenate three", lambda x, y, z: lax.concatenate([x, y, z], 0), "8,16 8,16 16,16")
    yield case("concatenate twice the same", lambda x: lax.concatenate([x, x], 0), "8,16")
    yield case("rev", lambda x: lax.rev(x, (0,)), "16,8,8")
    yield case("roll", lambda x: jnp.roll(x, 3, 0), "16,8")
    yield case("split", lambda x: lax.split(x, (8, 8), 0), "16,16")
    yield case("broadcast_in_dim", lambda x: lax.broadcast_in_dim(x, (8, 16, 8), (1,)), "16")
    yield case("transpose", lambda x: lax.transpose(x, (2, 0, 1)), "8,16,8")
    yield case("reshape merge", lambda x: lax.reshape(x, (128,)), "8,16")
    yield case("reshape merge of three", lambda x: lax.reshape(x, (8, 64)), "8,4,2,8")
    yield case("reshape split", lambda x: lax.reshape(x, (8, 2, 8, 8)), "16,64")
    yield case("reshape regroup", lambda x: lax.reshape(x, (16, 32)), "64,8")
    yield case("reshape reordered", lambda x: lax.reshape(x, (128,), (1, 0)), "8,16")
    yield case("tile", lambda x: jnp.tile(x, (2, 1)), "16,8")
    yield case("repeat", lambda x: jnp.repeat(x, 2, 0), "16,8")


def _reductions() -> Iterator[Case]:
    for dtype in ("f32", "bf16", "i32", "b"):
        for name, function in (
            ("sum", lambda x: jnp.sum(x, (0,))),
            ("max", lambda x: jnp.max(x, (1,))),
            ("min", lambda x: jnp.min(x, (0, 2))),
            ("prod", lambda x: jnp.prod(x, (1,))),
        ):
            if dtype != "b" or name in ("max", "min"):
                kind = {"max": "or", "min": "and"}[name] if dtype == "b" else name
                yield case(f"reduce_{kind} {dtype}", function, f"8,8,8:{dtype}")
    for name, function in (
        ("reduce add", lambda x: lax.reduce(x, np.float32(0), lax.add, (0,))),
        ("reduce add 3", lambda x: lax.reduce(x, np.float32(3), lax.add, (0,))),
        ("reduce mul 2", lambda x: lax.reduce(x, np.float32(2), lax.mul, (0,))),
        ("reduce max 0", lambda x: lax.reduce(x, np.float32(0), lax.max, (0,))),
        ("reduce min 0", lambda x: lax.reduce(x, np.float32(0), lax.min, (0,))),
        ("reduce given", lambda x, v: lax.reduce(x, v, lax.add, (0,))),
        ("argmax", lambda x: lax.argmax(x, 1, np.int32)),
        ("argmin", lambda x: lax.argmin(x, 0, np.int32)),
        ("argmax of ties", lambda x: lax.argmax(jnp.round(x), 1, np.int32)),
        ("reduce_window_max", lambda x: lax.reduce_window(x, -np.inf, lax.max, (1, 2), (1, 2), "VALID")),
        ("reduce_window_sum", lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 3), (1, 1), "SAME")),
        ("reduce_window_min", lambda x: lax.reduce_window(x, np.inf, lax.min, (1, 3), (1, 2), "SAME")),
        ("reduce_window 1", lambda x: lax.reduce_window(x, 1.0, lax.add, (1, 3), (1, 1), "SAME")),
        ("cumsum", lambda x: lax.cumsum(x, 1)),
        ("cumsum reverse", lambda x: lax.cumsum(x, 0, reverse=True)),
        ("cumprod", lambda x: lax.cumprod(x, 1)),
        ("cummax", lambda x: lax.cummax(x, 1)),
        ("cumlogsumexp", lambda x: lax.cumlogsumexp(x, 0)),
        ("sort", lambda x: lax.sort(x, dimension=0)),
        ("sort pairs", lambda x: lax.sort((x, -x, x + 1), dimension=1, num_keys=1)),
        ("sort arg", lambda x: jnp.argsort(x, axis=1)),
        ("top_k", lambda x: lax.top_k(x, 4)),
        ("approx_top_k", lambda x: lax.approx_max_k(x, 4)),
        ("softmax", lambda x: jax.nn.softmax(x, axis=1)),
        ("logsumexp", lambda x: jax.nn.logsumexp(x, axis=0)),
        ("var", lambda x: jnp.var(x, axis=1)),
    ):
        yield case(name, function, "16,16 ()" if name == "reduce given" else "16,16")
    for window, strides, padding in (((1, 2, 2, 1), (1, 2, 2, 1), "VALID"), ((1, 3, 3, 1), (1, 2, 2, 1), "SAME")):

        def pool(x: Any, w: Any = window, s: Any = strides, p: Any = padding) -> Any:
            return lax.reduce_window(x, -np.inf, lax.max, w, s, p)

        def mean(x: Any, w: Any = window, s: Any = strides, p: Any = padding) -> Any:
            return lax.reduce_window(x, 0.0, lax.add, w, s, p)

        yield case(f"reduce_window_max pool {padding}", pool, "8,8,8,8")
        yield case(f"reduce_window_sum pool {padding}", mean, "8,8,8,8")
        yield case(f"select_and_scatter_add {padding}", lambda x, g, f=pool: jax.vjp(f, x)[1](g)[0], "8,8,8,8 8,4,4,8")
        yield case(
            f"reduce_window_sum gradient {padding}", lambda x, g, f=mean: jax.vjp(f, x)[1](g)[0], "8,8,8,8 8,4,4,8"
        )
        yield case(f"select_and_gather_add {padding}", lambda x, t, f=pool: jax.jvp(f, (x,), (t,)), "8,8,8,8 8,8,8,8")


def _matrices() -> Iterator[Case]:
    for name, function in (
        ("cholesky", lambda x: lax.linalg.cholesky(x)),
        ("lu", lambda x: lax.linalg.lu(x)),
        ("qr", lambda x: jnp.linalg.qr(x)),
        ("eigh", lambda x: jnp.linalg.eigh(x)),
        ("svd", lambda x: jnp.linalg.svd(x)),
        ("svd values", lambda x: jnp.linalg.svd(x, compute_uv=False)),
        ("eig values", lambda x: jnp.linalg.eigvals(x)),
        ("inv", lambda x: jnp.linalg.inv(x)),
        ("det", lambda x: jnp.linalg.slogdet(x)),
        ("cholesky gradient", jax.grad(lambda x: jnp.sum(jnp.linalg.cholesky(x)))),
        ("eigh gradient", jax.grad(lambda x: jnp.sum(jnp.linalg.eigvalsh(x) ** 2))),
    ):
        yield case(name if name not in ("inv", "det") else f"lu {name}", function, "8,4,4")
    for left, lower, transpose in product((True, False), (True, False), (True, False)):
        yield case(
            f"triangular_solve {left} {lower} {transpose}",
            lambda a, b, k=(left, lower, transpose): lax.linalg.triangular_solve(
                a, b, left_side=k[0], lower=k[1], transpose_a=k[2]
            ),
            "8,8,8 8,8,8",
        )
    yield case("lu solve", jnp.linalg.solve, "8,8,8 8,8,8")
    yield case(
        "tridiagonal_solve",
        lambda a, b, c, x: lax.linalg.tridiagonal_solve(a / 9, b + 9, c / 9, x),
        "8,16 8,16 8,16 8,16,8",
    )
    for name, function, dtype in (
        ("FFT", lambda x: lax.fft(x, "FFT", (8,)), "c64"),
        ("IFFT", lambda x: lax.fft(x, "IFFT", (8, 8)), "c64"),
        ("RFFT", lambda x: lax.fft(x, "RFFT", (8,)), "f32"),
        ("IRFFT", lambda x: lax.fft(x, "IRFFT", (14,)), "c64"),
    ):
        yield case(f"fft {name}", function, f"8,8,8:{dtype}")


def _random() -> Iterator[Case]:
    for name, function in (
        ("bits", lambda k: jax.random.bits(k, (16, 8))),
        ("normal", lambda k: jax.random.normal(k, (16, 8))),
        ("odd", lambda k: jax.random.uniform(k, (3, 8))),
        ("bits of a byte", lambda k: jax.random.bits(k, (16, 8), np.uint8)),
        ("split", lambda k: jax.random.key_data(jax.random.split(k, (16, 8)))),
        ("permutation", lambda k: jax.random.permutation(k, 16)),
        ("categorical", lambda k: jax.random.categorical(k, jnp.zeros((16, 8)))),
        ("gamma", lambda k: jax.random.gamma(k, 2.0, (16, 8))),
        ("bernoulli", lambda k: jax.random.bernoulli(k, 0.3, (16, 8))),
    ):
        yield case(f"random_bits {name}", function, "():key")
    yield case("random_bits of keys", jax.vmap(lambda k: jax.random.bits(k, (8,))), "16:key")
    yield case("rng_bit_generator", lambda k: lax.rng_bit_generator(k, (16, 8)), "4:u32<99")
    yield case("iota", lambda x: x + lax.broadcasted_iota(np.float32, (16, 8), 0), "16,8")


def _programs() -> Iterator[Case]:
    """Short programs in which ops meet, mostly the gradients of what users write."""
    conv = rule_cases.conv

    def loss(x: Any, k: Any) -> Any:
        return jnp.sum(jax.nn.relu(conv(x, k)) ** 2)

    def two(x: Any, k: Any, w: Any) -> Any:
        return jnp.sum(conv(jax.nn.relu(conv(x, k)), w, stride=(2, 2)) ** 2)

    def separable(x: Any, k: Any, w: Any) -> Any:
        return jnp.sum(conv(conv(x, k, feature_group_count=16), w) ** 2)

    def attention(q: Any, k: Any, v: Any) -> Any:
        weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
        return jnp.sum(jnp.einsum("bhqk,bkhd->bqhd", weights, v) ** 2)

    def embedding(table: Any, i: Any, w: Any) -> Any:
        logits = table[i] @ w @ table.T
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), i[..., None], axis=-1))

    def experts(x: Any, g: Any, w: Any) -> Any:
        routes = jax.nn.one_hot(jnp.argmax(g, -1), 8)
        return jnp.sum(jnp.einsum("te,td,edf->tf", routes, x, w) ** 2)

    yield case("program conv", jax.grad(loss, argnums=(0, 1)), "8,8,8,16 3,3,16,16")
    yield case("program two convs", jax.grad(two, argnums=(0, 1, 2)), "8,8,8,8 3,3,8,16 3,3,16,8")
    yield case("program separable conv", jax.grad(separable, argnums=(0, 1, 2)), "8,8,8,16 3,3,1,16 1,1,16,16")
    yield case("program attention", jax.grad(attention, argnums=(0, 1, 2)), "8,8,8,4 8,8,8,4 8,8,8,4")
    yield case("program embedding", jax.grad(embedding, argnums=(0, 2)), "16,8 8,8:i32<16 8,8")
    yield case("program experts", jax.grad(experts, argnums=(0, 2)), "16,8 16,8 8,8,16")
    yield case("program scatter of gather", lambda x, i: x.at[i].add(x[i] * 2), "16,8 8:i32<16")
    yield case("program sort of gather", lambda x, i: jnp.sort(x[i], axis=0), "16,8 8:i32<16")
    yield case(
        "program batch norm",
        jax.grad(lambda x: jnp.sum(((x - x.mean((0, 1))) / jnp.sqrt(x.var((0, 1)) + 1)) ** 3)),
        "8,8,8",
    )


FIXED = ("conv", "fft", "reduce_window", "rng_bit_generator", "select_and")
"""Primitives whose extents must stay as they are: parameters go with them, or windows would grow."""


def _of_rules() -> Iterator[Case]:
    """The cases of the rules, with extents four times as large where the function takes them."""
    for name, function, arrays, _ in rule_cases.CASES:
        if name.split()[0] in ("sharding_constraint", "device_put", "empty", "rng_uniform"):
            continue  # names devices, or returns what is not defined
        if rule_cases.equation(name, function, arrays) is None:
            continue  # this JAX has no such primitive
        small = case(f"{name} of rules", function, arrays)
        large = Case(
            name=small.name,
            function=function,
            shapes=tuple(tuple(e * 4 if e > 1 else e for e in shape) for shape in small.shapes),
            types=small.types,
            ends=small.ends,
        )
        yield large if not small.kind.startswith(FIXED) and _traces(large) else small


def _traces(found: Case) -> bool:
    try:
        jax.eval_shape(found.function, *found.structs())
    except Exception:
        return False
    return True


def all_cases() -> dict[str, Case]:
    """Every case by name; raises where two have one name."""
    makers = (_dots, _gathers, _scatters, _slices, _reductions, _matrices, _random, _programs, convolutions, _of_rules)
    found: dict[str, Case] = {}
    for maker in makers:
        for one in maker():
            if one.name in found:
                raise LookupError(f"two cases are called {one.name!r}")
            found[one.name] = one
    return found
