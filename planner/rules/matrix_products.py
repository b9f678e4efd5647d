"""Products of matrices: the extents of what an op multiplies, from the shapes of its operands on one device.

Extents are arrays, one entry for each of several ways to split the op.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Extents = npt.NDArray[np.float64]


class MatrixProduct(NamedTuple):
    """A product of (rows, contracted) and (contracted, columns), done once or more."""

    contracted: Extents
    rows: Extents
    columns: Extents


ProductFunction = Callable[[Sequence[Sequence[Extents]], Mapping[str, Any]], MatrixProduct]
"""From the shapes of an op's operands, and its params."""
ONE = np.ones(1)


def dot_product(shapes: Sequence[Sequence[Extents]], params: Mapping[str, Any]) -> MatrixProduct:
    """That of a `dot_general`, once for every index of its batch dims."""
    (left_contracted, right_contracted), (left_batch, right_batch) = params["dimension_numbers"]
    left, right = shapes[0], shapes[1]
    return MatrixProduct(
        contracted=prod((left[d] for d in left_contracted), start=ONE),
        rows=prod((n for d, n in enumerate(left) if d not in (*left_contracted, *left_batch)), start=ONE),
        columns=prod((n for d, n in enumerate(right) if d not in (*right_contracted, *right_batch)), start=ONE),
    )


def convolution_product(shapes: Sequence[Sequence[Extents]], params: Mapping[str, Any]) -> MatrixProduct:
    """That of a convolution, once for every pair of places; a window as wide as its image, as of a kernel's gradient,
    is contracted as well.
    """
    numbers = params["dimension_numbers"]
    image, kernel = shapes[0], shapes[1]
    contracted = kernel[numbers.rhs_spec[1]]
    for extent, width in zip(numbers.lhs_spec[2:], numbers.rhs_spec[2:], strict=True):
        contracted = contracted * np.where(2 * kernel[width] > image[extent], kernel[width], 1.0)
    return MatrixProduct(contracted=contracted, rows=image[numbers.lhs_spec[0]], columns=kernel[numbers.rhs_spec[0]])
