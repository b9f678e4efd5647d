"""`shard_map`s opened: the body, which one device runs, as a program on global arrays with the same results.

The dims that the specs split are reshaped into (devices, part), and the body runs under one `jax.vmap` for every axis of
more than one device: its collectives are then sums, gathers and permutations along dims, `axis_index` an iota, and random
bits are drawn from each device's own key. JAX's own batching rules do the work (`vmappable_collectives` has the rest).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
from jax import lax

from planner.program.jaxpr.bodies import closed, manual_axes, opened, with_fields
from planner.program.jaxpr.calls import call_like
from planner.program.jaxpr.origins import lines_of, short_line
from planner.program.jaxpr.placements.vmappable_collectives import Unopenable
from planner.program.jaxpr.variables import all_named
from planner.program.spec_entries import axes_of_entry

_HERE = short_line(f"{__file__}:0").removesuffix("0")
Dim = str | int
"""A dim of an array apart: an axis of the mesh, or the part of a dim (by number) that one device holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Apart:
    """How an array lies over devices: `dims` with each split dim as its axes and its part; `whole` along the other axes."""

    dims: tuple[Dim, ...]
    whole: tuple[str, ...]

    def positions(self, axes: Sequence[str]) -> list[int]:
        """Where each axis stands once those before it are taken out; the `whole` ones lead."""
        left: list[Dim] = [*self.whole, *self.dims]
        found: list[int] = []
        for axis in axes:
            found.append(left.index(axis))
            left.remove(axis)
        return found


def opened_shard_map(eqn: Any, body: Any, axis_env: Sequence[tuple[str, int]]) -> Any:
    """A call that computes on global arrays what a `shard_map` does, an equation.

    `body` is its own, with vmappable collectives; `axis_env` are the axes in scope around it and their sizes.
    Raises: Unopenable.
    """
    params, mesh = eqn.params, dict(eqn.params["mesh"].shape)
    axes = tuple(axis for axis in manual_axes(eqn) if mesh[axis] > 1)
    entering = [_apart(spec, v.aval.ndim, axes) for spec, v in zip(params["in_specs"], eqn.invars, strict=True)]
    leaving = [_apart(spec, v.aval.ndim, axes) for spec, v in zip(params["out_specs"], eqn.outvars, strict=True)]
    run = _vmapped(jex_core.jaxpr_as_fun(closed(body)), axes, mesh, entering, leaving)
    shapes = [v.aval.shape for v in eqn.outvars]

    def shard_map(*operands: Any) -> list[Any]:
        taken = [_split(x, apart, mesh) for x, apart in zip(operands, entering, strict=True)]
        made = zip(run(*taken), leaving, shapes, strict=True)
        return [jnp.reshape(_of_first(x, len(apart.whole)), shape) for x, apart, shape in made]

    try:
        call = call_like(eqn, shard_map, axis_env=axis_env)
    except (NotImplementedError, ValueError, TypeError, AssertionError, KeyError) as error:
        raise Unopenable(f"JAX cannot run its body under vmap: {str(error).splitlines()[0]:.120}") from error
    params = {**call.params, "jaxpr": _without_copies(call.params["jaxpr"], eqn.source_info)}
    return call.replace(params=params, ctx=eqn.ctx)


def _apart(spec: Any, rank: int, axes: Sequence[str]) -> _Apart:
    """How a spec lays an array. Raises: Unopenable for one of sums that are yet to be taken."""
    if getattr(spec, "unreduced", None):
        raise Unopenable(f"{spec} leaves sums over devices to be taken later")
    dims: list[Dim] = []
    for dim, entry in enumerate([*spec, *[None] * (rank - len(spec))]):
        dims += [*(axis for axis in axes_of_entry(entry) if axis in axes), dim]
    return _Apart(dims=tuple(dims), whole=tuple(axis for axis in axes if axis not in dims))


def _vmapped(
    run: Callable[..., Any],
    axes: Sequence[str],
    mesh: Mapping[str, int],
    entering: Sequence[_Apart],
    leaving: Sequence[_Apart],
) -> Callable[..., Any]:
    """A body under one `vmap` for each axis, the first outermost, from arrays apart to arrays apart."""
    places_in = [_Apart(dims=apart.dims, whole=()) for apart in entering]
    in_axes = [
        dict(zip(own, apart.positions(own), strict=True))
        for apart in places_in
        for own in [[axis for axis in axes if axis in apart.dims]]
    ]
    out_axes = [dict(zip(axes, apart.positions(axes), strict=True)) for apart in leaving]
    for axis in reversed(axes):
        run = jax.vmap(
            run,
            in_axes=tuple(places.get(axis) for places in in_axes),
            out_axes=[places[axis] for places in out_axes],
            axis_name=axis,
            axis_size=mesh[axis],
        )
    return run


def _split(x: Any, apart: _Apart, mesh: Mapping[str, int]) -> Any:
    """An array with its split dims reshaped into their axes and their parts."""
    shape: list[int] = []
    split = 1
    for dim in apart.dims:
        if isinstance(dim, str):
            shape.append(mesh[dim])
            split *= mesh[dim]
        else:
            shape.append(x.shape[dim] // split)
            split = 1
    return jnp.reshape(x, shape) if math.prod(shape) and len(shape) > x.ndim else x


def _of_first(x: Any, whole: int) -> Any:
    """What the first device has, of results that are the same on all along the leading dims."""
    for _ in range(whole):
        x = lax.index_in_dim(x, 0, keepdims=False)
    return x


def _without_copies(jaxpr: Any, source: Any) -> Any:
    """A closed jaxpr in which the first of what was only repeated is what was repeated, and a choice of one is that one.

    The equations that are of this module are at the line of the `shard_map`, the `source`.
    """
    body = opened(jaxpr)
    makers = {var: eqn for eqn in body.eqns for var in eqn.outvars}
    renamed: dict[Any, Any] = {}

    def made_by(atom: Any, name: str) -> Any:
        eqn = None if isinstance(atom, jex_core.Literal) else makers.get(renamed.get(atom, atom))
        return eqn if eqn is not None and eqn.primitive.name == name else None

    for eqn in body.eqns:
        if eqn.primitive.name == "select_n" and len(set(map(id, eqn.invars[1:]))) == 1:
            renamed[eqn.outvars[0]] = renamed.get(eqn.invars[1], eqn.invars[1])
        if eqn.primitive.name != "squeeze" or tuple(eqn.params["dimensions"]) != (0,):
            continue
        taken = made_by(eqn.invars[0], "slice")
        repeated = None if taken is None else made_by(taken.invars[0], "broadcast_in_dim")
        if repeated is None or 0 in repeated.params["broadcast_dimensions"]:
            continue
        one, first = repeated.invars[0], eqn.outvars[0]
        if one.aval.shape == first.aval.shape and not isinstance(one, jex_core.Literal):
            renamed[first] = renamed.get(one, one)

    eqns = [
        eqn.replace(
            invars=all_named(eqn.invars, renamed),
            source_info=source if lines_of(eqn.source_info)[1].startswith(_HERE) else eqn.source_info,
        )
        for eqn in body.eqns
    ]
    return with_fields(jaxpr, eqns=eqns, outvars=all_named(body.outvars, renamed))
