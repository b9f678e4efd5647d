"""Verification: what a plan does beside what it promised.

Numerics: the sharded result against the single device's (see `numerics`). Collectives and memory: those of the compiled
HLO against the prediction, as the platform lowers it (`compared_collectives`, `compared_memory`). Seconds: those of the
schedule that the compiler made. Recomputation: whether the compiler has kept it (`compared_recomputation`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner.compiler.emission.options import REMEDIES, remedy_of
from planner.decision import Checked, Decision
from planner.emit.alternatives import options_text, remedied
from planner.emit.runner import Runner
from planner.errors import ArgumentError, CompileError
from planner.machine.global_arrays import in_common
from planner.machine.processes import Processes
from planner.machine.target import Target
from planner.prediction import Products
from planner.printing.parts import Part
from planner.printing.printed import Printed
from planner.units import quantity
from planner.verify.aot import AotReport
from planner.verify.compared_collectives import BETWEEN_SLICES, Collectives, between_slices, compare_collectives
from planner.verify.compared_memory import Memory, Recomputation, compare_memory, compare_recomputation, does_not_fit
from planner.verify.compiled import compiled_in_child
from planner.verify.hlo.collectives import CompiledCollective, read_collectives
from planner.verify.hlo.memory import memory_of
from planner.verify.hlo.work import read_products
from planner.verify.numerics import Numerics, compare_numerics
from planner.verify.step_time import schedule_of

COMPILE_LIMIT_S = 300.0
MOST_MESSAGE = 300
"""Letters of a compiler's message that are told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """Seconds of a call: `predicted`, and `scheduled`, those of the compiler's schedule; `reason` has them in words.

    `computing_more` are the seconds that the schedule computes beyond the predicted ones, waiting for collectives aside.
    """

    predicted: float
    scheduled: float
    computing_more: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification(Printed):
    """The three verdicts. `ok`: nothing that was checked failed, and something was checked.

    What fails are wrong results, memory that does not fit, and collectives where a promise is broken that costs more than
    a little of a call. What is not `as_promised` may be ok nevertheless.

    `seconds` and `recomputation` inform: no verdict comes of them. None where nothing was compiled, and where the plan
    computes nothing again. `remedy`: the plan compiles only with more options than it has, those of this entry of
    `planner.compiler.emission.options.REMEDIES`, with which the rest was found; that fails, too.
    """

    numerics: Numerics
    collectives: Collectives
    memory: Memory
    seconds: Seconds | None = None
    recomputation: Recomputation | None = None
    remedy: str = ""

    @property
    def ok(self) -> bool:
        """Whether every check that was made passed, and at least one was made."""
        verdicts = [check.ok for check in self.checks]
        return False not in verdicts and True in verdicts

    @property
    def as_promised(self) -> bool:
        """Whether it is ok, and neither collectives nor memory differ from what was promised."""
        return self.ok and not any(check.differs for check in self.checks)

    @property
    def checks(self) -> tuple[Checked, ...]:
        """The three verdicts as a plan keeps them, behind one on compiling where that took more than the plan says."""
        moves, memory = self.collectives, self.memory
        only = [Checked(what="compiling", ok=False, detail=_only_with(self.remedy))] if self.remedy else []
        return (
            *only,
            Checked(what="numerics", ok=self.numerics.ok, detail=self.numerics.reason),
            Checked(what="collectives", ok=moves.ok, detail=moves.reason, differs=moves.differs),
            Checked(what="memory", ok=memory.ok, detail=memory.reason, differs=memory.differs),
        )

    def _parts(self) -> list[Part]:
        lines = [f"{check.what}: {check.verdict}. {check.detail}" for check in self.checks]
        if self.seconds is not None:
            lines.append(f"seconds: {self.seconds.reason}")
        if self.recomputation is not None:
            outcome = {True: "as planned", False: "UNDONE", None: "not checked"}[self.recomputation.ok]
            lines.append(f"recomputation: {outcome}. {self.recomputation.reason}")
        return [*lines, *(f"  {text}" for text in self.collectives.surprises)]


def verify(
    decision: Decision,
    runner: Runner,
    args: tuple[Any, ...] | str,
    *,
    seed: int,
    reference: Callable[..., Any] | None = None,
    rtol: float | None = None,
    compile_limit_s: float = COMPILE_LIMIT_S,
    products: Callable[[], Sequence[Products]] = tuple,
) -> Verification:
    """The verification of what a decision promises of what its runner does.

    `args` are the flat arguments, or the reason why it cannot be run. `reference` and `rtol` are as of
    `compare_numerics`; `compile_limit_s` is how long a compile for devices that are not here may take. Where the devices
    are of several processes, all make this call together, and get one verdict. `products` are asked for once it compiles.

    Raises: ProcessError where another process does not come.
    """
    target = runner.target
    processes = target.processes
    if target.devices is not None:
        names = [leaf.name for leaf in decision.arguments]
        args = in_common(names, args, runner.mesh, processes)
    found = _compiled(runner, decision.mesh_shape, compile_limit_s)
    if isinstance(found, str):
        remedy = remedy_of(target.platform, found, decision.compiler_options)
    else:
        remedy = found.remedy if isinstance(found, AotReport) else ""
    if remedy:
        runner = runner.of(remedied(decision, remedy))
    if remedy and isinstance(found, str):
        found = _compiled(runner, decision.mesh_shape, compile_limit_s)
    mine = found if isinstance(found, str) else None
    failed = next((why for why in processes.gathered(lambda: mine) if why), None)
    if isinstance(found, str) or failed is not None:
        return Verification(
            numerics=Numerics(ok=None, reason="the plan does not compile"),
            collectives=Collectives(
                ok=False, reason=f"the plan does not compile: {(failed or str(found))[:MOST_MESSAGE]}"
            ),
            memory=Memory(ok=None, reason="the plan does not compile"),
        )
    collectives, memory, seconds, hlo = (
        _of_report(decision, target, found, compile_limit_s)
        if isinstance(found, AotReport)
        else _of_executable(decision, target.platform, found)
    )
    again = _recomputation(products, hlo, target.platform) if hlo else None
    numerics = (
        Numerics(ok=None, reason=args)
        if isinstance(args, str)
        else _agreed(
            compare_numerics(
                decision,
                runner.program.as_written,
                target,
                runner.flat_call,
                args,
                seed=seed,
                reference=reference,
                rtol=rtol,
            ),
            processes,
        )
    )
    return Verification(
        numerics=numerics,
        collectives=collectives,
        memory=memory,
        seconds=seconds,
        recomputation=again,
        remedy=remedy,
    )


def _only_with(remedy: str) -> str:
    """What is told of a plan that lacks the options of a remedy."""
    options = options_text(REMEDIES[remedy].options)
    return f'the compiler ends with "{remedy}"; it compiles with {options}, which this plan does not have: plan again'


def _agreed(mine: Numerics, processes: Processes) -> Numerics:
    """The verdict of all processes: the worst of theirs. The leaves are those of this one."""
    answers = processes.gathered(lambda: [mine.ok, mine.reason])
    verdicts = [ok for ok, _ in answers]
    worst = next(verdicts.index(ok) for ok in (False, None, True) if ok in verdicts)
    ok, reason = answers[worst]
    where = "" if len(set(verdicts)) == 1 else f"on process {processes.members[worst]}: "
    return replace(mine, ok=ok, reason=where + reason)


# ---------------------------------------------------------------- compiled program


Parts = tuple[Collectives, Memory, Seconds | None, str]
"""The last is the text of the compiled program, "" where there is none."""


def _compiled(runner: Runner, mesh_shape: Mapping[str, int], compile_limit_s: float) -> Any:
    """The executable, or what a child process reports where nothing can be run; text that says why it does not compile.

    Nothing but the compile is guarded: a fault of the readers of what comes of it is none of the plan's.
    """
    target = runner.target
    try:
        if target.devices is not None and not target.why_not_run:
            return runner.executable
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    try:
        return compiled_in_child(
            runner.flat_jit,
            runner.program.in_avals,
            target,
            mesh=runner.mesh,
            mesh_shape=mesh_shape,
            limit_s=compile_limit_s,
        )
    except (ArgumentError, CompileError) as error:
        return f"{type(error).__name__}: {error}"


def _of_executable(decision: Decision, platform: str, executable: Any) -> Parts:
    """What an executable is beside the prediction."""
    text, count = executable.as_text(), math.prod(decision.mesh_shape.values())
    seconds = _scheduled(decision, text, platform)
    collectives = _collectives(decision, read_collectives(text, num_devices=count), platform, seconds)
    return collectives, compare_memory(decision, memory_of(executable), platform), seconds, text


def _of_report(decision: Decision, target: Target, report: AotReport, compile_limit_s: float) -> Parts:
    """What the compiler alone says beside the prediction, where nothing can be run."""
    platform, topology = target.platform, target.topology.name
    if report.status == "unavailable":
        return _unchecked(report.message)
    if report.status == "timeout":
        return _unchecked(
            f"the compile took longer than {compile_limit_s:g} s; verify(compile_limit_s=...) allows more"
        )
    if report.memory is None:
        reason = f"the compiler for {topology} said {report.status}: {report.message[:MOST_MESSAGE]}"
        if report.status == "oom":
            return Collectives(ok=None, reason=reason), does_not_fit(decision, report.needed_bytes), None, ""
        return Collectives(ok=False, reason=reason), Memory(ok=False, reason=reason), None, ""
    seconds = _scheduled(decision, report.hlo, platform)
    found = _collectives(decision, report.collectives, platform, seconds)
    return (
        _without_verdict(found) if between_slices(decision, platform) else found,
        compare_memory(decision, report.memory, platform),
        seconds,
        report.hlo,
    )


def _collectives(
    decision: Decision, compiled: Sequence[CompiledCollective], platform: str, seconds: Seconds | None
) -> Collectives:
    return compare_collectives(
        decision, compiled, platform, scheduled_seconds=None if seconds is None else seconds.scheduled
    )


def _recomputation(products: Callable[[], Sequence[Products]], hlo: str, platform: str) -> Recomputation | None:
    """What became of what a plan computes again; None where it computes nothing again."""
    promised = products()
    if not promised:
        return None
    try:
        return compare_recomputation(promised, read_products(hlo), platform)
    except Exception as error:
        return Recomputation(ok=None, reason=f"not compared: {type(error).__name__}: {str(error)[:MOST_MESSAGE]}")


def _without_verdict(found: Collectives) -> Collectives:
    """The same without a verdict: between slices libtpu writes transfers by the hosts, which no reader here knows."""
    reason = f"not compared: {BETWEEN_SLICES}"
    return replace(found, ok=None, reason=reason, differs=False, lost_seconds=0.0, differences=(), surprises=())


def _unchecked(reason: str) -> Parts:
    return Collectives(ok=None, reason=reason), Memory(ok=None, reason=reason), None, ""


def _scheduled(decision: Decision, hlo: str, platform: str) -> Seconds | None:
    """Predicted seconds and those of the compiler's schedule; None where it cannot be read."""
    predicted = decision.predicted.seconds
    estimate = schedule_of(hlo, decision.request.topology, decision.mesh_shape, platform)
    if estimate is None:
        return None
    exposed = quantity(estimate.exposed_collective_seconds, "s")
    return Seconds(
        predicted=predicted,
        scheduled=estimate.seconds,
        computing_more=estimate.compute_seconds - decision.predicted.compute_seconds,
        reason=f"{quantity(estimate.seconds, 's')} by the compiler's schedule, {exposed} of them waiting for "
        f"collectives; {quantity(predicted, 's')} predicted",
    )
