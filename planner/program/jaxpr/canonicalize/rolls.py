"""Rolls: an array moved along one dim, which programs write in slices and paddings, made one primitive.

`jnp.roll`, and whoever puts the two parts of an array together the other way round, slice and concatenate; stencils slice
what they have padded, with zeros or with the other end; their gradients pad, add and cut. A slice keeps its dim whole on
every device, while a roll needs of its neighbours no more than it shifts by: as an op of its own it can be split. The
results are the same to the bit, but for the sign of zeros that a gradient adds up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial, reduce
from typing import Any

import jax.extend.core as jex_core
import jax.numpy as jnp
from jax import lax
from jax.core import ShapedArray
from jax.interpreters import ad, batching, mlir

from planner.program.jaxpr.bodies import Place, Structure, opened, structure_of, unchanging, with_bodies, with_fields
from planner.program.jaxpr.calls import equations_by
from planner.program.jaxpr.canonicalize.windows import Shift, Windows
from planner.program.jaxpr.variables import all_named

roll_p = jex_core.Primitive("roll")
"""Its params: `dimension`; `shift`, by how many places every element moves up; and `fill`, the number that enters, or None,
where those at the end move to the front."""


def roll(x: Any, shift: int, dimension: int, fill: float | None = None) -> Any:
    """An array whose elements are moved along a dim by `shift` places, which may be negative but not 0.

    What moves beyond one end comes in at the other, or with `fill` that number does.
    """
    return roll_p.bind(x, shift=shift, dimension=dimension, fill=fill)


def rolled_between(before: Any, x: Any, after: Any, shift: int, dimension: int) -> Any:
    """What a roll makes of an array `x` between `before` and `after`.

    Of these it needs one alone, with as many elements as it shifts by. As a slice of what they make together XLA's TPU
    compiler fuses it with its neighbours, which it does not do where slices are put together.
    """
    extent = x.shape[dimension]
    if shift > 0:
        edge = lax.slice_in_dim(before, before.shape[dimension] - shift, None, axis=dimension)
        return lax.slice_in_dim(lax.concatenate([edge, x], dimension), 0, extent, axis=dimension)
    edge = lax.slice_in_dim(after, 0, -shift, axis=dimension)
    return lax.slice_in_dim(lax.concatenate([x, edge], dimension), -shift, extent - shift, axis=dimension)


def _in_two(x: Any, *, shift: int, dimension: int, fill: float | None) -> Any:
    """A roll as programs write it."""
    if fill is not None:
        return _filled(x, shift, dimension, fill)
    at = -shift % x.shape[dimension]
    parts = lax.slice_in_dim(x, at, None, axis=dimension), lax.slice_in_dim(x, 0, at, axis=dimension)
    return lax.concatenate(parts, dimension)


def _filled(x: Any, shift: int, dimension: int, fill: float) -> Any:
    config = [(shift, -shift, 0) if d == dimension else (0, 0, 0) for d in range(x.ndim)]
    return lax.pad(x, jnp.asarray(fill, x.dtype), config)


def _rolled_aval(x: Any, **_: object) -> Any:
    return ShapedArray(x.shape, x.dtype)


def _forward(tangent: Any, x: Any, *, shift: int, dimension: int, fill: float | None) -> Any:
    del x
    return roll(tangent, shift, dimension, None if fill is None else 0.0)


def _transposed(cotangent: Any, x: Any, *, shift: int, dimension: int, fill: float | None) -> Sequence[Any]:
    del x
    return (roll(cotangent, -shift, dimension, fill),)


def _batched(operands: Sequence[Any], dims: Sequence[Any], *, shift: int, dimension: int, fill: float | None) -> Any:
    return roll(operands[0], shift, dimension + (dims[0] <= dimension), fill), dims[0]


roll_p.def_impl(_in_two)
roll_p.def_abstract_eval(_rolled_aval)
ad.defjvp(roll_p, _forward)
ad.primitive_transposes[roll_p] = _transposed
batching.primitive_batchers[roll_p] = _batched
mlir.register_lowering(roll_p, mlir.lower_fun(_in_two, multiple_results=False))


def _on_tpu(x: Any, *, shift: int, dimension: int, fill: float | None) -> Any:
    return rolled_between(x, x, x, shift, dimension) if fill is None else _filled(x, shift, dimension, fill)


mlir.register_lowering(roll_p, mlir.lower_fun(_on_tpu, multiple_results=False), platform="tpu")


# ---------------------------------------------------------------- found in programs

_PADDING = "_pad"
"""The name of the call that `jnp.pad` is."""
_MADE_OF = frozenset({"add", "add_any", "concatenate", "pad", "roll", "slice", "split"})


def with_rolls(jaxpr: Any) -> Any:
    """The program with a primitive in the place of what moves an array along its dims.

    The program itself where there is none.
    """
    return _with_rolls(jaxpr, {})


def _with_rolls(jaxpr: Any, numbers: Mapping[Any, float]) -> Any:
    """The same of a body some of whose variables are known to be numbers."""
    body = opened(jaxpr)
    eqns, others, changed = list[Any](), dict[Any, Any](), False
    windows = Windows(numbers=dict(numbers))
    for eqn in _simplified(body.eqns, others):
        structure = structure_of(eqn)
        if structure is not None:
            eqns.append(with_bodies(eqn, partial(_with_rolls_inside, windows, eqn, structure)))
            changed |= eqns[-1] is not eqn
            continue
        windows.take_down(eqn)
        moved = windows.moves(eqn.outvars[0]) if len(eqn.outvars) == 1 else None
        if moved is None:
            eqns.append(eqn)
            continue
        sources = [source for source, _ in moved]
        function = partial(_moved, [moves for _, moves in moved])
        eqns += equations_by(function, sources, eqn.outvars, eqn.source_info)[0]
        changed = True
    if not changed and not others:
        return jaxpr
    outvars = all_named(body.outvars, others)
    return with_fields(jaxpr, eqns=_read(eqns, outvars), outvars=outvars)


def _with_rolls_inside(windows: Windows, eqn: Any, structure: Structure, inner: Any, place: Place) -> Any:
    taken = zip(opened(inner).invars, unchanging(eqn, structure, place[0]), strict=False)
    numbers = {variable: windows.number(operand) for variable, operand in taken if not variable.aval.shape}
    return _with_rolls(inner, {variable: number for variable, number in numbers.items() if number is not None})


def _read(eqns: Sequence[Any], outvars: Sequence[Any]) -> list[Any]:
    """The equations but those that moves were made of and that nobody reads any more."""
    used, kept = set(filter(_is_variable, outvars)), list[Any]()
    for eqn in reversed(eqns):
        if eqn.primitive.name not in _MADE_OF or not used.isdisjoint(eqn.outvars):
            used.update(filter(_is_variable, eqn.invars))
            kept.append(eqn)
    return kept[::-1]


def _is_variable(atom: Any) -> bool:
    return not isinstance(atom, jex_core.Literal)


def _simplified(eqns: Sequence[Any], others: dict[Any, Any]) -> Sequence[Any]:
    """The equations, those of paddings in the place of calls, and none that puts an array and empty ones together.

    So `jnp.roll` writes a shift by 0. `others` takes what is not made by any equation.
    """
    found = list[Any]()
    for eqn in eqns:
        if any(_is_variable(atom) and atom in others for atom in eqn.invars):
            eqn = eqn.replace(invars=all_named(eqn.invars, others))
        if eqn.params.get("name") == _PADDING and structure_of(eqn) is not None:
            made, same = equations_by(
                jex_core.jaxpr_as_fun(eqn.params["jaxpr"]), eqn.invars, eqn.outvars, eqn.source_info
            )
            found += made
            others.update(same)
        elif eqn.primitive.name == "concatenate" and len(parts := [x for x in eqn.invars if x.aval.size]) == 1:
            others[eqn.outvars[0]] = parts[0]
        else:
            found.append(eqn)
    return found


def _moved(moves: Sequence[Sequence[Shift]], *sources: Any) -> Any:
    """The sum of arrays, each moved along its dims."""
    terms = [
        reduce(lambda x, move: roll(x, move.shift, move.dimension, move.fill), own, source)
        for own, source in zip(moves, sources, strict=True)
    ]
    return reduce(lax.add, terms)
