"""Batch parts: where the batch lies in the arrays of a program, and what of the program is computed part by part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from planner.program.slots import Slot


class Part(NamedTuple):
    """Where the batch lies in an array: dim `dim` counts `before` times the batch times `after`, major first."""

    dim: int
    before: int
    after: int

    def shape(self, shape: Sequence[int], count: int) -> tuple[int, ...]:
        """The shape of one of `count` parts of an array of this shape."""
        return tuple(extent // count if d == self.dim else extent for d, extent in enumerate(shape))


@dataclass(frozen=True, kw_only=True)
class Batch:
    """How a program may be computed batch part by batch part.

    `jaxpr` is the program with its calls expanded, to which all places belong; `extent` is the number of examples.
    `parts` are, by the place where an array is made, those that exist part by part; `cut` are the places where a part is
    read of an array that is made whole. `sums` are the results of equations outside of all bodies whose parts add up to
    them. By number of such equations: `inside` run once for each part, `drawn` as well but for the whole batch (what is
    made of nearly nothing, such as random bits), `after_loop` once behind all parts; the others run once before them.
    """

    jaxpr: Any
    extent: int
    parts: Mapping[Slot, Part]
    cut: Mapping[Slot, Part]
    sums: frozenset[Slot]
    inside: frozenset[int]
    drawn: frozenset[int]
    after_loop: frozenset[int]
