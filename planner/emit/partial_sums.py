"""Partial sums, added up by the devices themselves, inside of a `shard_map`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, Mesh

from planner.pricing.candidates.specs import from_entries
from planner.pricing.loop_all_reduce import Axes
from planner.program.graph import Op
from planner.program.spec_entries import parts_over


def on_parts(
    op: Op, operands: Sequence[Axes], made: Axes, mesh: Mesh | AbstractMesh, over: Collection[str] = ()
) -> Callable[..., Sequence[Any]]:
    """An op with one result, run on the part of each device; its partial sums are added up over axes, if over any."""

    scatters = op.kind == "scatter-add" and any(operands[0][dim] for dim in _numbers(op).scatter_dims_to_operand_dims)

    def run(*parts: Any) -> tuple[Any]:
        own, params = _of_part(op, operands[0], dict(mesh.shape), parts) if scatters else (parts, op.params)
        return (add_partial_sums(op.primitive.bind(*own, **params), over, made),)

    return jax.shard_map(
        run,
        mesh=mesh,
        in_specs=tuple(map(from_entries, operands)),
        out_specs=(from_entries(made),),
        check_vma=False,  # partial sums differ between devices, and not every primitive has a rule
    )


def _numbers(op: Op) -> lax.ScatterDimensionNumbers:
    return op.params["dimension_numbers"]


def _of_part(
    op: Op, split: Axes, sizes: Mapping[str, int], parts: Sequence[Any]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """The operands and parameters of a scatter into one part of an array: its places are counted from where that begins.

    Updates of other parts are dropped. What is split has updates of single elements, by the rule of scatters.
    """
    (part, places, updates), numbers = parts, _numbers(op)
    windows = iter(numbers.update_window_dims)
    left_out = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    taken = [1 if dim in left_out else updates.shape[next(windows)] for dim in range(part.ndim)]
    dims = numbers.scatter_dims_to_operand_dims
    places = places.astype(jnp.int32)
    if op.params["mode"] == lax.GatherScatterMode.CLIP:
        # As the whole program: an update before the first place or after the last one is moved there.
        last = [part.shape[dim] * parts_over(split[dim], sizes) - taken[dim] for dim in dims]
        places = jnp.clip(places, 0, jnp.array(last, jnp.int32))
    begins = [lax.axis_index(split[dim]) * part.shape[dim] if split[dim] else 0 for dim in dims]
    params = {**op.params, "mode": lax.GatherScatterMode.FILL_OR_DROP}
    return (part, places - jnp.array(begins, jnp.int32), updates), params


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
