"""Formulas of work: the floating-point operations of one run on whole arrays, from shapes of operands and results.

Linear algebra follows Golub & Van Loan, Matrix Computations, 4th ed. (sections 3.2, 4.2, 5.2, 5.4, 7.5, 8.3, 8.6).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Shape = tuple[int, ...]
Shapes = Sequence[Shape]
Params = Mapping[str, Any]
Formula = Callable[[Shapes, Shapes, Params], float]

THREEFRY_FLOPS = 60.0
"""Integer operations per 32-bit word: 20 rounds of add, rotate (3) and xor on two words plus key injections (Salmon et
al. 2011, https://doi.org/10.1145/2063384.2063405)."""


def elements(shapes: Shapes) -> float:
    """The elements of the largest of some arrays."""
    return float(max((math.prod(shape) for shape in shapes), default=0))


def dot_general(operands: Shapes, results: Shapes, params: Params) -> float:
    """2 b m n k: every result element is a sum of k products."""
    (contracted, _), _ = params["dimension_numbers"]
    return 2.0 * math.prod(results[0]) * math.prod(operands[0][d] for d in contracted)


def convolution(operands: Shapes, results: Shapes, params: Params) -> float:
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


def ragged_dot(operands: Shapes, results: Shapes, params: Params) -> float:
    """2 times the left operand's elements times the right one's free dims: a row meets one group only."""
    numbers = params.get("ragged_dot_dimension_numbers")
    left, right = operands[0], operands[1]
    if numbers is None:
        return 2.0 * math.prod(left) * right[-1]
    (_, contracted), (_, batch) = numbers.dot_dimension_numbers
    bound = {*contracted, *batch, *numbers.rhs_group_dimensions}
    return 2.0 * math.prod(left) * math.prod(size for d, size in enumerate(right) if d not in bound)


def scaled_matmul(operands: Shapes, results: Shapes, params: Params) -> float:
    """2 b m n k of a (b, m, k) times b (b, n, k), scales aside."""
    return 2.0 * math.prod(results[0]) * operands[0][-1]


def attention(operands: Shapes, results: Shapes, params: Params) -> float:
    """2 matmuls of queries (b, t, n, h), or (b, n, t, h) in layout 1, with keys and values of length s: 4 b t n h s.

    Under a causal mask half of that: blocks of scores that are masked are not computed.
    """
    whole = 4.0 * math.prod(operands[0]) * operands[1][2 if params.get("layout") == 1 else 1]
    return whole / 2 if "CAUSAL" in str(params.get("mask_type")) else whole


def attention_backward(operands: Shapes, results: Shapes, params: Params) -> float:
    """5 matmuls instead of 2 (Dao et al. 2022, https://arxiv.org/abs/2205.14135)."""
    return 2.5 * attention(operands, results, params)


def fft(operands: Shapes, results: Shapes, params: Params) -> float:
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


def cholesky(operands: Shapes, results: Shapes, params: Params) -> float:
    batch, n, _ = _matrices(operands[0])
    return batch * n**3 / 3


def triangular_solve(operands: Shapes, results: Shapes, params: Params) -> float:
    batch, rows, columns = _matrices(operands[1])
    n = operands[0][-1]
    return float(batch * n * n * (columns if params.get("left_side", True) else rows))


def lu(operands: Shapes, results: Shapes, params: Params) -> float:
    batch, m, n = _matrices(operands[0])
    k = min(m, n)
    return batch * 2.0 * (m * n * k - (m + n) * k * k / 2 + k**3 / 3)


def householder(operands: Shapes, results: Shapes, params: Params) -> float:
    """2 n^2 (m - n/3) for a QR factorization, and again to form its Q."""
    batch, m, n = _matrices(operands[0])
    m, n = max(m, n), min(m, n)
    return batch * 2.0 * n * n * (m - n / 3)


def qr(operands: Shapes, results: Shapes, params: Params) -> float:
    return 2 * householder(operands, results, params)


def eigh(operands: Shapes, results: Shapes, params: Params) -> float:
    batch, n, _ = _matrices(operands[0])
    return batch * 9.0 * n**3


def eig(operands: Shapes, results: Shapes, params: Params) -> float:
    batch, n, _ = _matrices(operands[0])
    return batch * 25.0 * n**3


def svd(operands: Shapes, results: Shapes, params: Params) -> float:
    batch, m, n = _matrices(operands[0])
    m, n = max(m, n), min(m, n)
    if params.get("compute_uv", True):
        return batch * (4.0 * m * m * n + 22.0 * n**3 if params.get("full_matrices") else 14.0 * m * n * n + 8.0 * n**3)
    return batch * (4.0 * m * n * n - 4.0 * n**3 / 3)


def hessenberg(operands: Shapes, results: Shapes, params: Params) -> float:
    batch, n, _ = _matrices(operands[0])
    return batch * 10.0 * n**3 / 3


def tridiagonal(operands: Shapes, results: Shapes, params: Params) -> float:
    batch, n, _ = _matrices(operands[0])
    return batch * 4.0 * n**3 / 3


def tridiagonal_solve(operands: Shapes, results: Shapes, params: Params) -> float:
    return 8.0 * math.prod(operands[-1])


def sort(operands: Shapes, results: Shapes, params: Params) -> float:
    n = operands[0][params.get("dimension", -1)] if operands[0] else 1
    return math.prod(operands[0]) * math.log2(max(n, 2))


def top_k(operands: Shapes, results: Shapes, params: Params) -> float:
    return math.prod(operands[0]) * math.log2(max(int(params.get("k", results[0][-1])), 2))


def reduction(operands: Shapes, results: Shapes, params: Params) -> float:
    return elements(operands)


def reduce_window(operands: Shapes, results: Shapes, params: Params) -> float:
    return elements(results) * math.prod(params["window_dimensions"])


def integer_pow(operands: Shapes, results: Shapes, params: Params) -> float:
    exponent = abs(int(params.get("y", 2)))
    return elements(results) * max(exponent.bit_length() - 1 + exponent.bit_count() - 1 + (params.get("y", 2) < 0), 1)


def polynomial(operands: Shapes, results: Shapes, params: Params) -> float:
    """By Horner's scheme: a product and a sum for every coefficient but the first."""
    return 2 * max(len(operands) - 2, 0) * elements(results)


def random_bits(operands: Shapes, results: Shapes, params: Params) -> float:
    return THREEFRY_FLOPS * elements(results)


def scatter_update(operands: Shapes, results: Shapes, params: Params) -> float:
    """One per element of the updates, the third operand."""
    return float(math.prod(operands[-1]))


def cholesky_update(operands: Shapes, results: Shapes, params: Params) -> float:
    return 4.0 * math.prod(operands[0])


def ormqr(operands: Shapes, results: Shapes, params: Params) -> float:
    return 4.0 * math.prod(operands[-1]) * operands[0][-1]


def symmetric_product(operands: Shapes, results: Shapes, params: Params) -> float:
    return float(math.prod(results[-1]) * operands[0][-1])


# Passes over memory: how often a TPU goes over the operands and results of an op.


def fft_passes(operands: Shapes, results: Shapes, params: Params) -> float:
    """Products with matrices of roots of unity: one stage up to 256 points, else two; what is real is made complex."""
    passes = sum(2.25 if length <= 256 else 5.5 for length in params["fft_lengths"])
    return passes if operands[0] == results[0] else 2 * passes


def sort_passes(operands: Shapes, results: Shapes, params: Params) -> float:
    """It is laid out for the sort and back; of several operands sorted by one the second way is left out."""
    return 3.0 if len(operands) == 1 else 2.0


def cumulative_passes(operands: Shapes, results: Shapes, params: Params) -> float:
    """Sums within tiles, then over tiles; along the last dim it is laid out anew."""
    axis, shape = int(params["axis"]), operands[0]
    return (1.0 if shape[axis] <= 128 else 2.0) + (axis == len(shape) - 1)
