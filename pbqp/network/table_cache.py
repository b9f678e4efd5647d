"""Tables made from tables, each made once: a program that repeats its layers repeats the tables of its problem."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast, final

import numpy as np
from numpy.typing import NDArray

from pbqp.problem import Array

T = TypeVar("T")
Element = TypeVar("Element", bound=np.generic)

MOST_BYTES = 300_000_000
"""What may be held beyond what is in use, in bytes."""
OVERHEAD = 1_000
"""Bytes that remembering one step takes beside its result."""


@final
class TableCache:
    """What was made from which arrays: equal steps on the same arrays give the same object, so that later steps agree.

    Arrays are told apart by identity, and kept alive for as long as something made from them is known; `tidy` ends that
    once they are many.
    """

    def __init__(self) -> None:
        self._made: dict[Hashable, tuple[tuple[Any, ...], Any]] = {}
        self._bytes = 0

    def once(self, step: Hashable, inputs: tuple[Any, ...], make: Callable[[], T]) -> T:
        """The result of `step` on `inputs`, from `make` the first time. `step` must say all but the inputs."""
        key = (step, *map(id, inputs))
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = (inputs, make())
            self._bytes += _size(found[1]) + OVERHEAD
        return found[1]

    def transposed(self, table: Array) -> Array:
        """The transpose of a table, and for it the table."""
        key = ("transpose", id(table))
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = ((table,), table.T)
            self._made["transpose", id(found[1])] = ((found[1],), table)
        return found[1]

    def added(self, first: Array, second: Array) -> Array:
        """The sum of two tables."""
        return self.once("add", (first, second), lambda: first + second)

    def taken(self, table: NDArray[Element], lines: NDArray[np.intp]) -> NDArray[Element]:
        """Some lines of a table, or entries of a vector (positions, ascending)."""
        return self.once(("take", lines.tobytes()), (table,), lambda: np.ascontiguousarray(table[lines]))

    def tidy(self) -> None:
        """Lets go of everything known if it takes more than `MOST_BYTES`."""
        if self._bytes > MOST_BYTES:
            self._made.clear()
            self._bytes = 0


def _size(made: Any) -> int:
    """Bytes of the arrays in a result."""
    if isinstance(made, (tuple, list)):
        return sum(map(_size, cast("tuple[Any, ...]", made)))
    return made.nbytes if isinstance(made, np.ndarray) else 0
