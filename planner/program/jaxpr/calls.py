"""Equations of functions: what a function computes, put into a program as equations of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex_core
import numpy as np

from planner.program.jaxpr.bodies import opened


def variable(shape: tuple[int, ...], dtype: Any) -> Any:
    """A new variable."""
    return opened(jax.make_jaxpr(lambda x: x)(jax.ShapeDtypeStruct(shape, dtype))).invars[0]


def is_zero(atom: Any) -> bool:
    """Whether what an equation reads is a number of the program's own, and zero."""
    if not isinstance(atom, jex_core.Literal) or np.ndim(atom.val):
        return False
    number = np.asarray(atom.val)
    return number.dtype.kind not in "bOSU" and not number.any()


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
    avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype, weak_type=v.aval.weak_type) for v in operands]
    made = opened(jax.make_jaxpr(function, axis_env=list(axis_env))(*avals))
    names: dict[Any, Any] = dict(zip(made.invars, operands, strict=True))
    others: dict[Any, Any] = {}
    for inner, result in zip(made.outvars, results, strict=True):
        if isinstance(result, jex_core.DropVar):
            continue
        if isinstance(inner, jex_core.Literal) or inner in names:
            others[result] = inner if isinstance(inner, jex_core.Literal) else names[inner]
        else:
            names[inner] = result

    def named(atom: Any) -> Any:
        return atom if isinstance(atom, jex_core.Literal) else names.get(atom, atom)

    return [
        eqn.replace(invars=list(map(named, eqn.invars)), outvars=list(map(named, eqn.outvars)), source_info=source)
        for eqn in made.eqns
    ], others
