"""Dead code: equations whose results nothing reads.

JAX's own removal leaves Pallas kernels, for what they may do besides returning results, and all that they read. XLA would
drop them, but a TPU's kernel that is not split by hand does not lower at all on several devices.
"""

from __future__ import annotations

from typing import Any

from jax.interpreters import partial_eval

from planner.program.jaxpr.bodies import opened, with_bodies, with_fields
from planner.program.jaxpr.variables import variables_in

KERNEL = "pallas_call"


def without_dead_code(body: Any) -> Any:
    """An open body without its dead code, bodies in it included; what it takes and returns stays."""
    kept = _by_jax(body)
    without = without_dead_kernels(kept)
    return kept if without is kept else _by_jax(without)


def _by_jax(body: Any) -> Any:
    return partial_eval.dce_jaxpr(body, [True] * len(body.outvars), instantiate=True)[0]


def without_dead_kernels(jaxpr: Any) -> Any:
    """A program, open or closed, without Pallas kernels that have no effect and whose results reach nothing that has one.

    Bodies included, all of whose results count as read; the same object where there are no such kernels.
    """
    body = opened(jaxpr)
    read = variables_in(body.outvars)
    eqns: list[Any] = []
    for eqn in reversed(body.eqns):
        live = bool(eqn.effects) or not read.isdisjoint(eqn.outvars)
        if live:
            read |= variables_in(eqn.invars)
        if live or eqn.primitive.name != KERNEL:
            eqns.append(with_bodies(eqn, lambda inner, _: without_dead_kernels(inner)))
    eqns.reverse()
    if len(eqns) == len(body.eqns) and all(new is old for new, old in zip(eqns, body.eqns, strict=True)):
        return jaxpr
    return with_fields(jaxpr, eqns=eqns)
