"""Distinct stacks: loops whose stacks would have the same type get stacks of other shapes.

A loop fills its stacks slice by slice, so that a TPU's compiler only allocates them where the zeros with which they begin
are its own. It makes zeros of one type once for all loops around, and then writes them, for every loop anew: what an
encoder saves and what a decoder saves of the same shape. A dim of one element keeps them apart, and moves no element.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Any

import jax.extend.core as jex_core
import numpy as np
from jax import lax

from planner.program.jaxpr.bodies import body_of, opened, put_body, structure_of, with_bodies, with_fields
from planner.program.jaxpr.calls import equations_by, variable
from planner.program.jaxpr.variables import is_on_host


def with_distinct_stacks(jaxpr: Any, most: int) -> Any:
    """A program whose loops have stacks of different shapes, those in loops too; the same object where they have anyway.

    Of more than `most` loops with stacks of one type the last have one shape.
    """
    return _rewritten(jaxpr, most, Counter[Hashable]())


def _rewritten(jaxpr: Any, most: int, loops: Counter[Hashable]) -> Any:
    """A body with its stacks kept apart, given how many loops before have stacks of a type."""
    body = opened(jaxpr)
    eqns: list[Any] = []
    for eqn in body.eqns:
        step = with_bodies(eqn, lambda inner, _: _rewritten(inner, most, loops))
        structure = structure_of(step)
        stacks = step.outvars[structure.num_carry :] if structure is not None and structure.kind == "scan" else []
        types = {_type(stack) for stack in stacks if _is_array(stack)}
        before = max((loops[one] for one in types), default=0)
        loops.update(dict.fromkeys(types, 1))
        eqns += _kept_apart(step, structure.num_carry, min(before, most - 1)) if structure and before else [step]
    if len(eqns) == len(body.eqns) and all(map(lambda a, b: a is b, eqns, body.eqns)):
        return jaxpr
    return with_fields(jaxpr, eqns=eqns)


def _is_array(stack: Any) -> bool:
    """Whether a stack is an array of numbers on the device that something may read."""
    aval, dropped = stack.aval, isinstance(stack, jex_core.DropVar) or is_on_host(stack)
    return not dropped and isinstance(aval.dtype, np.dtype) and aval.size > 0


def _type(stack: Any) -> Hashable:
    return stack.aval.shape, stack.aval.dtype


def _kept_apart(loop: Any, carries: int, ones: int) -> list[Any]:
    """A loop whose stacks have so many dims of one element behind the first, and what takes these away behind it."""
    place = ("jaxpr", None)
    inner = body_of(loop, place)
    body, params = opened(inner), dict(loop.params)
    made, left = list(body.outvars), list(loop.outvars)
    within, behind = list[Any](), list[Any]()
    for i in range(carries, len(left)):
        if not _is_array(left[i]):
            continue
        (length, *shape), dtype = left[i].aval.shape, left[i].aval.dtype
        stack = left[i]
        part, left[i] = variable((*(1,) * ones, *shape), dtype), variable((length, *(1,) * ones, *shape), dtype)
        within += _reshaped(made[i], part, loop.source_info)
        behind += _reshaped(left[i], stack, loop.source_info)
        made[i] = part
    put_body(params, place, with_fields(inner, eqns=[*body.eqns, *within], outvars=made))
    return [loop.replace(params=params, outvars=left), *behind]


def _reshaped(array: Any, other: Any, source: Any) -> list[Any]:
    """The equation that gives an array the shape of another variable."""
    return equations_by(lambda x: lax.reshape(x, other.aval.shape), [array], [other], source)[0]
