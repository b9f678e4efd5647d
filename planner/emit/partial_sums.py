"""Partial sums, added up by the devices themselves, inside of a `shard_map`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
from jax import lax
from jax.sharding import AbstractMesh, Mesh

from planner.pricing.candidates.specs import from_entries
from planner.pricing.loop_all_reduce import Axes
from planner.program.graph import Op


def on_parts(
    op: Op, operands: Sequence[Axes], made: Axes, mesh: Mesh | AbstractMesh, over: Collection[str] = ()
) -> Callable[..., Sequence[Any]]:
    """An op with one result, run on the part of each device; its partial sums are added up over axes, if over any."""

    def run(*parts: Any) -> tuple[Any]:
        return (add_partial_sums(op.primitive.bind(*parts, **op.params), over, made),)

    return jax.shard_map(
        run,
        mesh=mesh,
        in_specs=tuple(map(from_entries, operands)),
        out_specs=(from_entries(made),),
        check_vma=False,  # partial sums differ between devices, and not every primitive has a rule
    )


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
