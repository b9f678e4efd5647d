"""Floating-point operations: against XLA's own count, and against formulas."""

import sys
from collections.abc import Callable
from enum import Enum
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import pytest
from jax import lax

from cost_models import engine, flops, is_known
from cost_models.primitives import PRIMITIVES


def counted(fn: Callable[..., Any], *shapes: tuple[int, ...]) -> tuple[float, set[str]]:
    """The flops of a function without loops, summed over its equations, and the kinds of these."""
    traced = jax.make_jaxpr(fn)(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes))
    total, kinds, pending = 0.0, set[str](), [traced.jaxpr]
    while pending:
        for eqn in pending.pop().eqns:
            if eqn.primitive.name == "jit":
                pending.append(eqn.params["jaxpr"].jaxpr)
                continue
            operands = [v.aval.shape for v in eqn.invars]  # type: ignore[union-attr]
            results = [v.aval.shape for v in eqn.outvars]  # type: ignore[union-attr]
            total += flops(eqn.primitive.name, operands, results, eqn.params)
            kinds.add(eqn.primitive.name)
    return total, kinds


def by_xla(fn: Callable[..., Any], *shapes: tuple[int, ...]) -> float:
    cost = jax.jit(fn).lower(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)).cost_analysis()
    assert cost is not None
    return cost.get("flops", 0.0) + cost.get("transcendentals", 0.0)


def conv(**options: Any) -> Callable[..., Any]:
    settings: dict[str, Any] = {"window_strides": (1, 1), "padding": "SAME", **options}
    return lambda x, k: lax.conv_general_dilated(x, k, dimension_numbers=("NHWC", "HWIO", "NHWC"), **settings)


CASES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "batched dot": (lambda a, b: jnp.einsum("bmk,bkn->bmn", a, b), ((3, 8, 16), (3, 16, 32))),
    "convolution, dilated input": (conv(lhs_dilation=(2, 2), padding=((2, 1), (0, 2))), ((2, 9, 9, 3), (3, 3, 3, 5))),
    "convolution, dilated kernel": (conv(rhs_dilation=(2, 3)), ((2, 16, 16, 3), (3, 3, 3, 5))),
    "convolution, grouped": (conv(feature_group_count=4), ((2, 8, 8, 8), (3, 3, 2, 12))),
    "convolution, padded": (conv(), ((2, 8, 8, 3), (5, 3, 3, 4))),
    "convolution, strided": (conv(window_strides=(2, 2), padding=((1, 1), (0, 2))), ((2, 9, 9, 3), (3, 3, 3, 4))),
    "dot": (lambda a, b: a @ b, ((8, 16), (16, 4))),
    "multiply": (lambda a, b: a * b, ((8, 16), (8, 16))),
    "sum": (lambda a: lax.reduce_sum_p.bind(a, axes=(1,), out_sharding=None), ((64, 128),)),
    "tanh": (lambda a: lax.tanh(a), ((8, 16),)),
}


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_xla(name: str) -> None:
    fn, shapes = CASES[name]
    assert counted(fn, *shapes)[0] == pytest.approx(by_xla(fn, *shapes), rel=0.02)


def test_the_gradients_of_a_convolution_agree_with_xla() -> None:
    fn = conv(window_strides=(2, 2))
    shapes = ((2, 12, 12, 3), (3, 3, 3, 4))
    ones = tuple(map(jnp.ones, shapes))
    for linear, primal in ((lambda x: fn(x, ones[1]), ones[0]), (lambda k: fn(ones[0], k), ones[1])):
        gradient = jax.linear_transpose(linear, primal)
        total, kinds = counted(gradient, (2, 6, 6, 4))
        assert kinds >= {"conv_general_dilated"}
        assert total == pytest.approx(by_xla(gradient, (2, 6, 6, 4)), rel=0.02)


@pytest.mark.parametrize(
    ("fn", "shapes", "expected"),
    [
        (lambda a: lax.fft(lax.complex(a, a), lax.FftType.FFT, (64,)), ((4, 64),), 4 * 5 * 64 * 6 + 4 * 64),
        (lambda a: lax.fft(a, lax.FftType.RFFT, (64,)), ((4, 64),), 4 * 2.5 * 64 * 6),
        (lambda a: lax.linalg.lu(a), ((6, 6),), 2 * 6**3 / 3),
        (lambda a: lax.sort(a, dimension=0), ((8, 3),), 8 * 3 * 3),
        (lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True), ((6, 6), (6, 4)), 6 * 6 * 4),
        (lambda a: lax.cumsum(a), ((8, 3),), 24),
        (lambda a: lax.integer_pow(a, 3), ((10,),), 20),
        (lambda a: lax.integer_pow(a, -1), ((10,),), 10),
        (lambda a: lax.reshape(a, (24,)), ((8, 3),), 0),
        (lambda a: lax.top_k(a, 4)[0], ((2, 16),), 64),
    ],
)
def test_formulas(fn: Callable[..., Any], shapes: tuple[tuple[int, ...], ...], expected: float) -> None:
    assert counted(fn, *shapes)[0] == pytest.approx(expected)


