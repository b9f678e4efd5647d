"""Checks of a plan before it is handed over, as `Options.check` asks for them; what was not checked, and why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax

from planner.decision import Checked
from planner.machine.processes import Processes
from planner.options import Options
from planner.plans.plan import Plan
from planner.verify.verification import Verification, summary

FATAL = ("compiling", "numerics")
"""Checks whose failure drops a plan; differences in collectives or memory are told."""


def check(made: Plan, args: Sequence[Any], options: Options, processes: Processes) -> tuple[Checked, ...]:
    """What was checked of a plan, each with its verdict, and what was not, with the reason; the same on all processes."""
    everything = ("compiling", "numerics", "collectives", "memory")
    if options.check == "never":
        return tuple(Checked(what=what, ok=None, detail="Options(check='never')") for what in everything)
    if made.mesh_is_abstract and options.check == "auto":
        why = f"the topology {made.decision.topology} has no devices here; verify() compiles for it where it can"
        return tuple(Checked(what=what, ok=None, detail=why) for what in everything)
    whys = processes.gathered(lambda: _why_not_run(made, args, options))
    why = next(filter(None, whys), "")
    verification = made.verify(*(() if why else args))
    found = [_compiling(verification)]
    for what, ok, detail in summary(verification):
        unrun = what == "numerics" and why and found[0].ok
        found.append(Checked(what=what, ok=None if unrun else ok, detail=why if unrun else detail))
    return tuple(found)


def failure(checked: Sequence[Checked]) -> str | None:
    """Why a plan must be dropped, or None."""
    bad = next((c for c in checked if c.ok is False and c.what in FATAL), None)
    return f"{bad.what}: {bad.detail}" if bad else None


def _why_not_run(made: Plan, args: Sequence[Any], options: Options) -> str:
    """Why the numerics are not to be checked, or ""."""
    if made.why_not_run:
        return made.why_not_run
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(list(args))):
        return "the arguments are shapes only"
    if options.check == "auto" and made.has_side_effects:
        return "it has side effects that a second run would repeat; Options(check='always') runs it"
    flops = made.predicted.flops * math.prod(made.decision.mesh_shape.values())
    if options.check == "auto" and flops > options.affordable_flops:
        return f"running it on one device takes about {flops:.2g} operations; Options(check='always') does it"
    return ""


def _compiling(verification: Verification) -> Checked:
    """Whether the plan compiled: its collectives could be read, or the compiler said why not."""
    collectives, memory = verification.collectives, verification.memory
    if collectives.by_kind is not None:
        return Checked(what="compiling", ok=True, detail="compiled for its devices")
    failed = collectives if collectives.ok is False else memory if memory.ok is False else None
    return Checked(what="compiling", ok=None if failed is None else False, detail=(failed or collectives).reason)
