"""Groups of the values that a loop carries: those that depend on one another, each group behind those it depends on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.extend.core as jex_core


@dataclass(frozen=True, slots=True)
class CarryGroup:
    """Carries by position among the carries, and the equations that depend on them, but on no later group."""

    carries: tuple[int, ...]
    eqns: tuple[Any, ...]


def carry_groups(body: Any, carried: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[CarryGroup, ...]]:
    """The equations of a loop's body that depend on no carry, and the groups of its carries.

    `carried` are the variables of the carries; the body's first results are what they become. Groups are strongly
    connected components of the carries' dependence on one another over a pass.
    """
    reached = _reached(_read_by(body, carried))
    groups: dict[int, list[int]] = {}
    for position, mask in enumerate(reached):
        own = 1 << position
        # Those of one component reach the same carries, themselves included; what does not reach itself is one alone.
        groups.setdefault(mask if mask & own else -own - 1, []).append(position)
    # What is depended on reaches fewer.
    order = sorted(groups.values(), key=lambda own: ((reached[own[0]] | 1 << own[0]).bit_count(), own))
    return _with_equations(body, carried, order)


def _read_by(body: Any, carried: Sequence[Any]) -> list[int]:
    """For each carry the carries that its next value is computed of, as bits."""
    masks: dict[Any, int] = {var: 1 << position for position, var in enumerate(carried)}
    for eqn in body.eqns:
        mask = 0
        for atom in eqn.invars:
            if not isinstance(atom, jex_core.Literal):
                mask |= masks.get(atom, 0)
        if mask:
            masks.update(dict.fromkeys(eqn.outvars, mask))
    updates = body.outvars[: len(carried)]
    return [0 if isinstance(atom, jex_core.Literal) else masks.get(atom, 0) for atom in updates]


def _reached(read: Sequence[int]) -> list[int]:
    """The transitive closure of what carries read."""
    reached = list(read)
    others = 0
    for position, mask in enumerate(read):
        others |= mask & ~(1 << position)
    for via in range(len(read)):
        if others >> via & 1:
            reached = [mask | reached[via] if mask >> via & 1 else mask for mask in reached]
    return reached


def _with_equations(
    body: Any, carried: Sequence[Any], order: Sequence[Sequence[int]]
) -> tuple[tuple[Any, ...], tuple[CarryGroup, ...]]:
    levels: dict[Any, int] = {carried[position]: level for level, own in enumerate(order) for position in own}
    found: list[list[Any]] = [[] for _ in range(len(order) + 1)]
    for eqn in body.eqns:
        read = [levels.get(atom, -1) for atom in eqn.invars if not isinstance(atom, jex_core.Literal)]
        level = max(read, default=-1)
        if level >= 0:
            levels.update(dict.fromkeys(eqn.outvars, level))
        found[level + 1].append(eqn)
    groups = [CarryGroup(tuple(own), tuple(eqns)) for own, eqns in zip(order, found[1:], strict=True)]
    return tuple(found[0]), tuple(groups)