def test_factorizations() -> None:
    square = [(5, 6, 6)]
    assert flops("cholesky", square, square, {}) == pytest.approx(5 * 6**3 / 3)
    assert flops("geqrf", square, square, {}) == pytest.approx(5 * 4 * 6**3 / 3)
    assert flops("eigh", square, square, {}) == 5 * 9 * 6**3
    whole = flops("svd", square, square, {"compute_uv": True, "full_matrices": True})
    thin = flops("svd", square, square, {"compute_uv": True, "full_matrices": False})
    values = flops("svd", square, square, {"compute_uv": False})
    assert whole > thin > values > 0


def test_a_ragged_dot_multiplies_every_row_once() -> None:
    sizes = jnp.array([3, 5], jnp.int32)
    total, kinds = counted(lambda a, b: lax.ragged_dot(a, b, sizes), (8, 16), (2, 16, 4))
    assert kinds & {"ragged_dot", "ragged_dot_general"}
    assert total == 2 * 8 * 16 * 4


def test_attention_is_two_matmuls_forward_and_five_backward() -> None:
    shapes = [(2, 128, 4, 64), (2, 256, 4, 64), (2, 256, 4, 64)]
    forward = flops("dot_product_attention_fwd_wrapper", shapes, [(2, 128, 4, 64)], {"layout": 0})
    assert forward == 2 * (2 * 2 * 4 * 128 * 256 * 64)
    assert flops("dot_product_attention_bwd_wrapper", shapes, [(2, 128, 4, 64)], {"layout": 0}) == 2.5 * forward


@pytest.mark.parametrize("mask", ["CAUSAL", "PADDING_CAUSAL"])
def test_a_causal_mask_leaves_half_of_the_scores(mask: str) -> None:
    shapes, mask_type = [(2, 128, 4, 64)] * 3, Enum("MaskType", ["NO_MASK", mask])
    whole, half = (
        flops("dot_product_attention_fwd_wrapper", shapes, shapes[:1], {"layout": 0, "mask_type": mask_type[name]})
        for name in ("NO_MASK", mask)
    )
    assert half == whole / 2


def test_an_unknown_primitive_counts_its_result_and_says_so() -> None:
    assert not is_known("nonbatchable")
    assert flops("nonbatchable", [(3,)], [(4, 5)], {}) == 20
    assert flops("nonbatchable", [], [], {}) == 0
    assert engine("nonbatchable") == "vector"


def test_a_polynomial_takes_two_operations_for_every_coefficient_but_the_first() -> None:
    assert flops("polynomial", [(4, 5), (), (), ()], [(4, 5)], {}) == 4 * 20


def test_the_table_is_sorted() -> None:
    assert list(PRIMITIVES) == sorted(PRIMITIVES)


def test_what_moves_data_computes_nothing() -> None:
    assert flops("transpose", [(3, 4)], [(4, 3)], {}) == 0


def test_what_runs_on_the_matrix_unit_has_a_formula() -> None:
    matrix = {kind for kind, work in PRIMITIVES.items() if work.engine == "matrix"}
    assert {"dot_general", "conv_general_dilated"} < matrix
    assert all(callable(PRIMITIVES[kind].flops) for kind in matrix)


def test_the_common_primitives_of_jax_are_known() -> None:
    # Those of Pallas run within kernels.
    names = [name for name in sys.modules if name.split(".")[0] == "jax" and "pallas" not in name]
    modules = [sys.modules[name] for name in names]
    found = {o.name for module in modules for o in vars(module).values() if isinstance(o, jex.Primitive)}
    assert {"dot_general", "reduce_sum", "cumsum", "argmax"} <= found
    prefixes = ("reduce_", "cum", "conv", "dot", "scatter", "arg", "select_n", "sort", "fft", "exp", "log")
    missing = {n for n in found if n.startswith(prefixes) and not is_known(n)}
    starts = {n for n in missing if n.endswith(("_start", "_done")) or n.startswith(("log_", "dot_product_attention"))}
    assert missing - starts == set()
