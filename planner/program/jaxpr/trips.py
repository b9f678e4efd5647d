"""How often `while` loops run: what their counters say, and what is assumed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import jax.extend.core as jex_core
import numpy as np

from planner.program.jaxpr.bodies import Structure, body_of, opened
from planner.program.jaxpr.builder import Builder
from planner.program.jaxpr.origins import Origin


def while_trips_of(b: Builder, eqn: Any, s: Structure, origin: Origin) -> tuple[float, bool]:
    """How often a while loop is taken to run, and whether its counter says so; what is assumed is noted."""
    limits, exact = _counter_limits(eqn, s)
    if exact:
        return limits[0], True
    at = (origin.source, origin.line)
    hint, why = b.while_trips, "was assumed (Options(while_trips=...) sets it)"
    if isinstance(hint, Mapping):
        named = [trips for pattern, trips in hint.items() if any(fnmatchcase(line, pattern) for line in at)]
        hint, why = (named[0], "is hinted") if named else (1.0, "was assumed (no pattern of Options(while_trips) fits)")
    elif limits and hint == 1.0:
        hint, why = min(limits), "the most its counter allows, was assumed (Options(while_trips=...) sets it)"
    b.notes.append(f"{origin.source}: the trip count of this while loop is not known; {hint:g} {why}")
    return hint, False


def _counter_limits(eqn: Any, s: Structure) -> tuple[list[float], bool]:
    """The trip counts that conditions `counter < limit` of a while loop allow, and whether one is the only condition."""
    test, body = opened(body_of(eqn, s.bodies[0])), opened(body_of(eqn, s.bodies[1]))
    made = {var: step for step in test.eqns for var in step.outvars}
    first = s.cond_consts + s.num_consts

    def number(atom: Any) -> float | None:
        """What a scalar of the condition is at every trip, or None."""
        if not isinstance(atom, jex_core.Literal) and atom in test.invars:
            i = test.invars.index(atom)
            k = i - s.cond_consts
            if k >= 0 and body.outvars[k] is not body.invars[s.num_consts + k]:
                return None
            atom = eqn.invars[i] if k < 0 else eqn.invars[first + k]
        if not isinstance(atom, jex_core.Literal) or np.shape(atom.val):
            return None
        return float(atom.val)

    def trips(counter: Any, limit: Any, extra: float) -> float | None:
        if isinstance(counter, jex_core.Literal) or counter not in test.invars:
            return None
        k = test.invars.index(counter) - s.cond_consts
        start, end = eqn.invars[first + k], number(limit)
        step: Any = next((e for e in body.eqns if body.outvars[k] in e.outvars), None)
        if k < 0 or end is None or not isinstance(start, jex_core.Literal) or step is None:
            return None
        amounts = [a.val for a in step.invars if isinstance(a, jex_core.Literal)]
        if step.primitive.name != "add" or body.invars[s.num_consts + k] not in step.invars or len(amounts) != 1:
            return None
        if not float(amounts[0]) > 0:
            return None
        return max(math.ceil((end + extra - float(start.val)) / float(amounts[0])), 0)

    def limits(atom: Any) -> list[float]:
        if isinstance(atom, jex_core.Literal) or atom not in made:
            return []
        step = made[atom]
        name = step.primitive.name
        if name == "and":
            return [found for operand in step.invars for found in limits(operand)]
        if name == "convert_element_type":
            return limits(step.invars[0])
        if name in ("lt", "le"):
            found = trips(step.invars[0], step.invars[1], float(name == "le"))
        elif name in ("gt", "ge"):
            found = trips(step.invars[1], step.invars[0], float(name == "ge"))
        else:
            found = None
        return [] if found is None else [found]

    found = limits(test.outvars[0])
    only = bool(found) and not any(step.primitive.name == "and" for step in test.eqns)
    return found, only
