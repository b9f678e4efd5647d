"""Arrays under the names that annotations use, and what several modules ask of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

K = TypeVar("K")
Floats = NDArray[np.float64]
Indices = NDArray[np.intp]


def summed_by(terms: Iterable[tuple[K, Floats]]) -> dict[K, Floats]:
    """By key the sum of its arrays, in the order in which the keys come first."""
    found: dict[K, Floats] = {}
    for key, array in terms:
        found[key] = found[key] + array if key in found else array
    return found


def distinct_lines(
    lines: NDArray[np.int8],
) -> tuple[NDArray[np.int8], Indices]:
    """The distinct lines of a table of small numbers from -1 up, and for every line which of them it is."""
    base = int(lines.max(initial=-1)) + 2
    if lines.shape[1] * np.log2(base) >= 62:
        rows, of = np.unique(lines, axis=0, return_inverse=True)
        return rows, of.ravel()
    codes = (lines.astype(np.int64) + 1) @ base ** np.arange(lines.shape[1])[::-1]
    _, firsts, of = np.unique(codes, return_index=True, return_inverse=True)
    return lines[firsts], of
