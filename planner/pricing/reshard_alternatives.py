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
PLAIN, APART, SUMMED = range(3)
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
    if mesh.compiler.runs("tiling") and partial.any():
        places = [tuple(range(len(shape)))] if orders is None else orders
        itemsize = round(whole_bytes / max(1, math.prod(shape)))
        parts = parts_of_masks(mesh.sizes)
        masks = partial @ (1 << np.arange(len(mesh.sizes)))
        for mask in np.unique(masks[masks > 0]).tolist():
            rows = np.flatnonzero(masks == mask)
            held = local_extents(source[rows], mesh.sizes, shape)
            ordered = [(order, held[:, order].tolist()) for order in places]
            onto = target[:, partial[rows[0]]]
            for dim in np.unique(onto[onto >= 0]).tolist():
                columns = np.flatnonzero((onto == dim).all(axis=1))
                scattered = np.zeros(len(rows), np.bool_)
                for order, extents in ordered:
                    at = order.index(dim)
                    scattered |= [
                        scatters(mesh.chip, tuple(of), at, parts=parts[mask], itemsize=itemsize) for of in extents
                    ]
                ways[np.ix_(rows[~scattered], columns)] = SUMMED
    ways[_crowded(source, target, mesh.sizes, shape)] = APART
    return ways


def local_extents(locations: Locations, sizes: Sequence[int], shape: Sequence[int]) -> npt.NDArray[np.int64]:
    """The extents of a device's part of an array of this whole shape at each of the locations: shape (n, rank)."""
    local = np.tile(np.asarray(shape, np.int64), (len(locations), 1))
    lines = np.arange(len(locations))
    for axis, size in enumerate(sizes):
        dims = locations[:, axis]
        split = lines[dims >= 0]
        local[split, dims[split]] //= size
    return local


def holds_several(locations: Locations, sizes: Sequence[int], shape: Sequence[int], dim: int) -> npt.NDArray[np.bool_]:
    """Whether a device's part of an array of this whole shape has several elements along a dim, at each location."""
    return local_extents(locations, sizes, shape)[:, dim] > 1


def _crowded(source: Locations, target: Locations, sizes: Sequence[int], shape: Sequence[int]) -> npt.NDArray[np.bool_]:
    """For every pair of specs, whether a dim may be too small for all axes that one or the other puts on it."""
    crowded = np.zeros((len(source), len(target)), np.bool_)
    every = int(np.prod(sizes, dtype=np.int64))
    bits = 1 << np.arange(len(sizes))
    for dim, extent in enumerate(shape):
        if extent % every == 0:
            continue
        rows, columns = (source == dim) @ bits, (target == dim) @ bits
        if rows.any() and columns.any():
            indivisible = np.array([extent % parts != 0 for parts in parts_of_masks(sizes)])
            crowded |= indivisible[rows[:, None] | columns]
    return crowded
