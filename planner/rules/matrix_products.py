"""Products of matrices: the extents of what an op multiplies, from the shapes of its operands on one device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple


class MatrixProduct(NamedTuple):
    """A product of (rows, contracted) and (contracted, columns), done once or more."""

    contracted: float
    rows: float
    columns: float


ProductFunction = Callable[[Sequence[Sequence[int]], Mapping[str, Any]], MatrixProduct]
"""From the shapes of an op's operands, and its params."""


def dot_product(shapes: Sequence[Sequence[int]], params: Mapping[str, Any]) -> MatrixProduct:
    """That of a `dot_general`, once for every index of its batch dims."""
    (left_contracted, right_contracted), (left_batch, right_batch) = params["dimension_numbers"]
    left, right = shapes[0], shapes[1]
    return MatrixProduct(
        contracted=prod(left[d] for d in left_contracted),
        rows=prod(n for d, n in enumerate(left) if d not in (*left_contracted, *left_batch)),
        columns=prod(n for d, n in enumerate(right) if d not in (*right_contracted, *right_batch)),
    )


def convolution_product(shapes: Sequence[Sequence[int]], params: Mapping[str, Any]) -> MatrixProduct:
    """That of a convolution, once for every pair of places; a window as wide as its image, as of a kernel's gradient,
    is contracted as well.
    """
    numbers = params["dimension_numbers"]
    image, kernel = shapes[0], shapes[1]
    contracted = float(kernel[numbers.rhs_spec[1]])
    for extent, width in zip(numbers.lhs_spec[2:], numbers.rhs_spec[2:], strict=True):
        if 2 * kernel[width] > image[extent]:
            contracted *= kernel[width]
    return MatrixProduct(contracted=contracted, rows=image[numbers.lhs_spec[0]], columns=kernel[numbers.rhs_spec[0]])
