"""Equations of functions: what a function computes, or JAX lowers a call to, put into a program as its own equations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import ShapedArray

from planner.program.jaxpr.bodies import LOWERED, opened, with_bodies, with_fields
from planner.program.jaxpr.placements.meshless import equations_made
from planner.program.jaxpr.variables import all_named


def variable(shape: tuple[int, ...], dtype: Any) -> Any:
    """A new variable."""
    return equations_made(lambda x: x, jax.ShapeDtypeStruct(shape, dtype)).invars[0]


def is_zero(atom: Any) -> bool:
    """Whether what an equation reads is a number of the program's own, and zero."""
    if not isinstance(atom, jex_core.Literal) or np.ndim(atom.val):
        return False
    number = np.asarray(atom.val)
    return number.dtype.kind not in "bOSU" and not number.any()


def keeps_all_bits(eqn: Any) -> bool:
    """Whether an equation rounds to the type that its operand has: so policies of checkpoints mark what they save."""
    if eqn.primitive.name != "reduce_precision":
        return False
    params, dtype = eqn.params, eqn.outvars[0].aval.dtype
    return (params["exponent_bits"], params["mantissa_bits"]) == (jnp.finfo(dtype).nexp, jnp.finfo(dtype).nmant)


def equations_by(
    function: Callable[..., Any],
    operands: Sequence[Any],
    results: Sequence[Any],
    source: Any,
    *,
    axis_env: Sequence[tuple[str, int]] = (),
) -> tuple[list[Any], dict[Any, Any]]:
    """The equations by which a function makes variables of operands, all at one source line outside of bodies.

    Results that it returns as they came in, or twice, are not made: they are the keys of a mapping to what they are.
    `axis_env` are the named axes that the function may use, and their sizes.
    """
    avals = [
        ShapedArray(v.aval.shape, v.aval.dtype, weak_type=v.aval.weak_type, memory_space=v.aval.memory_space)
        for v in operands
    ]
    made = equations_made(function, *avals, axis_env=axis_env)
    names: dict[Any, Any] = dict(zip(made.invars, operands, strict=True))
    others: dict[Any, Any] = {}
    for inner, result in zip(made.outvars, results, strict=True):
        if isinstance(result, jex_core.DropVar):
            continue
        if isinstance(inner, jex_core.Literal) or inner in names:
            others[result] = inner if isinstance(inner, jex_core.Literal) else names[inner]
        else:
            names[inner] = result

    return [
        eqn.replace(invars=all_named(eqn.invars, names), outvars=all_named(eqn.outvars, names), source_info=source)
        for eqn in made.eqns
    ], others


def call_like(eqn: Any, function: Callable[..., Any], *, axis_env: Sequence[tuple[str, int]] = ()) -> Any:
    """An equation that calls a function of the operands of another, in its place."""
    avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype, weak_type=v.aval.weak_type) for v in eqn.invars]
    (call,) = equations_made(jax.jit(function), *avals, axis_env=axis_env).eqns
    return call.replace(invars=eqn.invars, outvars=eqn.outvars, source_info=eqn.source_info)


def scanned(
    params: Mapping[str, Any], run: Callable[..., Sequence[Any]], consts: Iterable[Any], carry: Iterable[Any], xs: Any
) -> list[Any]:
    """What a loop like one of these params makes of a body that takes constants, carry and slices: its carry and stacks."""
    consts, begin = tuple(consts), list(carry)

    def trip(carried: Sequence[Any], slices: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        made = run(*consts, *carried, *slices)
        return made[: len(begin)], made[len(begin) :]

    how = {name: params[name] for name in ("length", "reverse", "unroll")}
    left, stacked = lax.scan(trip, begin, list(xs), **how)
    return [*left, *stacked]


def with_lowered(jaxpr: Any) -> Any:
    """A program whose calls of `LOWERED` are `jit`s of what JAX lowers them to; the same object where it has none.

    A call that cannot be lowered alone, such as one with named axes inside, stays as it is.
    """
    body = opened(jaxpr)
    eqns: list[Any] = []
    for eqn in body.eqns:
        lowered = eqn.primitive.name in LOWERED
        eqns.append(_lowered(eqn) if lowered else with_bodies(eqn, lambda inner, _: with_lowered(inner)))
    if all(new is old for new, old in zip(eqns, body.eqns, strict=True)):
        return jaxpr
    return with_fields(jaxpr, eqns=eqns)


def _lowered(eqn: Any) -> Any:
    """A call as a `jit` of what its primitive computes; the call where that fails alone."""
    try:
        call = call_like(eqn, lambda *arrays: eqn.primitive.impl(*arrays, **eqn.params))
    except Exception:  # the body of a kernel, or of named axes: it is counted or listed as one op
        return eqn
    return with_bodies(call, lambda inner, _: with_lowered(inner))
