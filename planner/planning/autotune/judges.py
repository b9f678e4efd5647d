"""Judges of plans give verdicts on decisions that are submitted; here the compiler of the topology as one."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

from pbqp.deadline import Deadline
from planner.autotune_log import Moved, Status
from planner.decision import Decision
from planner.emit.runner import Runner
from planner.errors import PlannerError
from planner.machine.target import Target
from planner.planning.autotune.lessons import TrialOutcome
from planner.search.problem import PlanningProblem
from planner.verify import compiled
from planner.verify.aot import AotReport, lower_request
from planner.verify.compile_pool import CompilePool
from planner.verify.hlo.collectives import CompiledCollective
from planner.verify.step_time import scheduled_seconds, why_not_judged

MOST_MESSAGE = 300
"""Characters of a compiler's message that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrialVerdict:
    """What became of a trial; `outcome` is None unless its status is "ok". `peak_bytes` of an "oom" are those needed.

    `remedy`: it came out so with the options of this entry of `compiler.emission.options.REMEDIES`, without which it fails.
    """

    status: Status
    message: str = ""
    outcome: TrialOutcome | None = None
    peak_bytes: float | None = None
    collectives: tuple[Moved, ...] = ()
    remedy: str = ""


def runner_of(problem: PlanningProblem, decision: Decision, target: Target) -> Runner:
    """The problem's program as a decision places it on a target; what it gives serves flat arguments only."""
    return Runner(program=problem.program, decision=decision, target=target, static_args={}, graph=problem.graph)


@final
class CompilerJudge:
    """The compiler of a topology, in child processes; see `why_not` for where there is none."""

    def __init__(self, problem: PlanningProblem, pool: CompilePool, deadline: Deadline) -> None:
        self._problem, self._target = problem, replace(problem.target, devices=None)
        self._pool, self._deadline = pool, deadline
        self._queue: deque[tuple[Decision, TrialVerdict | None]] = deque()

    @property
    def room(self) -> int:
        """How many more decisions may be submitted now. One more than there are workers: the next is lowered meanwhile."""
        return max(self._pool.workers + 1 - self.pending, 0)

    @property
    def pending(self) -> int:
        """How many verdicts are to come."""
        return len(self._queue)

    def submit(self, decision: Decision) -> None:
        """Begins a trial."""
        runner = runner_of(self._problem, decision, self._target)
        try:
            request = lower_request(
                runner.flat_jit,
                runner.program.in_avals,
                mesh_shape=decision.mesh_shape,
                topology=decision.request.topology.name,
                timeout_s=self._deadline.left(1.0),
            )
        except PlannerError as error:
            self._queue.append((decision, TrialVerdict(status="error", message=str(error)[:MOST_MESSAGE])))
            return
        self._queue.append((decision, None))
        self._pool.submit(request)

    def take(self, seconds: float) -> TrialVerdict | None:
        """The next verdict, in the order of submission, or None if it does not come within `seconds`."""
        if not self._queue:
            return None
        decision, known = self._queue[0]
        if known is None:
            report = self._pool.take(seconds)
            if report is None:
                return None
            known = replace(_compiled(decision, report), remedy=report.remedy)
        self._queue.popleft()
        return known


def _compiled(decision: Decision, report: AotReport) -> TrialVerdict:
    """The verdict on a decision by the report of its compile."""
    message = report.message[:MOST_MESSAGE]
    if not report.ok:
        return TrialVerdict(status=report.status, message=message, peak_bytes=report.needed_bytes)
    topology, mesh = decision.request.topology, decision.mesh_shape
    peak = None if report.memory is None else float(report.memory.peak_bytes)
    if peak is not None and peak > decision.request.memory_limit:
        message = f"its peak is {peak:.4g} bytes, above the memory limit"
        return TrialVerdict(status="oom", message=message, peak_bytes=peak)
    try:
        estimate = scheduled_seconds(report, topology, mesh)
    except PlannerError as error:
        return TrialVerdict(status="error", message=str(error)[:MOST_MESSAGE], peak_bytes=peak)
    exposed = estimate.exposed_collective_seconds
    return TrialVerdict(
        status="ok",
        message=message,
        outcome=TrialOutcome(
            seconds=estimate.seconds,
            seconds_most=topology.chip.seconds_range(estimate.seconds - exposed, exposed)[1],
            exposed=exposed,
            communicating=estimate.collective_seconds,
            collectives=report.collectives,
        ),
        peak_bytes=peak,
        collectives=predicted_and_found(decision, report.collectives),
    )


def predicted_and_found(decision: Decision, found: Sequence[CompiledCollective]) -> tuple[Moved, ...]:
    """The collectives of a decision by kind and axes, predicted and found."""
    sides: dict[tuple[str, tuple[str, ...]], list[float]] = {}
    for c in decision.predicted.collectives:
        sides.setdefault((c.kind, c.axes), [0.0, 0.0])[0] += c.bytes * c.count
    for c in found:
        sides.setdefault((c.kind, c.axes(decision.mesh_shape) or ("?",)), [0.0, 0.0])[1] += c.bytes * c.known_trips
    return tuple(
        Moved(kind=kind, axes=axes, predicted_bytes=a, found_bytes=b) for (kind, axes), (a, b) in sorted(sides.items())
    )


def why_no_judge(target: Target) -> str:
    """Why no compiler can judge plans for a target, or ""."""
    topology = target.topology
    return why_not_judged(topology) or compiled.why_no_compiler(topology.chip.platform, topology.name)
