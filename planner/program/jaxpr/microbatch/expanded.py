"""A program with its calls expanded, and what its graph does not tell: zeros that it reads, what calls return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.extend.core as jex_core

from planner.program.graph import Path
from planner.program.jaxpr.bodies import (
    REMATS,
    body_of,
    body_path,
    consts_of,
    equations_of,
    opened,
    structure_of,
    with_bodies,
    with_constants,
)
from planner.program.jaxpr.calls import is_zero
from planner.program.jaxpr.dead_code import without_dead_code
from planner.program.jaxpr.variables import all_named, fresh_var, with_own_variables
from planner.program.slots import Slot


def has_remats(jaxpr: Any) -> bool:
    """Whether a program has regions to be computed again."""
    return any(eqn.primitive.name in REMATS for eqn in equations_of(jaxpr))


def expanded(jaxpr: Any, *, remats: bool) -> Any:
    """The program without calls, bodies included, and without equations that nothing reads.

    Rules of derivatives that calls bring are lost with them. Regions to be computed again stay calls unless `remats`.
    """
    whole = _expanded(jaxpr, remats)
    body = opened(whole)
    used = without_dead_code(body)
    kept = used.replace(eqns=[step for eqn in used.eqns for step in _apart(eqn)])
    return kept if whole is body else jex_core.ClosedJaxpr(kept, consts_of(whole))


def _expanded(jaxpr: Any, remats: bool) -> Any:
    body = opened(jaxpr)
    held = list(zip(body.constvars, consts_of(jaxpr), strict=False))
    may_hold = hasattr(jaxpr, "consts")
    eqns, outvars = _spliced(body, held if may_hold else None, remats)
    if not may_hold:
        return body.replace(eqns=eqns, outvars=outvars)
    return with_constants(jaxpr, held, eqns=eqns, outvars=outvars)


def _spliced(body: Any, held: list[tuple[Any, Any]] | None, remats: bool) -> tuple[list[Any], list[Any]]:
    """The equations and results of a body with its calls expanded; constants of these join those `held`, if any can be."""
    found: list[Any] = []
    renamed: dict[Any, Any] = {}
    for eqn in body.eqns:
        structure = structure_of(eqn)
        inner = body_of(eqn, structure.bodies[0]) if structure is not None and structure.kind == "inline" else None
        stays = inner is None or (eqn.primitive.name in REMATS and not remats)
        if structure is None or stays or (held is None and len(consts_of(inner))):
            step = eqn.replace(invars=all_named(eqn.invars, renamed))
            found.append(with_bodies(step, lambda inner, _: _expanded(inner, remats)))
            continue
        called = opened(inner)
        taken = eqn.invars if structure.takes is None else [eqn.invars[i] for i in structure.takes]
        local: dict[Any, Any] = dict(zip(called.invars, all_named(taken, renamed), strict=True))
        for var, value in zip(called.constvars, consts_of(inner), strict=True):
            local[var] = fresh_var(var)
            if held is not None:
                held.append((local[var], value))
        steps, results = _spliced(called, held, remats)
        for step in with_own_variables(steps, local):
            traced = step.source_info.traceback is not None
            found.append(step if traced else step.replace(source_info=eqn.source_info))
        renamed.update(zip(eqn.outvars, all_named(results, local), strict=True))
    return found, all_named(body.outvars, renamed)


def _apart(eqn: Any) -> list[Any]:
    """A barrier as one for each of its operands, which have nothing to do with one another."""
    if eqn.primitive.name != "optimization_barrier" or len(eqn.invars) == 1:
        return [eqn]
    pairs = zip(eqn.invars, eqn.outvars, strict=True)
    return [eqn.replace(invars=[a], outvars=[v]) for a, v in pairs if not isinstance(v, jex_core.DropVar)]


@dataclass
class Facts:
    """What an expanded program's graph does not tell.

    `zeros` are the places, (path of an equation, position of an operand), where it reads a zero that it holds itself;
    `passed` are, by the place of a result of a call, the place in its body where that is made.
    """

    zeros: set[tuple[Path, int]] = field(default_factory=set[tuple[Path, int]])
    passed: dict[Slot, Slot] = field(default_factory=dict[Slot, Slot])


def facts_of(jaxpr: Any) -> Facts:
    """The facts of an expanded program."""
    found = Facts()
    _walk(jaxpr, (), {}, found)
    return found


Made = Slot | bool | None
"""Where a variable is made; True for a zero, None for another constant."""


def _walk(jaxpr: Any, path: Path, made: dict[Any, Made], found: Facts) -> list[Made]:
    """Takes down the facts of a body; where what it returns is made."""
    body = opened(jaxpr)
    for i, var in enumerate(body.invars):
        made.setdefault(var, ("invar", path, i))

    def maker(atom: Any) -> Made:
        return (is_zero(atom) or None) if isinstance(atom, jex_core.Literal) else made.get(atom)

    for index, eqn in enumerate(body.eqns):
        here = (*path, index)
        makers = [maker(atom) for atom in eqn.invars]
        found.zeros.update((here, i) for i, place in enumerate(makers) if place is True)
        structure, inner_made = structure_of(eqn), list[Made]()
        for place in structure.bodies if structure is not None else ():
            inner = body_of(eqn, place)
            known: dict[Any, Made] = {}
            if structure is not None and structure.kind == "inline":
                taken: Sequence[Made] = makers if structure.takes is None else [makers[i] for i in structure.takes]
                known = dict(zip(opened(inner).invars, taken, strict=True))
            inner_made = _walk(inner, body_path(here, place), known, found)
        for i, var in enumerate(eqn.outvars):
            made[var] = ("result", here, i)
            if structure is not None and structure.kind == "inline":
                made[var] = source = inner_made[i]
                if source is not None and not isinstance(source, bool):
                    found.passed["result", here, i] = source
    return [maker(atom) for atom in body.outvars]
