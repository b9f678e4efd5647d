"""Ways: which of several sequences of moves a reshard takes, by what divides evenly and what the compiler can do."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from planner.compiler.collectives.lowering import scatters
from planner.pricing.mesh import Mesh, parts_of_masks

Locations = npt.NDArray[np.int8]
"""Rows of locations: for every axis of a mesh the dim that it splits, or -1."""
WAYS = 3
PLAIN, APART, SUMMED = range(WAYS)
"""The ways of a reshard: as `reshard` says; axes arrive on a dim when others are gone; sums are not scattered."""


def ways_of(
    mesh: Mesh,
    source: Locations,
    partial: npt.NDArray[np.bool_],
    target: Locations,
    *,
    shape: Sequence[int],
    whole_bytes: float,
    orders: Sequence[Sequence[int]] | None,
) -> npt.NDArray[np.int64]:
    """For every pair of specs, in which way a tensor goes from the one to the other: shape (n, m).

    Parameters as of `reshard.patterns_of`; where the chip is a TPU, its compiler says which sums it can scatter.
    """
    ways = np.full((len(source), len(target)), PLAIN, np.int64)
    bits = 1 << np.arange(len(mesh.sizes))
    # By dim the axes that the target puts on it.
    onto = [(target == dim) @ bits for dim in range(len(shape))]
    masks = partial @ bits
    if mesh.compiler.runs("tiling") and masks.any():
        orders = [tuple(range(len(shape)))] if orders is None else orders
        itemsize = round(whole_bytes / max(1, math.prod(shape)))
        parts, held = parts_of_masks(mesh.sizes), local_extents(source, mesh.sizes, shape)
        for mask in sorted({*masks.tolist()} - {0}):
            rows = np.flatnonzero(masks == mask)
            extents, of_row = _distinct(held[rows].tolist())
            for dim, axes in enumerate(onto):
                columns = np.flatnonzero((axes & mask) == mask)
                if not columns.size:
                    continue
                summed = [
                    not any(
                        scatters(
                            mesh.chip,
                            tuple([of[d] for d in order]),
                            order.index(dim),
                            parts=parts[mask],
                            itemsize=itemsize,
                        )
                        for order in orders
                    )
                    for of in extents
                ]
                if any(summed):
                    ways[rows[np.array(summed)[of_row], None], columns] = SUMMED
    every = math.prod(mesh.sizes)
    for dim, extent in enumerate(shape):
        if extent % every:
            _set_apart(ways, (source == dim) @ bits, onto[dim], mesh.sizes, extent)
    return ways


def _distinct(lines: list[list[int]]) -> tuple[list[list[int]], list[int]]:
    """The distinct ones of some lines, and for every line which of them it is."""
    number: dict[tuple[int, ...], int] = {}
    of = [number.setdefault(tuple(line), len(number)) for line in lines]
    return list(map(list, number)), of


def _set_apart(
    ways: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    columns: npt.NDArray[np.int64],
    sizes: Sequence[int],
    extent: int,
) -> None:
    """Marks the pairs of specs for which a dim is too small for all axes that one (`rows`) or the other puts on it."""
    if rows.any() and columns.any():
        indivisible = np.array([extent % parts != 0 for parts in parts_of_masks(sizes)])
        if indivisible[np.bitwise_or.reduce(rows) | np.bitwise_or.reduce(columns)]:
            ways[indivisible[rows[:, None] | columns]] = APART


def local_extents(locations: Locations, sizes: Sequence[int], shape: Sequence[int]) -> npt.NDArray[np.int64]:
    """The extents of a device's part of an array of this whole shape at each of the locations: shape (n, rank).

    A dim of blocks may be split into more parts than it has blocks: the part of one counts whole.
    """
    local = np.tile(np.asarray(shape, np.int64), (len(locations), 1))
    lines = np.arange(len(locations))
    for axis, size in enumerate(sizes):
        dims = locations[:, axis]
        split = lines[dims >= 0]
        whole = local[split, dims[split]]
        local[split, dims[split]] = np.maximum(whole // size, np.minimum(whole, 1))
    return local


def holds_several(
    locations: Locations, sizes: Sequence[int], shape: Sequence[int], dims: Sequence[int]
) -> npt.NDArray[np.bool_]:
    """Whether a device's part of an array of this whole shape has several elements along each dim, at each location."""
    return local_extents(locations, sizes, shape)[:, list(dims)].min(axis=1) > 1
