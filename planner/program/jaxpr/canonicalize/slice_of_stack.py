"""A slice of a stack, read from the stack and written into it, in the equations of a loop's body.

A slice that is nothing but updated (a cache into which a token is written) is updated within the stack, and read from it
afterwards; or, where nothing reads it afterwards, read at the start of the body and updated at its end. Any other is read
at the start of the body and written at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import primitives

from planner.program.jaxpr.bodies import fresh_var
from planner.program.jaxpr.calls import equations_by

_SCATTERS = (
    primitives.scatter_p,
    primitives.scatter_add_p,
    primitives.scatter_max_p,
    primitives.scatter_min_p,
    primitives.scatter_mul_p,
)
_UNIT_DIMS = ("reshape", "squeeze", "broadcast_in_dim")
"""Primitives that may add or take away dims of extent 1 and do nothing else."""


def is_update(eqn: Any) -> bool:
    """Whether an equation gives its first operand with a part of it written over."""
    return eqn.primitive is primitives.dynamic_update_slice_p or eqn.primitive in _SCATTERS


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """What a trip takes of a stack, variable `old`, and what it gives back for it, `new`; the `index` of the trip's slice.

    `stack` is the stack at the start of the trip, `source` the loop's source line.
    """

    old: Any
    new: Any
    stack: Any
    index: Any
    source: Any


def in_stack(eqns: Sequence[Any], returned: Sequence[Any], part: Slice) -> tuple[list[Any], Any]:
    """The equations of a body with a slice read from its stack and written into it, and the stack at their end.

    `returned` is what else the body gives back.
    """
    updates = _updates(eqns, returned, part)
    if updates is None:
        stack = fresh_var(part.stack)
        read = partial(_read, shape=part.old.aval.shape)
        return [
            *_steps(read, [part.stack, part.index], part.old, part.source),
            *eqns,
            *_steps(_written, [part.stack, part.new, part.index], stack, part.source),
        ], stack
    stack = part.stack
    written: list[Any] = []
    for number, step in updates.steps.items():
        before, eqn = stack, eqns[number]
        if step is not _same:
            stack = fresh_var(before)
            written += _steps(step, [before, part.index, *eqn.invars[1:]], stack, eqn.source_info)
    left = [eqn for number, eqn in enumerate(eqns) if number not in updates.removed]
    if updates.late:
        read = partial(_read, shape=part.old.aval.shape)
        return [*_steps(read, [part.stack, part.index], part.old, part.source), *left, *written], stack
    last = max(updates.steps)
    read = partial(_read, shape=eqns[last].outvars[0].aval.shape)
    written += _steps(read, [stack, part.index], eqns[last].outvars[0], eqns[last].source_info)
    place = last + 1 - len(updates.steps)
    return [*left[:place], *written, *left[place:]], stack


Step = Callable[..., Any]
"""From a stack, the index of a slice and the further operands of an equation to the stack as that makes it."""


def _same(stack: Any, index: Any, *operands: Any) -> Any:
    """The stack, for an equation that gives the slice another shape."""
    del index, operands
    return stack


@dataclass(frozen=True, slots=True, kw_only=True)
class _Updates:
    """By number of the equations that update a slice: what does so in its stack; `late`: it is only read before.

    `removed` are the equations for which nothing else stands then.
    """

    steps: dict[int, Step]
    removed: frozenset[int]
    late: bool


def _updates(eqns: Sequence[Any], returned: Sequence[Any], part: Slice) -> _Updates | None:
    """How a slice is updated; None where something else is done to it, or it is read both before and after.

    What reads the slice as it was before an update would have to read a copy of the stack.
    """
    made = {var: number for number, eqn in enumerate(eqns) for var in eqn.outvars}
    chain, var = list[int](), part.new
    while var is not part.old:
        number = None if isinstance(var, jex_core.Literal) else made.get(var)
        if number is None or not (is_update(eqns[number]) or _adds_unit_dims(eqns[number])):
            return None
        chain.append(number)
        var = eqns[number].invars[0]
    chain.reverse()
    places = [place for place, number in enumerate(chain) if is_update(eqns[number])]
    if not places:
        return None
    reads = [id(atom) for eqn in eqns for atom in eqn.invars] + [id(atom) for atom in returned]
    # What else reads the slice: as it was, between its updates, as it is in the end.
    others = [reads.count(id(eqns[number].invars[0])) - 1 for number in chain]
    before, between = sum(others[: places[0] + 1]), sum(others[places[0] + 1 : places[-1] + 1])
    after = sum(others[places[-1] + 1 :]) + reads.count(id(part.new))
    steps = {number: _step(eqns[number], part) for number in chain[: places[-1] + 1]}
    known = {number: step for number, step in steps.items() if step is not None}
    if between or (before and after) or len(known) < len(steps):
        return None
    return _Updates(steps=known, removed=frozenset(chain[places[0] :]) if before else frozenset(known), late=before > 0)


def _adds_unit_dims(eqn: Any) -> bool:
    if eqn.primitive.name not in _UNIT_DIMS or (eqn.primitive.name == "reshape" and eqn.params.get("dimensions")):
        return False
    return _extents(eqn.invars[0].aval.shape) == _extents(eqn.outvars[0].aval.shape)


def _extents(shape: Sequence[int]) -> list[int]:
    """The extents that are not 1."""
    return [extent for extent in shape if extent != 1]


def _step(eqn: Any, part: Slice) -> Step | None:
    """What does in a stack what an equation does to a slice of it; None where nothing is known that does."""
    whole = tuple(part.old.aval.shape)
    if not is_update(eqn):
        return _same
    value = tuple(eqn.invars[0].aval.shape)
    if eqn.primitive is primitives.dynamic_update_slice_p:
        return partial(_updated, _places(value, whole))
    signed = np.issubdtype(eqn.invars[1].aval.dtype, np.signedinteger)
    return partial(_scattered, eqn, value == whole) if signed and value in (whole, (1, *whole)) else None


def _places(value: Sequence[int], whole: Sequence[int]) -> list[int | None]:
    """For every dim of a slice the dim of a value of the same elements; None for one of extent 1."""
    dims = iter([dim for dim, extent in enumerate(value) if extent != 1])
    return [None if extent == 1 else next(dims) for extent in whole]


def _steps(function: Callable[..., Any], operands: Sequence[Any], result: Any, source: Any) -> list[Any]:
    return equations_by(function, operands, [result], source)[0]


# ---------------------------------------------------------------- what is computed


def _read(stack: Any, index: Any, *, shape: tuple[int, ...]) -> Any:
    sizes = (1, *stack.shape[1:])
    found = lax.dynamic_slice(stack, _starts(stack, index), sizes, allow_negative_indices=False)
    return lax.squeeze(found, (0,)) if shape == stack.shape[1:] else lax.reshape(found, shape)


def _written(stack: Any, new: Any, index: Any) -> Any:
    return lax.dynamic_update_slice(stack, new[None], _starts(stack, index), allow_negative_indices=False)


def _starts(stack: Any, index: Any) -> tuple[Any, ...]:
    return (index, *(0 for _ in stack.shape[1:]))


def _updated(places: Sequence[int | None], stack: Any, index: Any, update: Any, *starts: Any) -> Any:
    """A stack with an update of a slice that is given with other dims of extent 1, at `places`."""
    sizes = (1, *(1 if dim is None else update.shape[dim] for dim in places))
    dtype = starts[0].dtype if starts else index.dtype
    at = [jnp.zeros((), dtype) if dim is None else starts[dim] for dim in places]
    moved = (index.astype(dtype), *at)
    return lax.dynamic_update_slice(stack, lax.reshape(update, sizes), moved, allow_negative_indices=False)


def _scattered(eqn: Any, added: bool, stack: Any, index: Any, indices: Any, updates: Any) -> Any:
    """A stack with what an equation scatters into a slice, to which the dim of the stack is `added` or an own one is."""
    dims = eqn.params["dimension_numbers"]
    if added:
        dims = lax.ScatterDimensionNumbers(
            update_window_dims=dims.update_window_dims,
            inserted_window_dims=(0, *(dim + 1 for dim in dims.inserted_window_dims)),
            scatter_dims_to_operand_dims=tuple(dim + 1 for dim in dims.scatter_dims_to_operand_dims),
            operand_batching_dims=tuple(dim + 1 for dim in dims.operand_batching_dims),
            scatter_indices_batching_dims=dims.scatter_indices_batching_dims,
        )
    places = dims.scatter_dims_to_operand_dims
    layer = jnp.broadcast_to(index.astype(indices.dtype), (*indices.shape[:-1], 1))
    if 0 in places:
        # The slice has one place along this dim: what was meant for another is dropped, or moved to it.
        place = places.index(0)
        own = indices[..., place : place + 1]
        if eqn.params["mode"] is not lax.GatherScatterMode.CLIP:
            layer = jnp.where(own == 0, layer, -1)
        indices = jnp.concatenate([indices[..., :place], layer, indices[..., place + 1 :]], axis=-1)
    else:
        indices = jnp.concatenate([layer, indices], axis=-1)
        dims = dims._replace(scatter_dims_to_operand_dims=(0, *places))
    return eqn.primitive.bind(stack, indices, updates, **{**eqn.params, "dimension_numbers": dims})
