"""What a program must do: planned so that everything is split, right numbers, and no collective that was not predicted.

The topology has free wires and slow devices, so the planner shards as much as it can. What is compiled may be less than
predicted: XLA folds constants, drops what is not read, shares equal subexpressions, and takes gathers out of loops. It
must not be more than predicted, but for `SLACK_BYTES` (scalars that the planner does not place: predicates, counters)
and `SLACK` of the total.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

import planner
from planner.testing import free_wires
from tests.programs.index import INDEX
from tests.programs.programs import Case, Description

SLACK_BYTES = 64.0
SLACK = 0.05
LOOSE = frozenset((*INDEX, "linalg", "loop", "ragged", "while"))
"""Ops whose collectives are not held against a plan. XLA's CPU backend gathers batches of matrices and of groups, where
the TPU's does not; a scatter from indices split over several dims is summed over their axes one after the other.
"""
WIDENED_ON_CPU = ("float8", "float16")
"""Types that XLA's CPU backend computes with, and moves, in a wider one."""


def failure(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    mesh: Mapping[str, int],
    *,
    donated: Sequence[int] = (),
    loose: bool = False,
) -> str | None:
    """What is wrong with a program planned, compiled and run, as "kind: details"; None where nothing is."""
    count = math.prod(mesh.values())
    # A mesh of fewer devices than there are is tried too, where its size divides theirs.
    devices = jax.devices()[: 8 if 8 % count == 0 else count]
    try:
        plan = planner.plan(
            fn,
            args,
            devices=devices,
            topology=free_wires(len(devices)),
            mesh=mesh,
            donate_argnums=tuple(donated),
            options=planner.Options(check="never"),
        )
        found = plan.verify(*args)
    except Exception as error:
        return f"raised: {type(error).__name__}: {str(error)[:500]}" if runs_alone(fn, args) else None
    if found.numerics.ok is not True and (found.numerics.leaves or runs_alone(fn, args)):
        return f"numerics: {found.numerics.reason} {found.collectives.reason if not found.numerics.leaves else ''}"
    if found.memory.differs or found.memory.ok is False:
        return f"memory: {found.memory.reason}"
    promised, compiled = found.collectives.predicted_bytes, found.collectives.compiled_bytes
    if not loose and compiled > promised * (1 + SLACK) + SLACK_BYTES:
        return f"collectives: {found.collectives.reason}; {found.collectives.by_kind}\n{plan}"
    return None


def runs_alone(fn: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Whether a program compiles and runs on one device, unplanned; what does not is nobody's fault here."""
    try:
        jax.block_until_ready(jax.jit(fn)(*args))
    except Exception:
        return False
    return True


def _widened(description: Description) -> bool:
    return "narrow" in description.kinds or any(dtype.startswith(WIDENED_ON_CPU) for _, dtype in description.arguments)


def failure_of(case: Case) -> str | None:
    """What is wrong with a case; see `failure`."""
    description, mesh = case
    return failure(
        description.function(),
        description.example(),
        mesh,
        donated=[i + 1 for i in description.donated],
        loose=bool(description.kinds & LOOSE) or _widened(description),
    )
