"""Programs planned for chips that are not here, whose rules, prices and memory are others than those of the CPU."""

from __future__ import annotations

import planner
from tests.programs.check import runs_alone
from tests.programs.programs import Case

TARGETS = ("v5e:2x4", "v5p:2x2x4", "h100:8", "h100:2x8")
_OPTIONS = planner.Options(check="never", workers=1)


def failure_for(case: Case, topology: str) -> str | None:
    """Why a program is not planned for a target, all meshes searched, or None where it is; nothing is compiled."""
    fn, args = case[0].function(), case[0].example()
    try:
        str(planner.plan(fn, args, topology=topology, options=_OPTIONS))
    except Exception as error:
        return f"raised: {type(error).__name__}: {str(error)[:500]}" if runs_alone(fn, args) else None
    return None
