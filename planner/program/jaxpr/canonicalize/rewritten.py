"""Equations rewritten, one by one, in terms of others that the planner and XLA do more with. The results are the same.

XLA's TPU compiler has no all-reduce of complex numbers: where a summed dim is split, it gathers the terms of all devices
and adds them up on each. Sums of the real and imaginary parts become all-reduces.

An array that is taken apart along a dim is as many slices of it, which are read where it is. Older releases of JAX
write it so themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax import lax

from planner.program.jaxpr.bodies import opened, with_bodies, with_fields
from planner.program.jaxpr.calls import equations_by


def rewritten(jaxpr: Any) -> Any:
    """A program in which such equations are rewritten, those of its bodies too; the same object where it has none."""
    body = opened(jaxpr)
    eqns: list[Any] = []
    for eqn in body.eqns:
        made = _in_other_terms(eqn)
        if made is not None:
            eqns += equations_by(made, eqn.invars, eqn.outvars, eqn.source_info)[0]
        else:
            eqns.append(with_bodies(eqn, lambda inner, _: rewritten(inner)))
    if len(eqns) == len(body.eqns) and all(new is old for new, old in zip(eqns, body.eqns, strict=True)):
        return jaxpr
    return with_fields(jaxpr, eqns=eqns)


def _in_other_terms(eqn: Any) -> Callable[..., Any] | None:
    match eqn.primitive.name:
        case "reduce_sum" if eqn.outvars[0].aval.dtype.kind == "c":
            return lambda x: lax.complex(*(eqn.primitive.bind(part(x), **eqn.params) for part in (lax.real, lax.imag)))
        case "unstack":
            axis = eqn.params["axis"]
            return lambda x: [lax.index_in_dim(x, at, axis, keepdims=False) for at in range(x.shape[axis])]
        case _:
            return None
