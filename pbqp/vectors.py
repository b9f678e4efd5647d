"""Arrays under the names that annotations use, and what several modules ask of them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

K = TypeVar("K")
Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

FEW_CODES = 4096
"""Up to so many codes of lines that there may be, a table of them all takes less time than sorting those there are."""


def summed_by(terms: Iterable[tuple[K, Floats]]) -> dict[K, Floats]:
    """By key the sum of its arrays, in the order in which the keys come first."""
    found: dict[K, Floats] = {}
    for key, array in terms:
        found[key] = found[key] + array if key in found else array
    return found


def components(first: Indices, second: Indices, count: int) -> Indices:
    """Of `count` nodes joined by these edges the number of each one's component; ascending in nodes."""
    joined = coo_array((np.ones(first.size), (first, second)), shape=(count, count))
    return np.asarray(connected_components(joined, directed=False)[1], np.intp)


def distinct_lines(lines: NDArray[np.int8]) -> tuple[NDArray[np.int8], Indices]:
    """The distinct lines of a table of small numbers from -1 up, and for every line which of them it is.

    Both may be given out again, and are not to be changed.
    """
    return _distinct_lines(lines.tobytes(), lines.shape)


@lru_cache(maxsize=2**11)
def _distinct_lines(content: bytes, shape: tuple[int, int]) -> tuple[NDArray[np.int8], Indices]:
    """The same of a table of this content; one program on one mesh has few, which are asked for again and again."""
    lines = np.frombuffer(content, np.int8).reshape(shape)
    base = int(lines.max(initial=-1)) + 2
    codes_there_are = base ** shape[1]
    if codes_there_are >= 2**62:
        rows, of = np.unique(lines, axis=0, return_inverse=True)
        return rows, of.ravel()
    codes = np.zeros(shape[0], np.int64)
    for column in lines.T:
        codes *= base
        codes += column
        codes += 1
    if codes_there_are > FEW_CODES:
        _, firsts, of = np.unique(codes, return_index=True, return_inverse=True)
        return lines[firsts], of
    # Looking each code up takes a fraction of the time of sorting. Of equal ones the first is written last.
    first = np.full(codes_there_are, -1)
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    met = np.flatnonzero(first >= 0)
    number = np.empty(codes_there_are, np.intp)
    number[met] = np.arange(len(met))
    return lines[first[met]], number[codes]
