"""Equations without bodies on smaller operands: what changes in their params, and kernels, which are called anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from planner.program.jaxpr.origins import origin_of
from planner.program.jaxpr.pallas.pallas_calls import pallas_call_of


class NotInParts(Exception):
    """An equation does not make of smaller operands the smaller results that it should; its text names it."""


def check_part(eqn: Any) -> None:
    """Raises: NotInParts where the results of an equation without bodies are not what its operands make."""
    try:
        made = eqn.primitive.abstract_eval(*(var.aval for var in eqn.invars), **eqn.params)[0]
    except Exception as error:
        raise NotInParts(f"{eqn.primitive.name} at {origin_of(eqn).source}: {error}") from error
    shapes = [aval.shape for aval in (made if eqn.primitive.multiple_results else [made])]
    if shapes != [var.aval.shape for var in eqn.outvars]:
        raise NotInParts(f"{eqn.primitive.name} at {origin_of(eqn).source}")


def on_parts(eqn: Any) -> Callable[..., Sequence[Any]] | None:
    """What computes of smaller operands of a kernel its smaller results; None for other equations."""
    if eqn.primitive.name == "pallas_call":
        return lambda *values: pallas_call_of(eqn.params).smaller(eqn.primitive, values)
    # A kernel with a rule of its user's says so itself.
    return getattr(eqn.params.get("partition"), "on_parts", None)


def check_kernel(eqn: Any, kernel: Callable[..., Sequence[Any]], invars: Sequence[Any], outvars: Sequence[Any]) -> None:
    """Raises: NotInParts where the results of a kernel are not what it makes of smaller operands."""
    try:
        made = jax.eval_shape(kernel, *(jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in invars))
    except Exception as error:  # what a kernel makes of other sizes is its author's
        raise NotInParts(f"{eqn.primitive.name} at {origin_of(eqn).source}: {error}") from error
    if [leaf.shape for leaf in made] != [var.aval.shape for var in outvars]:
        raise NotInParts(f"{eqn.primitive.name} at {origin_of(eqn).source}")


def part_params(eqn: Any, invars: Sequence[Any], outvars: Sequence[Any]) -> dict[str, Any]:
    """The params of an equation without bodies for smaller operands and results."""
    params, name = dict(eqn.params), eqn.primitive.name
    match name:
        case "broadcast_in_dim":
            params["shape"] = outvars[0].aval.shape
        case "reshape":
            params["new_sizes"] = outvars[0].aval.shape
        case "slice":
            limits = zip(params["limit_indices"], eqn.invars[0].aval.shape, invars[0].aval.shape, strict=True)
            params["limit_indices"] = tuple(limit if old == new else new for limit, old, new in limits)
        case "dynamic_slice":
            params["slice_sizes"] = outvars[0].aval.shape
        case "gather":
            sizes = zip(params["slice_sizes"], eqn.invars[0].aval.shape, invars[0].aval.shape, strict=True)
            params["slice_sizes"] = tuple(new if size == old else size for size, old, new in sizes)
        case _:
            pass
    return params
