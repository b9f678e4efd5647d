"""Plans of a program whose own placements are free: without them, and with them, as those are a plan, too.

Opened `shard_map`s and a search over all meshes may end at a plan that is slower than what the function names itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from planner.errors import CompileError, InfeasibleError, MeshError, PinError
from planner.options import UNITS, Options, telling
from planner.planning.plan_cache import planned_or_kept
from planner.plans.plan import Plan
from planner.request.resolve import PlanRequest
from planner.units import quantity

Resolve = Callable[[Options], PlanRequest]
"""The request of a call with these options. Raises: as `resolve_request`."""


def planned_as_named_or_freed(resolve: Resolve, options: Options) -> Plan:
    """The better plan of two, by the objective: without the placements that the program names, and with them.

    Where it names none, or such as cannot hold here (a mesh of more devices, other pins), the one without. Each search
    has half of the time limit.

    Raises: what `planned_or_kept` raises, of the search without them, where neither has a plan.
    """
    each = replace(options, time_limit_s=options.time_limit_s / 2)
    named = _named(resolve, telling(replace(each, annotations="keep"), "as named"))
    if named is None:
        return planned_or_kept(resolve(options))
    freed = resolve(telling(each, "freed"))
    with_them = _planned(named)
    if isinstance(with_them, Exception):
        return planned_or_kept(freed)
    without = _planned(freed)
    if isinstance(without, Exception):
        return _noted(with_them, f"kept: without them {str(without).partition('. ')[0]}")
    unit = UNITS[freed.variants.request.objective]
    values = [plan.decision.certificate.value for plan in (with_them, without)]
    told = "with them the plan found takes {}, without them {}".format(*(quantity(value, unit) for value in values))
    if values[0] < values[1]:
        return _noted(with_them, f"kept: {told}")
    return _noted(without, f"not kept: {told}")


def _named(resolve: Resolve, options: Options) -> PlanRequest | None:
    """The request with the placements that the program names; None where it names none, or they cannot hold."""
    try:
        request = resolve(options)
    except (MeshError, PinError):
        return None
    return None if request.variants.program.parallelism is None else request


def _planned(request: PlanRequest) -> Plan | CompileError | InfeasibleError:
    try:
        return planned_or_kept(request)
    except (CompileError, InfeasibleError) as error:
        return error


def _noted(plan: Plan, what: str) -> Plan:
    note = f"the placements that the function names itself, which annotations='free' leaves to the planner, are {what}"
    return plan.with_notes((*plan.notes, note))
