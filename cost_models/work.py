"""Work: the floating-point operations of a JAX primitive, from its shapes and params alone.

Additions, multiplications, comparisons, conversions and transcendental functions each count as one operation, as in
XLA's HLO cost analysis (which lists transcendentals apart); a fused multiply-add counts as two. Moving data counts as
none.
Linear algebra follows Golub & Van Loan, Matrix Computations, 4th ed. (sections 3.2, 4.2, 5.2, 5.4, 7.5, 8.3, 8.6).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from cost_models.hardware import Engine
from cost_models.primitives import ELEMENTWISE, MOVES, SPECIAL

Shape = tuple[int, ...]
Shapes = Sequence[Shape]
Params = Mapping[str, Any]
Formula = Callable[[Shapes, Shapes, Params], float]

MATRIX_KINDS = frozenset(
    {
        "conv_general_dilated",
        "dot_general",
        "dot_product_attention_bwd_wrapper",
        "dot_product_attention_fwd_wrapper",
        "ragged_dot",
        "ragged_dot_general",
        "scaled_dot",
        "scaled_matmul_wrapper",
    }
)
"""The primitives that matrix units run; factorizations are bound by their panels, and count as vector work."""

THREEFRY_FLOPS = 60.0
"""Integer operations per 32-bit word: 20 rounds of add, rotate (3) and xor on two words plus key injections (Salmon et
al. 2011, https://doi.org/10.1145/2063384.2063405)."""


def flops(kind: str, operand_shapes: Shapes, result_shapes: Shapes, params: Params) -> float:
    """The floating-point operations of one run of a primitive on whole arrays.

    Parameters: `kind`, the primitive's name; `params`, the equation's params, of which only dimension numbers, axes and
    sizes are read. An unknown primitive counts one operation per result element; `is_known` tells.
    """
    if kind in MOVES:
        return 0.0
    if kind in FORMULAS:
        return FORMULAS[kind](operand_shapes, result_shapes, params)
    return SPECIAL.get(kind, 1.0) * _elements(result_shapes)


def is_known(kind: str) -> bool:
    """True where `flops` has a figure of its own for the primitive."""
    return kind in ELEMENTWISE or kind in MOVES or kind in SPECIAL or kind in FORMULAS


def engine(kind: str) -> Engine:
    """The unit that runs a primitive: "matrix" or "vector"."""
    return "matrix" if kind in MATRIX_KINDS else "vector"


def _elements(shapes: Shapes) -> float:
    return float(max((math.prod(shape) for shape in shapes), default=0))


def _dot_general(operands: Shapes, results: Shapes, params: Params) -> float:
    """2 b m n k: every result element is a sum of k products."""
    (contracted, _), _ = params["dimension_numbers"]
    return 2.0 * math.prod(results[0]) * math.prod(operands[0][d] for d in contracted)


def _convolution(operands: Shapes, results: Shapes, params: Params) -> float:
    """2 per pair of result element and kernel element that meet real input, not padding or the holes of dilation.

    A result feature sees the input features of its group only, which is the kernel's input feature dim.
    """
    image, kernel, out = operands[0], operands[1], results[0]
    numbers = params["dimension_numbers"]
    image_dims, kernel_dims, out_dims = numbers.lhs_spec[2:], numbers.rhs_spec[2:], numbers.out_spec[2:]
    count = len(out_dims)
    ones = (1,) * count
    strides = params.get("window_strides") or ones
    image_dilation = params.get("lhs_dilation") or ones
    kernel_dilation = params.get("rhs_dilation") or ones
    padding = params.get("padding") or ((0, 0),) * count
    pairs = 1.0
    for i in range(count):
        pairs *= _valid_pairs(
            image[image_dims[i]],
            kernel[kernel_dims[i]],
            out[out_dims[i]],
            strides[i],
            image_dilation[i],
            kernel_dilation[i],
            padding[i][0],
        )
    features = out[numbers.out_spec[1]] * kernel[numbers.rhs_spec[1]]
    return 2.0 * out[numbers.out_spec[0]] * features * pairs


def _valid_pairs(
    image: int, window: int, out: int, stride: int, image_dilation: int, window_dilation: int, low_padding: int
) -> float:
    """The pairs of result position and window position, along one dim, that land on an input element."""
    starts = np.arange(out)[:, None] * stride - low_padding
    landed = starts + np.arange(window)[None, :] * window_dilation
    inside = (landed >= 0) & (landed <= (image - 1) * image_dilation) & (landed % image_dilation == 0)
    return float(np.count_nonzero(inside))


def _ragged_dot(operands: Shapes, results: Shapes, params: Params) -> float:
    """2 times the left operand's elements times the right one's free dims: a row meets one group only."""
    numbers = params.get("ragged_dot_dimension_numbers")
    left, right = operands[0], operands[1]
    if numbers is None:
        return 2.0 * math.prod(left) * right[-1]
    (_, contracted), (_, batch) = numbers.dot_dimension_numbers
    bound = {*contracted, *batch, *numbers.rhs_group_dimensions}
    return 2.0 * math.prod(left) * math.prod(size for d, size in enumerate(right) if d not in bound)


def _scaled_matmul(operands: Shapes, results: Shapes, params: Params) -> float:
    """2 b m n k of a (b, m, k) times b (b, n, k), scales aside."""
    return 2.0 * math.prod(results[0]) * operands[0][-1]


def _attention(operands: Shapes, results: Shapes, params: Params) -> float:
    """2 matmuls of queries (b, t, n, h), or (b, n, t, h) in layout 1, with keys and values of length s: 4 b t n h s."""
    return 4.0 * math.prod(operands[0]) * operands[1][2 if params.get("layout") == 1 else 1]


def _attention_backward(operands: Shapes, results: Shapes, params: Params) -> float:
    """5 matmuls instead of 2 (Dao et al. 2022, https://arxiv.org/abs/2205.14135)."""
    return 2.5 * _attention(operands, results, params)


def _fft(operands: Shapes, results: Shapes, params: Params) -> float:
    """5 n log2 n per complex transform (Cooley & Tukey 1965), half of it where one side is real, the other short."""
    lengths = tuple(params["fft_lengths"])
    size = math.prod(lengths)
    widest = max(operands[0], results[0], key=math.prod)
    batch = math.prod(widest[: len(widest) - len(lengths)])
    real = operands[0] != results[0]
    return (2.5 if real else 5.0) * batch * size * math.log2(max(size, 2))


def _matrices(shape: Shape) -> tuple[int, int, int]:
    """Batch, rows and columns of an array of matrices."""
    return math.prod(shape[:-2]), shape[-2], shape[-1]


def _cholesky(operands: Shapes, results: Shapes, params: Params) -> float:
    batch, n, _ = _matrices(operands[0])
    return batch * n**3 / 3


def _triangular_solve(operands: Shapes, results: Shapes, params: Params) -> float:
    batch, rows, columns = _matrices(operands[1])
    n = operands[0][-1]
    return float(batch * n * n * (columns if params.get("left_side", True) else rows))


def _lu(operands: Shapes, results: Shapes, params: Params) -> float:
    batch, m, n = _matrices(operands[0])
    k = min(m, n)
    return batch * 2.0 * (m * n * k - (m + n) * k * k / 2 + k**3 / 3)


def _householder(operands: Shapes, results: Shapes, params: Params) -> float:
    """2 n^2 (m - n/3) for a QR factorization, and again to form its Q."""
    batch, m, n = _matrices(operands[0])
    m, n = max(m, n), min(m, n)
    return batch * 2.0 * n * n * (m - n / 3)


def _qr(operands: Shapes, results: Shapes, params: Params) -> float:
    return 2 * _householder(operands, results, params)


def _eigh(operands: Shapes, results: Shapes, params: Params) -> float:
    batch, n, _ = _matrices(operands[0])
    return batch * 9.0 * n**3


def _eig(operands: Shapes, results: Shapes, params: Params) -> float:
    batch, n, _ = _matrices(operands[0])
    return batch * 25.0 * n**3


def _svd(operands: Shapes, results: Shapes, params: Params) -> float:
    batch, m, n = _matrices(operands[0])
    m, n = max(m, n), min(m, n)
    if params.get("compute_uv", True):
        return batch * (4.0 * m * m * n + 22.0 * n**3 if params.get("full_matrices") else 14.0 * m * n * n + 8.0 * n**3)
    return batch * (4.0 * m * n * n - 4.0 * n**3 / 3)


def _hessenberg(operands: Shapes, results: Shapes, params: Params) -> float:
    batch, n, _ = _matrices(operands[0])
    return batch * 10.0 * n**3 / 3


def _tridiagonal(operands: Shapes, results: Shapes, params: Params) -> float:
    batch, n, _ = _matrices(operands[0])
    return batch * 4.0 * n**3 / 3


def _tridiagonal_solve(operands: Shapes, results: Shapes, params: Params) -> float:
    return 8.0 * math.prod(operands[-1])


def _sort(operands: Shapes, results: Shapes, params: Params) -> float:
    n = operands[0][params.get("dimension", -1)] if operands[0] else 1
    return math.prod(operands[0]) * math.log2(max(n, 2))


def _top_k(operands: Shapes, results: Shapes, params: Params) -> float:
    return math.prod(operands[0]) * math.log2(max(int(params.get("k", results[0][-1])), 2))


def _reduction(operands: Shapes, results: Shapes, params: Params) -> float:
    return _elements(operands)


def _reduce_window(operands: Shapes, results: Shapes, params: Params) -> float:
    return _elements(results) * math.prod(params["window_dimensions"])


def _integer_pow(operands: Shapes, results: Shapes, params: Params) -> float:
    exponent = abs(int(params.get("y", 2)))
    return _elements(results) * max(exponent.bit_length() - 1 + exponent.bit_count() - 1 + (params.get("y", 2) < 0), 1)


def _random_bits(operands: Shapes, results: Shapes, params: Params) -> float:
    return THREEFRY_FLOPS * _elements(results)


def _scatter_update(operands: Shapes, results: Shapes, params: Params) -> float:
    """One per element of the updates, the third operand."""
    return float(math.prod(operands[-1]))


FORMULAS: Mapping[str, Formula] = MappingProxyType(
    {
        "approx_top_k": _reduction,
        "argmax": _reduction,
        "argmin": _reduction,
        "cholesky": _cholesky,
        "cholesky_update": lambda operands, results, params: 4.0 * math.prod(operands[0]),
        "conv_general_dilated": _convolution,
        "cumlogsumexp": _reduction,
        "cummax": _reduction,
        "cummin": _reduction,
        "cumprod": _reduction,
        "cumsum": _reduction,
        "dot_general": _dot_general,
        "dot_product_attention_bwd_wrapper": _attention_backward,
        "dot_product_attention_fwd_wrapper": _attention,
        "eig": _eig,
        "eigh": _eigh,
        "fft": _fft,
        "geqp3": _householder,
        "geqrf": _householder,
        "hessenberg": _hessenberg,
        "householder_product": _householder,
        "integer_pow": _integer_pow,
        "lu": _lu,
        "ormqr": lambda operands, results, params: 4.0 * math.prod(operands[-1]) * operands[0][-1],
        "philox2x32": _random_bits,
        "philox4x32": _random_bits,
        "pmax": _reduction,
        "pmin": _reduction,
        "psum": _reduction,
        "psum_invariant": _reduction,
        "qr": _qr,
        "ragged_dot": _ragged_dot,
        "ragged_dot_general": _ragged_dot,
        "random_bits": _random_bits,
        "random_fold_in": _random_bits,
        "random_seed": _random_bits,
        "random_split": _random_bits,
        "reduce": _reduction,
        "reduce_and": _reduction,
        "reduce_max": _reduction,
        "reduce_min": _reduction,
        "reduce_or": _reduction,
        "reduce_prod": _reduction,
        "reduce_sum": _reduction,
        "reduce_scatter": _reduction,
        "reduce_window": _reduce_window,
        "reduce_window_max": _reduce_window,
        "reduce_window_min": _reduce_window,
        "reduce_window_sum": _reduce_window,
        "reduce_xor": _reduction,
        "rng_bit_generator": _random_bits,
        "rng_uniform": _random_bits,
        "scatter-add": _scatter_update,
        "scatter-max": _scatter_update,
        "scatter-min": _scatter_update,
        "scatter-mul": _scatter_update,
        "scatter-sub": _scatter_update,
        "schur": _eig,
        "scaled_dot": _scaled_matmul,
        "scaled_matmul_wrapper": _scaled_matmul,
        "select_and_scatter": _reduction,
        "select_and_scatter_add": _reduction,
        "sort": _sort,
        "svd": _svd,
        "symmetric_product": lambda operands, results, params: float(math.prod(results[-1]) * operands[0][-1]),
        "threefry2x32": _random_bits,
        "threefry4x32": _random_bits,
        "top_k": _top_k,
        "triangular_solve": _triangular_solve,
        "tridiagonal": _tridiagonal,
        "tridiagonal_solve": _tridiagonal_solve,
    }
)
"""The primitives whose work is not one operation per result element."""
