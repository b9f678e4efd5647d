"""Sums of complex numbers, made of the sums of their real and imaginary parts.

XLA's TPU compiler has no all-reduce of complex numbers: where a summed dim is split, it gathers the terms of all devices
and adds them up on each. Sums of real numbers become all-reduces. The results are the same.
"""

from __future__ import annotations

from typing import Any

from jax import lax

from planner.program.jaxpr.bodies import opened, with_bodies, with_fields
from planner.program.jaxpr.calls import equations_by


def with_sums_of_parts(jaxpr: Any) -> Any:
    """A program whose sums are of real numbers, those in its bodies too; the same object where it has no others."""
    body = opened(jaxpr)
    eqns: list[Any] = []
    for eqn in body.eqns:
        if eqn.primitive.name == "reduce_sum" and eqn.outvars[0].aval.dtype.kind == "c":
            eqns += equations_by(_of_parts(eqn), eqn.invars, eqn.outvars, eqn.source_info)[0]
        else:
            eqns.append(with_bodies(eqn, lambda inner, _: with_sums_of_parts(inner)))
    if len(eqns) == len(body.eqns) and all(new is old for new, old in zip(eqns, body.eqns, strict=True)):
        return jaxpr
    return with_fields(jaxpr, eqns=eqns)


def _of_parts(eqn: Any) -> Any:
    def made(x: Any) -> Any:
        real, imaginary = (eqn.primitive.bind(part(x), **eqn.params) for part in (lax.real, lax.imag))
        return lax.complex(real, imaginary)

    return made
