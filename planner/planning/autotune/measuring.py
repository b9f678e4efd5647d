"""Measuring: the devices themselves as the judge of plans."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from pbqp.deadline import Deadline
from planner.autotune_log import Status
from planner.compiler.emission.options import remedy_of
from planner.compiler.targets.table import COMPILERS
from planner.decision import Decision
from planner.emit.alternatives import remedied
from planner.emit.runner import Runner
from planner.errors import PlannerError
from planner.machine.global_arrays import host, is_key
from planner.machine.target import Target
from planner.options import Options
from planner.planning.autotune.judges import (
    MOST_MESSAGE,
    CompilerJudge,
    TrialVerdict,
    predicted_and_found,
    runner_of,
)
from planner.planning.autotune.lessons import TrialOutcome
from planner.program.tracing.traced import Program
from planner.search.problem import PlanningProblem
from planner.verify.hlo.collectives import read_collectives
from planner.verify.hlo.memory import memory_of

RUNS = 5
"""Runs of a plan that are measured, after one that is not; the median counts."""


@final
class MeasuringJudge:
    """The devices: a plan takes the median of several runs.

    `values` are the flat arguments, shapes among them: those are made up, of zeros.
    """

    def __init__(self, problem: PlanningProblem, values: Sequence[Any], deadline: Deadline) -> None:
        self._problem, self._values, self._deadline = problem, values, deadline
        self._queue: deque[Decision] = deque()

    @property
    def room(self) -> int:
        """See `CompilerJudge`."""
        return 1 - len(self._queue)

    @property
    def pending(self) -> int:
        """See `CompilerJudge`."""
        return len(self._queue)

    def submit(self, decision: Decision) -> None:
        """See `CompilerJudge`."""
        self._queue.append(decision)

    def take(self, seconds: float) -> TrialVerdict | None:
        """See `CompilerJudge`. Runs cannot be broken off, so it may take longer."""
        return self._run(self._queue.popleft()) if self._queue else None

    def _run(self, decision: Decision) -> TrialVerdict:
        """What comes of a plan; where it fails and there is a remedy, of the plan with that."""
        found = self._run_once(decision)
        error = (
            remedy_of(self._problem.target.platform, found.message, decision.compiler_options)
            if found.status == "error"
            else ""
        )
        return replace(self._run_once(remedied(decision, error)), remedy=error) if error else found

    def _run_once(self, decision: Decision) -> TrialVerdict:
        runner = runner_of(self._problem, decision, self._problem.target)
        try:
            seconds = self._median(runner)
            compiled = runner.executable
            collectives = read_collectives(compiled.as_text(), num_devices=runner.mesh.size)
            known = COMPILERS[self._problem.target.platform].reports_peak
            peak = float(memory_of(compiled).peak_bytes) if known else None
        except (jax.errors.JaxRuntimeError, PlannerError, ValueError) as error:
            text = f"{type(error).__name__}: {error}"
            status: Status = "oom" if "RESOURCE_EXHAUSTED" in text else "error"
            return TrialVerdict(status=status, message=text[:MOST_MESSAGE])
        return TrialVerdict(
            status="ok",
            outcome=TrialOutcome(
                seconds=seconds, seconds_most=seconds, exposed=None, communicating=None, collectives=None
            ),
            peak_bytes=peak,
            collectives=predicted_and_found(decision, collectives),
        )

    def _median(self, runner: Runner) -> float:
        """Seconds of a run; there are fewer runs where time is short."""
        times: list[float] = []
        for turn in range(RUNS + 1):
            # A run may consume its arguments.
            leaves = list(map(_laid, self._values, self._problem.program.in_avals, runner.in_shardings))
            jax.block_until_ready(leaves)
            started = time.perf_counter()
            jax.block_until_ready(runner.flat_call(*leaves))
            if turn:
                times.append(time.perf_counter() - started)
            if times and self._deadline.passed:
                break
        return statistics.median(times)


Judge = CompilerJudge | MeasuringJudge
"""What gives verdicts on decisions."""


def _laid(value: Any, aval: Any, sharding: NamedSharding) -> Any:
    """A copy of a value on the devices; of a shape, zeros."""
    if not isinstance(value, jax.ShapeDtypeStruct):
        return jax.device_put(host(value) if is_key(value) else np.array(host(value), aval.dtype), sharding)
    if is_key(value):
        return jax.device_put(_zero_keys(value), sharding)
    return jax.jit(partial(jnp.zeros, value.shape, value.dtype), out_shardings=sharding)()


def _zero_keys(like: Any) -> Any:
    """Random keys of this shape and kind, of zeros."""
    bits = jax.eval_shape(jax.random.key_data, like)
    return jax.random.wrap_key_data(jnp.zeros(bits.shape, bits.dtype), impl=jax.random.key_impl(like))


def why_not_measured(program: Program, target: Target, flops: float, options: Options) -> str:
    """Why plans of a program cannot be measured on a target, or "". `flops` are those of a call, on all devices."""
    if target.why_not_run:
        return target.why_not_run
    if target.platform != target.topology.chip.platform:
        return f"the devices are of platform {target.platform}, and the plan is for {target.topology.name}"
    if not target.processes.alone:
        return "the devices are of several processes, which do not try plans together"
    if program.effects.io:
        return "the program has side effects, which every run would repeat"
    if target.on_host and flops > options.affordable_flops:
        return (
            f"a run takes about {flops:.2g} operations of virtual devices, more than Options(affordable_flops="
            f"{options.affordable_flops:.2g})"
        )
    return ""
