"""Rolls: an array turned around along one dim, which programs write as slices put together, made one primitive.

`jnp.roll`, and whoever puts the two parts of an array together the other way round, slice and concatenate; their gradient
pads and adds. A slice keeps its dim whole on every device, while a roll needs of its neighbours no more than it shifts by:
as an op of its own it can be split. The results are the same to the bit, but for the sign of zeros that a gradient adds up.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax.extend.core as jex_core
import jax.numpy as jnp
from jax import lax
from jax.core import ShapedArray
from jax.interpreters import ad, batching, mlir

from planner.program.jaxpr.bodies import opened, structure_of, with_bodies
from planner.program.jaxpr.calls import equations_by

roll_p = jex_core.Primitive("roll")
"""Its params: `dimension`, and `shift`, by how many places every element moves up, those at the end to the front."""


def roll(x: Any, shift: int, dimension: int) -> Any:
    """An array whose elements are moved along a dim by `shift` places, which may be negative but not 0."""
    return roll_p.bind(x, shift=shift, dimension=dimension)


def joined(before: Any, x: Any, behind: Any, shift: int, dimension: int) -> Any:
    """What a roll makes of an array `x` that stands after `before` and ahead of `behind`.

    Of these it needs one alone, with as many elements as it shifts by. As a slice of what they make together XLA's TPU
    compiler fuses it with its neighbours, which it does not do where slices are put together.
    """
    extent = x.shape[dimension]
    if shift > 0:
        edge = lax.slice_in_dim(before, before.shape[dimension] - shift, None, axis=dimension)
        return lax.slice_in_dim(lax.concatenate([edge, x], dimension), 0, extent, axis=dimension)
    edge = lax.slice_in_dim(behind, 0, -shift, axis=dimension)
    return lax.slice_in_dim(lax.concatenate([x, edge], dimension), -shift, extent - shift, axis=dimension)


def _in_two(x: Any, *, shift: int, dimension: int) -> Any:
    """A roll as programs write it."""
    at = -shift % x.shape[dimension]
    parts = lax.slice_in_dim(x, at, None, axis=dimension), lax.slice_in_dim(x, 0, at, axis=dimension)
    return lax.concatenate(parts, dimension)


def _rolled_aval(x: Any, *, shift: int, dimension: int) -> Any:
    del shift, dimension
    return ShapedArray(x.shape, x.dtype)


def _transposed(cotangent: Any, x: Any, *, shift: int, dimension: int) -> Sequence[Any]:
    del x
    return (roll(cotangent, -shift, dimension),)


def _batched(operands: Sequence[Any], dims: Sequence[Any], *, shift: int, dimension: int) -> Any:
    return roll(operands[0], shift, dimension + (dims[0] <= dimension)), dims[0]


roll_p.def_impl(_in_two)
roll_p.def_abstract_eval(_rolled_aval)
ad.deflinear2(roll_p, _transposed)
batching.primitive_batchers[roll_p] = _batched
mlir.register_lowering(roll_p, mlir.lower_fun(_in_two, multiple_results=False))
mlir.register_lowering(
    roll_p,
    mlir.lower_fun(
        lambda x, *, shift, dimension: joined(x, x, x, shift, dimension),
        multiple_results=False,
    ),
    platform="tpu",
)


# ---------------------------------------------------------------- found in programs

Part = tuple[Any, int, int, int]
"""Of a variable, along a dim, from an element up to another: what a slice is."""


def with_rolls(jaxpr: Any) -> Any:
    """The program with a primitive in the place of what puts the two parts of an array together the other way round.

    The program itself where there is none. What such parts are made by stays, and is read by nobody else.
    """
    body = opened(jaxpr)
    eqns, changed, parts, padded = list[Any](), False, dict[Any, Part](), dict[Any, tuple[Part, int]]()
    for eqn in body.eqns:
        structure = structure_of(eqn)
        found = _found(eqn, parts, padded) if structure is None else None
        if structure is not None:
            eqns.append(with_bodies(eqn, structure, lambda inner, _: with_rolls(inner)))
        elif found is not None:
            operand, shift, dimension = found
            function = partial(roll, shift=shift, dimension=dimension)
            eqns += equations_by(function, [operand], eqn.outvars, eqn.source_info)[0]
        else:
            eqns.append(eqn)
        changed |= eqns[-1] is not eqn
    if not changed:
        return jaxpr
    new = body.replace(eqns=eqns)
    return new if jaxpr is body else jaxpr.replace(jaxpr=new)


def _found(eqn: Any, parts: dict[Any, Part], padded: dict[Any, tuple[Part, int]]) -> tuple[Any, int, int] | None:
    """The roll that an equation makes: of what, by how much, along which dim. Takes down the parts that it makes."""
    name, params = eqn.primitive.name, eqn.params
    match name:
        case "slice" | "split":
            _take_down(eqn, parts)
        case "pad":
            part = None if isinstance(eqn.invars[0], jex_core.Literal) else parts.get(eqn.invars[0])
            place = _padding(params["padding_config"], eqn.invars[1])
            if part is not None and place is not None and place[0] == part[1]:
                padded[eqn.outvars[0]] = part, place[1]
        case "concatenate" if len(eqn.invars) == 2:
            first, second = (parts.get(v) if not isinstance(v, jex_core.Literal) else None for v in eqn.invars)
            if first is not None and second is not None and first[1] == params["dimension"]:
                return _turned(eqn, second, first)
        case "add_any":
            sides = [padded[v] for v in eqn.invars if not isinstance(v, jex_core.Literal) and v in padded]
            if len(sides) == 2:
                (low, low_at), (high, high_at) = sorted(sides, key=lambda side: side[0][2])
                if high_at == 0 and low_at == high[3] - high[2]:
                    return _turned(eqn, low, high)
        case _:
            pass
    return None


def _turned(eqn: Any, low: Part, high: Part) -> tuple[Any, int, int] | None:
    """The roll that puts `high` before `low`; None where they are not all of one array, each element once."""
    (source, dim, start, at), (other, other_dim, other_at, stop) = low, high
    extent = source.aval.shape[dim]
    if source is not other or dim != other_dim or start or at != other_at or stop != extent:
        return None
    if eqn.outvars[0].aval.shape != source.aval.shape:
        return None
    up = extent - at
    return source, up if 2 * up <= extent else -at, dim


def _take_down(eqn: Any, parts: dict[Any, Part]) -> None:
    """Takes down what a slice or a split makes, where it cuts one dim."""
    (operand,), params = eqn.invars, eqn.params
    if isinstance(operand, jex_core.Literal):
        return
    if eqn.primitive.name == "split":
        start = 0
        for var, size in zip(eqn.outvars, params["sizes"], strict=True):
            parts[var] = operand, params["axis"], start, start + size
            start += size
        return
    starts: Sequence[int] = params["start_indices"]
    limits: Sequence[int] = params["limit_indices"]
    cut = [d for d, extent in enumerate(operand.aval.shape) if (starts[d], limits[d]) != (0, extent)]
    if len(cut) == 1 and all(stride == 1 for stride in params["strides"] or ()):
        parts[eqn.outvars[0]] = operand, cut[0], int(starts[cut[0]]), int(limits[cut[0]])


def _padding(config: Sequence[tuple[int, int, int]], value: Any) -> tuple[int, int] | None:
    """The dim that is padded with zeros, and by how many in front; None where it is none or not one, or both ends are."""
    padded = [d for d, entry in enumerate(config) if any(entry)]
    if len(padded) != 1 or not isinstance(value, jex_core.Literal) or bool(jnp.any(value.val)):
        return None
    low, high, inner = config[padded[0]]
    return (padded[0], int(low)) if inner == 0 and min(low, high) == 0 else None
