"""Collectives of a `shard_map`'s body in the forms that `jax.vmap` knows: over one named axis, without groups.

Under `vmap(body, axis_name=...)` over all devices a psum is a sum over a dim, a gather is a reshape: the body becomes a
program on global arrays with the same results. `vmap` has no rule for gathers, scatters and permutations over several axes,
for ragged exchanges, and for what only changes types; these are written here in terms of those it has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

Axes = tuple[str, ...]
"""Names of the axes of more than one device over which a collective runs, the major first."""
Written = Callable[..., Any]
"""A function of a collective's operands."""


class Unopenable(Exception):
    """Why the body of a `shard_map` cannot be written as a program on global arrays."""


def vmappable(eqn: Any, sizes: Mapping[str, int]) -> Written | None:
    """A function of an equation's operands that `vmap` knows, None for an equation without named axes.

    `sizes` are those of the axes in scope; one of size 1 is no axis. Raises: Unopenable for a collective that has none.
    """
    name, params = eqn.primitive.name, eqn.params
    if name in _IDENTITIES:
        return lambda *operands: operands
    if name in _RAGGED and max(sizes.values()) > 1:
        raise Unopenable(f"compilers run {name} of many parts for every group over all rows")
    named = params.get("axes", params.get("axis_name", ()))
    named = tuple(named) if isinstance(named, (tuple, list)) else (named,)
    axes = tuple(axis for axis in named if isinstance(axis, str) and axis in sizes)
    if not axes:
        return None
    if len(axes) < len(named):
        raise Unopenable(f"{name} runs over named axes and dims at once")
    if params.get("axis_index_groups") is not None:
        raise Unopenable(f"{name} runs within groups of devices (axis_index_groups)")
    written = _WRITTEN.get(name)
    if written is None:
        raise Unopenable(f"{name} has no meaning on global arrays")
    return written(params, tuple(axis for axis in axes if sizes[axis] > 1), sizes)


def _reduction(reduce: Callable[..., Any]) -> Callable[[Any, Axes, Mapping[str, int]], Written]:
    """A reduction of what all devices have: as a psum under `vmap` it would stay a psum, over a dim."""

    def reduced(x: Any, axes: Axes) -> Any:
        for axis in reversed(axes):
            x = lax.all_gather(x, axis)
        return reduce(x, axes=tuple(range(len(axes))))

    def written(params: Any, axes: Axes, sizes: Mapping[str, int]) -> Written:
        return lambda *operands: [reduced(x, axes) for x in operands] if axes else operands

    return written


def _all_gather(params: Any, axes: Axes, sizes: Mapping[str, int]) -> Written:
    dim, tiled = params["all_gather_dimension"], params["tiled"]

    def gather(x: Any) -> Any:
        x = x if tiled else jnp.expand_dims(x, dim)
        for axis in reversed(axes):
            x = lax.all_gather(x, axis, axis=dim, tiled=True)
        return x

    return gather


def _reduce_scatter(params: Any, axes: Axes, sizes: Mapping[str, int]) -> Written:
    dim, tiled = params["scatter_dimension"], params["tiled"]

    def scatter(x: Any) -> Any:
        for axis in axes:
            x = lax.psum_scatter(x, axis, scatter_dimension=dim, tiled=True)
        return x if tiled else jnp.squeeze(x, dim)

    return scatter


def _all_to_all(params: Any, axes: Axes, sizes: Mapping[str, int]) -> Written:
    """An exchange of blocks; the primitive's own `tiled` says nothing, as `lax.all_to_all` reshapes around it."""
    split, concat = params["split_axis"], params["concat_axis"]
    counts, n = [sizes[axis] for axis in axes], len(axes)

    def exchange(x: Any) -> Any:
        # The blocks for each device lead, one dim for each axis; what is exchanged stays there.
        kept = x.shape[split] // math.prod(counts)
        x = jnp.reshape(x, (*x.shape[:split], *counts, kept, *x.shape[split + 1 :]))
        x = jnp.moveaxis(x, range(split, split + n), range(n))
        for dim, axis in enumerate(axes):
            x = lax.all_to_all(_varying(x, axis), axis, dim, dim, tiled=True)
        x = jnp.moveaxis(x, range(n), range(concat, concat + n))
        return jnp.reshape(
            x, (*x.shape[:concat], math.prod(x.shape[concat : concat + n + 1]), *x.shape[concat + n + 1 :])
        )

    return exchange if axes else lambda x: x


