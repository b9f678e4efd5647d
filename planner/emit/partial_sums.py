"""Partial sums, added up by the devices themselves, inside of a `shard_map`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from jax import lax

from planner.one_mesh.loop_sums import Axes


def add_partial_sums(partial_sum: Any, axes: Collection[str], made: Axes) -> Any:
    """The sum of partial results over some axes; scattered on the dims of the result that have them, as `made` says."""
    scattered: set[str] = set()
    for dim, held in enumerate(made):
        own = tuple(axis for axis in held if axis in axes)
        if own:
            partial_sum = lax.psum_scatter(partial_sum, own, scatter_dimension=dim, tiled=True)
            scattered.update(own)
    whole = tuple(axis for axis in axes if axis not in scattered)
    return lax.psum(partial_sum, whole) if whole else partial_sum
