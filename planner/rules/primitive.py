"""What a row of `rules.primitives` says of a primitive: its factor rule, and traits that the planner asks for.

Extents of products of matrices are arrays, one entry for each of several ways to split the op.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from math import prod
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from planner.program.graph import Aval
from planner.rules.factors import RuleFunction
from planner.rules.sliding import Slide

Extents = npt.NDArray[np.float64]


class MatrixProduct(NamedTuple):
    """A product of (rows, contracted) and (contracted, columns), done once or more."""

    contracted: Extents
    rows: Extents
    columns: Extents


ProductFunction = Callable[[Sequence[Sequence[Extents]], Mapping[str, Any]], MatrixProduct]
"""From the shapes of an op's operands and result, and its params."""
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
    """That of a convolution, once for every pair of places; a window of more places than the result has, as of a kernel's
    gradient or of patches, is contracted as well.
    """
    numbers = params["dimension_numbers"]
    image, kernel, result = shapes
    contracted = kernel[numbers.rhs_spec[1]]
    for place, width in zip(numbers.out_spec[2:], numbers.rhs_spec[2:], strict=True):
        contracted = contracted * np.where(kernel[width] > result[place], kernel[width], 1.0)
    return MatrixProduct(contracted=contracted, rows=image[numbers.lhs_spec[0]], columns=kernel[numbers.rhs_spec[0]])


SlideFunction = Callable[[Sequence[Aval], Sequence[Aval], Mapping[str, Any]], tuple[Slide, ...]]
"""From the avals of an op's operands and results, and its params, to the dims along which its window slides."""

Collective = Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"]
"""What XLA makes of a collective that a program runs itself."""

ByHand = Literal["parts", "barrier", "kernel", "sums"]
"""What keeps an op that is split from XLA's partitioner: "parts", it is run on the part of each device; "barrier", what it
writes into is made a buffer of its own; "kernel", it is run on the part of each device, as a
rule of its own or of its user's says; "sums", where what it sums over is split
it is run on the part of each device, and the partial sums are added up."""


@dataclass(frozen=True, slots=True)
class Primitive:
    """One primitive. Most have few traits, and what has no row has none."""

    rule: RuleFunction | None
    """How it may be split; None: no rule of ours says so. Asked by `rules.choose`, through `rule_of`."""

    _: KW_ONLY

    fused: bool = False
    """A compiler joins it with its neighbours into one pass over memory. Asked by `op_forms` and `liveness`."""

    joins: bool = False
    """Though placed by a decision of its own, it is part of the passes that read its result. Asked by
    `costs`, `liveness`."""

    matmul: bool = False
    """It runs on the matrix unit, and computes an operand on the way, as a rule. Asked by `liveness`."""

    product: ProductFunction | None = None
    """The product of matrices that it is on the part of one device. Asked by `costs`."""

    costly: bool = False
    """A compiler rather stores its result than computes it for every element of a broadcast. Asked by `liveness`."""

    stored_for_matmuls: bool = False
    """A compiler rather stores its result than computes it inside a matmul. Asked by `liveness`."""

    slow: bool = False
    """A vector unit takes many steps for every element. Asked by `softmaxes`."""

    stored_up_to_bytes: int = 0
    """A GPU's compiler stores elements of up to so many bytes for the backward pass rather than computing them again.
    Asked by `expensive_producers`."""

    squares: bool = False
    """A product of its operand with itself, which a compiler counts as a product of two. Asked by `fusion`."""

    extreme: bool = False
    """It reduces to the greatest or least element. Asked by `softmaxes`."""

    reshapes: bool = False
    """Its result has its operand's elements, in their order, in another shape. Asked by `fusion`, `softmaxes`."""

    resizes: bool = False
    """Its result has the dims of its first operand, of other extents. Asked by `convolved`."""

    adds: bool = False
    """Its result may be a sum so far, to which later ones add. Asked by `accumulators`, `liveness`."""

    linear_in: tuple[int, ...] = ()
    """The operands in each of which alone it is linear, element by element. Asked by `accumulators`."""

    additive: tuple[int, ...] | Literal["all"] = ()
    """The operands in all of which together it is linear: of their sums it gives the sum of its results. Asked by
    `forms`."""

    renames: bool = False
    """Its result is a name for its operand, in the same memory. Asked by `liveness`."""

    places: bool = False
    """It only says where its operand lies. Asked by `seen_through`, `groups`, `costs`."""

    bars: bool = False
    """Nothing is fused across it, so that what it takes stands in memory. Asked by `liveness`, `kernels`,
    `postponed`."""

    streams: bool = False
    """Where it is no part of a pass, it still reads its operands as those are computed. Asked by `liveness`."""

    picks: bool = False
    """Of its first operand it reads no more than it returns. Asked by `costs`, for ops that are not fused."""

    updates: int | None = None
    """The position of what it writes over a part of its first operand. Asked by `liveness`, `costs`, `rule_for`."""

    overwrites: bool = False
    """It does not read the part that it updates. Asked by `costs`."""

    turns: bool = False
    """It keeps the elements, but not their places. Asked by `in_place`."""

    carries: bool = False
    """It does to partial results what it does to whole ones: it only moves elements. Asked by `rule_for`."""

    moves: bool = False
    """It only moves elements of its operands of the type of its result, or picks one of several. Asked by
    `convert_mover`."""

    partial_on_parts: bool = False
    """Run alone on a part of what it reduces it gives a partial result. Others, such as a masked gather, must know which
    part it is. Asked by `rule_for`."""

    draws: bool = False
    """It draws an array of a single key, every element by its number in the whole. Asked by `forms`."""

    counts: bool = False
    """With keys of Threefry each of its elements is computed of a key and its own number. Asked by `materialization`."""

    rounds: bool = False
    """A sum of many terms, or a term of such a sum: not exact in 16-bit floats. Asked by `numerics`."""

    slides: SlideFunction | None = None
    """The dims along which its window slides, whose split needs halos. Asked by `costs`, `predict`, `by_hand` and others,
    through `slides_of`."""

    by_hand: ByHand | None = None
    """How it is emitted by hand, besides exchanging halos. Asked by `by_hand`."""

    opaque: bool = False
    """It lowers to code that nobody can look into. Asked by `shardy`."""

    calls_back: bool = False
    """It calls Python. Asked by `kernel_parts`."""

    collective: Collective | None = None
    """It stands in the body of a `shard_map` and is this collective over named axes. What it takes is the collective's
    price: nothing is computed beside it. Asked by `costs`, `collectives`, `choose`."""
