"""Ways: which of several sequences of moves a reshard takes, by what divides evenly and what the compiler can do."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cost_models.compilers import scatters
from planner.one_mesh.mesh import Mesh, parts_of_masks

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
    order: Sequence[int] | None,
) -> npt.NDArray[np.int64]:
    """For every pair of specs, in which way a tensor goes from the one to the other: shape (n, m).

    Parameters as of `reshard_values`; where the chip is a TPU, its compiler says which sums it can scatter.
    """
    ways = np.full((len(source), len(target)), PLAIN, np.int64)
    if mesh.tpu and partial.any():
        places = list(range(len(shape)) if order is None else order)
        itemsize = round(whole_bytes / max(1, math.prod(shape)))
        for i in np.flatnonzero(partial.any(axis=1)).tolist():
            held = [
                extent // math.prod(n for n, place in zip(mesh.sizes, source[i], strict=True) if place == dim)
                for dim, extent in enumerate(shape)
            ]
            parts = math.prod(n for n, summed in zip(mesh.sizes, partial[i], strict=True) if summed)
            onto = target[:, partial[i]]
            for dim in np.unique(onto[onto >= 0]).tolist():
                kept = [held[place] for place in places]
                if not scatters(mesh.tpu, kept, places.index(dim), parts=parts, itemsize=itemsize):
                    ways[i, (onto == dim).all(axis=1)] = SUMMED
    ways[_crowded(source, target, mesh.sizes, shape)] = APART
    return ways


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
