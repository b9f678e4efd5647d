"""A program for one device with sums of 16-bit floats taken in float32: what rounding alone makes of a result."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from planner.program.jaxpr.bodies import body_of, equations_of, opened, put_body, structure_of
from planner.program.jaxpr.rewrite import constrained
from planner.program.traced import Program


def narrowest_float(program: Program) -> str | None:
    """The floating-point type of fewest significant bits that an op of the program makes, or None."""
    found: set[str] = set()

    for eqn in equations_of(program.jaxpr):
        for var in eqn.outvars:
            dtype = getattr(var.aval, "dtype", None)
            if dtype is not None and jax.dtypes.issubdtype(dtype, np.floating):
                found.add(str(dtype))
    return max(found, key=lambda name: float(jax.numpy.finfo(name).eps), default=None)


def widened(program: Program, kinds: Container[str]) -> Callable[..., list[Any]]:
    """The program as a function of its flat arguments, for one device, with these ops of 16-bit floats done in float32."""
    return constrained(replace(program, jaxpr=_widen(program.jaxpr, kinds)), lambda slot: ())


def _widen(jaxpr: Any, kinds: Container[str]) -> Any:
    body = opened(jaxpr)
    eqns: list[Any] = []
    for eqn in body.eqns:
        structure = structure_of(eqn)
        params = dict(eqn.params)
        for place in structure.bodies if structure else ():
            put_body(params, place, _widen(body_of(eqn, place), kinds))
        narrow = [str(getattr(v.aval, "dtype", "")) in ("bfloat16", "float16") for v in (*eqn.invars, *eqn.outvars)]
        eqns.append(_in_float32(eqn) if eqn.primitive.name in kinds and all(narrow) else eqn.replace(params=params))
    new = body.replace(eqns=eqns)
    return new if jaxpr is body else jaxpr.replace(jaxpr=new)


def _in_float32(eqn: Any) -> Any:
    """The equation as a call that converts its operands to float32 and its results back."""
    params = dict(eqn.params)
    if params.get("preferred_element_type") is not None:
        params["preferred_element_type"] = np.dtype(np.float32)

    def wide(*operands: Any) -> list[Any]:
        results = eqn.primitive.bind(*(x.astype(np.float32) for x in operands), **params)
        values = results if eqn.primitive.multiple_results else [results]
        return [x.astype(var.aval.dtype) for x, var in zip(values, eqn.outvars, strict=True)]

    avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars]
    call = opened(jax.make_jaxpr(jax.jit(wide))(*avals)).eqns[0]
    return call.replace(invars=list(eqn.invars), outvars=list(eqn.outvars))
