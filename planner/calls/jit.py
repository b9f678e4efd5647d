"""`planner.jit`: the ergonomics of `jax.jit` for plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax

from cost_models import Topology
from planner.calls.call_form import CallForms
from planner.calls.planned_function import PlannedFunction
from planner.errors import ArgumentError
from planner.options import Options
from planner.plans.process_parts import ProcessLocal
from planner.request.pins import LogicalRules, Pins
from planner.request.place import Like, RequestedMesh


def jit(
    fn: Callable[..., Any] | None = None,
    *,
    devices: Sequence[jax.Device] | None = None,
    topology: str | Topology | None = None,
    mesh: RequestedMesh | None = None,
    axis_names: Sequence[str] | None = None,
    objective: str = "time",
    memory_limit: float | str | None = None,
    pins: Pins | None = None,
    logical_rules: LogicalRules | None = None,
    like: Like | PlannedFunction | None = None,
    process_local: ProcessLocal = (),
    donate_argnums: Sequence[int] | int = (),
    donate_argnames: Sequence[str] | str = (),
    static_argnums: Sequence[int] | int = (),
    static_argnames: Sequence[str] | str = (),
    options: Options | None = None,
) -> Any:
    """`fn` as a `PlannedFunction`: planned when it is called, as `jax.jit` compiles when it is called; also a decorator.

    The first call makes a plan; calls with other shapes, element types, structures or static values get plans of their own.
    Later plans lie on the mesh of the first one and lay out as it does what both have, by structure, names and types, so
    that a train state goes from one to the other without being moved.

    Parameters
    ----------
    fn: a function written for one device, as for `plan`; a method, too. Without it a decorator is returned.
    like: a plan, a loaded one, or another function of `planner.jit`, whose first plan it then is, for the first plan.
    donate_argnums, donate_argnames, static_argnums, static_argnames: as in `jax.jit`. Leaves of arguments that are neither
        arrays nor numbers, and numbers within Equinox modules, are static by themselves; such leaves of a result come back
        as they are.
    pins: as in `plan`; an argument is named by its parameter, whichever way it is given.
    options: as in `plan`, for every plan. With `Options(cache=)` plans are found again by other processes.
    All others as in `plan`.

    Raises
    ------
    ArgumentError where `fn` is no function; calls raise as `plan` does.
    """
    keywords = {
        "devices": devices,
        "topology": topology,
        "mesh": mesh,
        "axis_names": axis_names,
        "objective": objective,
        "memory_limit": memory_limit,
        "pins": pins,
        "logical_rules": logical_rules,
        "process_local": process_local,
        "options": options,
    }
    marked: dict[str, Any] = {
        "donate_argnums": donate_argnums,
        "donate_argnames": donate_argnames,
        "static_argnums": static_argnums,
        "static_argnames": static_argnames,
    }
    if fn is None:
        return partial(jit, like=like, **keywords, **marked)
    if not callable(fn):
        raise ArgumentError(f"fn must be a function, got {type(fn).__name__}; pass the function to be planned")
    return PlannedFunction(fn, CallForms(fn, **marked), keywords, like)
