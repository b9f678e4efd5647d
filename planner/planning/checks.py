"""Checks of a plan before it is handed over, as `Options.check` asks for them; what was not checked, and why.

They end in a verdict. A plan that does not compile or computes wrong numbers is rejected, and so is one that does not fit
by the compiler for a TPU or GPU, or that is predicted not to fit where no compiler says otherwise. A plan is suspicious
where a broken promise costs more than a little of a call, or its schedule takes more than the promised interval: others
are tried, also with less saved, and the fastest by the compiler's schedule is handed over. Smaller differences are told.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax

from planner.decision import Checked
from planner.emit.alternatives import remedy_text
from planner.machine.target import Target
from planner.options import Options
from planner.plans.plan import Plan
from planner.units import quantity
from planner.verify.aot import flags_note
from planner.verify.compiled import why_no_compiler
from planner.verify.verification import COMPILE_LIMIT_S, Verification

EVERYTHING = ("compiling", "numerics", "collectives", "memory")
FATAL = ("compiling", "numerics")
"""Checks whose failure drops a plan."""
CROWDED, LESS = 0.95, 0.92
"""The share of the memory limit from which on compilers trade time for memory, and the part of its peak that another plan
may promise: GPT-3 175B on v5e:4x4 takes 3,804 ms by the schedule with 15.8 GB promised, 3,523 with 14.5."""
AFFORDABLE_OPERATIONS = 10_000
"""Programs of more are not compiled for devices that are not here unless that is asked for: it takes minutes."""
PRINTED = (
    "the function was run to check the plan, on the plan's devices and on one, and its jax.debug calls with it; "
    "Options(check='never') runs nothing"
)
"""What a plan notes whose function prints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the checks say of a candidate. With no field set it is accepted, and handed over.

    `rejected`: why it must not be handed over. `suspicious`: why a plan that is predicted to be slower may be faster.
    `memory_share`: the part of the memory limit that may be promised so that as much as the compiler needed fits, of a plan
    that does not, and of one that is slower than promised for want of memory so that there is room. `seconds` are those of
    the compiler's schedule, where it is known, and `computing_more` those that a plan slower than promised computes beyond
    its promise.
    """

    rejected: str | None = None
    memory_share: float | None = None
    suspicious: str | None = None
    seconds: float | None = None
    computing_more: float = 0.0

    @property
    def accepted(self) -> bool:
        """Whether the plan is handed over as it is."""
        return self.rejected is None and self.suspicious is None


def check(
    made: Plan,
    args: Sequence[Any],
    options: Options,
    target: Target,
    *,
    operations: int,
    not_checked: str = "",
    not_run: str = "",
) -> tuple[Plan, Verdict]:
    """A plan with its checks on record, and the verdict; the same on all processes of its target.

    `operations` are those of the program, loops' bodies counted once. `not_checked`: why nothing is to be checked, whatever
    the options, and `not_run`: why nothing is to be run for it; "" where it is.
    """
    unchecked = not_checked or _why_unchecked(made, target, options, operations)
    if unchecked:
        if made.decision.refined is not None:
            made = _with_flags(made, target)
        return made.with_checks([Checked(what=what, ok=None, detail=unchecked) for what in EVERYTHING]), Verdict()
    processes = target.processes
    whys = processes.gathered(lambda: not_run or _why_not_run(made, args, options))
    why = next(filter(None, whys), "")
    limit_s = COMPILE_LIMIT_S
    if options.check == "auto":
        # The alternative is an error: that may take as long as the search.
        limit_s = max(options.affordable_compile_s, options.time_limit_s if _beyond(made) else 0.0)
    by_position = () if why else args[: len(args) - len(made.decision.keywords)]
    by_keyword = {} if why else dict(zip(made.decision.keywords, args[len(by_position) :], strict=True))
    verification = made.verify(*by_position, compile_limit_s=limit_s, **by_keyword)
    remedy = verification.remedy
    if remedy:
        made, verification = made.remedied(remedy), replace(verification, remedy="")
    if made.prints and not why:
        made = made.with_notes((*made.notes, PRINTED))
    found = [_compiling(verification, remedy)]
    if made.why_not_run and found[0].ok:
        made = _with_flags(made, target)
    for one in verification.checks:
        unrun = one.what == "numerics" and why and found[0].ok
        found.append(replace(one, ok=None, detail=why) if unrun else one)
    answers = processes.gathered(lambda: asdict(_verdict(made, found, verification)))
    worst = max(
        (Verdict(**answer) for answer in answers), key=lambda answer: (answer.rejected or "", answer.suspicious or "")
    )
    return made.with_checks(found, compiled=verification if found[0].ok else None), worst


def why_not_compiled(target: Target, options: Options, operations: int = 0) -> str:
    """Why plans for a target are not to be compiled to check them, or ""; 0 operations: however many there are."""
    if options.check == "never":
        return "Options(check='never')"
    if options.check == "always" or not target.why_not_run:
        return ""
    why = why_no_compiler(target.platform, target.topology.name)
    if not why and operations > AFFORDABLE_OPERATIONS:
        why = f"compiling its {operations:,} operations takes minutes; verify() and Options(check='always') do it"
    return f"{target.why_not_run}; {why}" if why else ""


def _why_unchecked(made: Plan, target: Target, options: Options, operations: int) -> str:
    """Why nothing is to be checked, or ""."""
    refined = made.decision.refined
    if options.check == "auto" and made.why_not_run and refined is not None and refined.chosen is not None:
        reason = "it was compiled to choose it, see Plan.refined; verify() compares it with its promises"
        return f"{made.why_not_run}; {reason}"
    return why_not_compiled(target, options, 0 if _beyond(made) else operations)


def _beyond(made: Plan) -> bool:
    """Whether a plan is predicted not to fit."""
    return made.predicted.peak_bytes > made.decision.request.memory_limit


def _verdict(made: Plan, checked: Sequence[Checked], verification: Verification) -> Verdict:
    """What is to become of a plan."""
    bad = next((c for c in checked if c.ok is False and c.what in FATAL), None)
    memory, collectives, seconds = verification.memory, verification.collectives, verification.seconds
    if memory.fits is False:
        share = memory.peak[0] / memory.peak[1]
        return Verdict(rejected=f"memory: {memory.reason}", memory_share=share)
    if bad is not None:
        return Verdict(rejected=f"{bad.what}: {bad.detail}")
    if memory.fits is None and _beyond(made):
        predicted = made.predicted.peak_bytes
        return Verdict(
            rejected=f"memory: predicted are {quantity(predicted, 'B')}, and no compiler says otherwise: {memory.reason}"
        )
    if seconds is None or made.decision.request.objective != "time":
        return Verdict(seconds=seconds and seconds.scheduled)
    slower = _slower(made, seconds.scheduled)
    crowded = slower is not None and memory.peak[1] >= CROWDED * memory.limit_bytes
    return Verdict(
        suspicious=f"collectives: {collectives.reason}" if collectives.ok is False else slower,
        memory_share=LESS * memory.peak[0] / memory.limit_bytes if crowded else None,
        seconds=seconds.scheduled,
        computing_more=max(seconds.computing_more, 0.0) if slower is not None else 0.0,
    )


def _slower(made: Plan, scheduled: float) -> str | None:
    """That a plan takes more by its schedule than was promised at most: near its limit a compiler computes values again."""
    promised = made.predicted.seconds_range
    if promised is None or scheduled <= promised[1]:
        return None
    return (
        f"seconds: the compiler's schedule takes {quantity(scheduled, 's')}, promised were {quantity(promised[0], 's')} to "
        f"{quantity(promised[1], 's')}"
    )


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


def _with_flags(made: Plan, target: Target) -> Plan:
    """The plan with a note on the flags with which it was compiled in a child of this process, if there were any."""
    note = flags_note(target.platform)
    return made.with_notes((*made.notes, note)) if note else made


def _compiling(verification: Verification, remedy: str) -> Checked:
    """Whether the plan compiled: its collectives could be read, or the compiler said why not; and what remedy it took."""
    collectives, memory = verification.collectives, verification.memory
    if collectives.by_kind is not None:
        detail = "compiled for its devices"
        if remedy:
            detail += f", {remedy_text(remedy)}"
        return Checked(what="compiling", ok=True, detail=detail)
    failed = collectives if collectives.ok is False else memory if memory.ok is False else None
    return Checked(what="compiling", ok=None if failed is None else False, detail=(failed or collectives).reason)
