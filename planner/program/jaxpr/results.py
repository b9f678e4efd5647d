"""The results of a program: fewer of them, and what was computed for those alone."""

from __future__ import annotations

from typing import Any

import jax.extend.core as jex_core

from planner.program.jaxpr.bodies import opened


def without_last(jaxpr: Any, count: int) -> tuple[Any, list[bool]]:
    """The program without its last results, and which of them were computed for nothing else."""
    if not count:
        return jaxpr, []
    body = opened(jaxpr)
    kept, cut = body.outvars[:-count], body.outvars[-count:]
    needed: set[Any] = {atom for atom in kept if not isinstance(atom, jex_core.Literal)}
    computed: set[Any] = set()
    for eqn in reversed(body.eqns):
        computed.update(eqn.outvars)
        if eqn.effects or not needed.isdisjoint(eqn.outvars):
            needed.update(atom for atom in eqn.invars if not isinstance(atom, jex_core.Literal))
    useless = [not isinstance(atom, jex_core.Literal) and atom in computed and atom not in needed for atom in cut]
    new = body.replace(outvars=kept)
    return (new if jaxpr is body else jaxpr.replace(jaxpr=new)), useless


def result_avals(jaxpr: Any) -> list[Any]:
    """The types of what a program returns."""
    return [var.aval for var in opened(jaxpr).outvars]