def _varying(x: Any, axis: str) -> Any:
    """An array that `vmap` batches along an axis even if all devices have the same, which its all-to-all gets wrong."""
    return lax.select(jnp.broadcast_to(lax.axis_index(axis) >= 0, x.shape), x, x)


def _ppermute(params: Any, axes: Axes, sizes: Mapping[str, int]) -> Written:
    if len(axes) == 1:
        return lambda *operands: [lax.ppermute(x, axes[0], params["perm"]) for x in operands]

    def permute(x: Any) -> Any:
        me, everyone, received = _position(axes), _of_all(x, axes), jnp.zeros_like(x)
        for sender, receiver in params["perm"]:
            received = jnp.where(me == receiver, everyone[sender], received)
        return received

    return lambda *operands: [permute(x) for x in operands]


def _broadcast(params: Any, axes: Axes, sizes: Mapping[str, int]) -> Written:
    return lambda x: _of_all(x, axes)[params["source"]]


def _axis_index(params: Any, axes: Axes, sizes: Mapping[str, int]) -> Written:
    return lambda: _position(axes)


def _ragged_all_to_all(params: Any, axes: Axes, sizes: Mapping[str, int]) -> Written:
    count = math.prod(sizes[axis] for axis in axes)

    def exchange(x: Any, out: Any, starts: Any, lengths: Any, targets: Any, received: Any) -> Any:
        if starts.shape != (count,):
            raise Unopenable(f"ragged_all_to_all sends {starts.shape[0]} runs of rows over {count} devices")
        me, rows = _position(axes), jnp.arange(out.shape[0])
        # What every sender has for this device: where it starts there, how long it is, and where it goes here.
        begin, length, at = (_of_all(offsets, axes)[:, me] for offsets in (starts, lengths, targets))
        within = (rows >= at[:, None]) & (rows < (at + length)[:, None])
        sender = jnp.argmax(within, axis=0)
        row = jnp.clip(rows - at[sender] + begin[sender], 0, x.shape[0] - 1)
        arrived = within.any(axis=0).reshape(-1, *(1,) * (out.ndim - 1))
        return jnp.where(arrived, _of_all(x, axes)[sender, row], out)

    return exchange


def _of_all(x: Any, axes: Axes) -> Any:
    """An array of all devices, stacked along a new leading dim in the order of their positions along `axes`."""
    x = x[None]
    for axis in reversed(axes):
        x = lax.all_gather(x, axis, tiled=True)
    return x


def _position(axes: Axes) -> Any:
    return lax.axis_index(axes) if axes else jnp.int32(0)


_psum = _reduction(lax.reduce_sum)
_WRITTEN: Mapping[str, Callable[[Any, Axes, Mapping[str, int]], Written]] = {
    "all_gather": _all_gather,
    "all_gather_invariant": _all_gather,
    "all_gather_reduced": _all_gather,
    "all_to_all": _all_to_all,
    "axis_index": _axis_index,
    "pbroadcast": _broadcast,
    "pmax": _reduction(lax.reduce_max),
    "pmin": _reduction(lax.reduce_min),
    "ppermute": _ppermute,
    "psum": _psum,
    "psum_invariant": _psum,
    "ragged_all_to_all": _ragged_all_to_all,
    "reduce_scatter": _reduce_scatter,
    "unreduced_psum": _psum,
    "unreduced_reduce_scatter": _reduce_scatter,
}
_RAGGED: Sequence[str] = ("ragged_dot", "ragged_dot_general")
_IDENTITIES: Sequence[str] = ("pvary", "pcast", "preduced", "vary_unreduced_cast")
"""What only tells the types of `shard_map` how a value varies over devices."""
