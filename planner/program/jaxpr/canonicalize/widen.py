"""A program for one device with its sums taken in a wider type: what rounding alone makes of a result."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from planner.program.jaxpr.bodies import equations_of, opened, with_bodies, with_fields
from planner.program.jaxpr.calls import call_like
from planner.program.jaxpr.rewrite import constrained
from planner.program.tracing.traced import Program

WIDER = {"float32": ("bfloat16", "float16"), "float64": ("float32",)}
"""By type what is summed in it: of two steps, so that sums of 16-bit floats need no 64-bit types."""


def narrowest_float(program: Program) -> str | None:
    """The floating-point type of fewest significant bits that an op of the program makes, or None."""
    found: set[str] = set()

    for eqn in equations_of(program.jaxpr):
        for var in eqn.outvars:
            dtype = getattr(var.aval, "dtype", None)
            if dtype is not None and jax.dtypes.issubdtype(dtype, np.floating):
                found.add(str(dtype))
    return max(found, key=lambda name: float(jax.numpy.finfo(name).eps), default=None)


def in_wider_type(program: Program, kinds: Container[str], wide: str) -> Callable[..., list[Any]]:
    """The program as a function of its flat arguments, for one device, with these ops done in a wider type.

    `wide`: "float32", in which ops of 16-bit floats are done, or "float64", in which those of float32 are, which takes
    `jax.enable_x64` when this is called and when the function is.
    """
    return constrained(replace(program, jaxpr=_widen(program.jaxpr, kinds, wide)), lambda slot: ())


def _widen(jaxpr: Any, kinds: Container[str], wide: str) -> Any:
    eqns: list[Any] = []
    for eqn in opened(jaxpr).eqns:
        narrow = [str(getattr(v.aval, "dtype", "")) in WIDER[wide] for v in (*eqn.invars, *eqn.outvars)]
        done = eqn.primitive.name in kinds and all(narrow)
        eqns.append(_done_in(wide, eqn) if done else with_bodies(eqn, lambda inner, _: _widen(inner, kinds, wide)))
    return with_fields(jaxpr, eqns=eqns)


def _done_in(wide: str, eqn: Any) -> Any:
    """The equation as a call that converts its operands to a wider type and its results back."""
    params = dict(eqn.params)
    if params.get("preferred_element_type") is not None:
        params["preferred_element_type"] = np.dtype(wide)

    def done(*operands: Any) -> list[Any]:
        results = eqn.primitive.bind(*(x.astype(wide) for x in operands), **params)
        values = results if eqn.primitive.multiple_results else [results]
        return [x.astype(var.aval.dtype) for x, var in zip(values, eqn.outvars, strict=True)]

    return call_like(eqn, done)
