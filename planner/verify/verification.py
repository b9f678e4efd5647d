"""Verification: what a plan does beside what it promised.

Numerics: the sharded result against the single device's (see `numerics`). Collectives and memory: those of the compiled
HLO against the prediction, as the platform lowers it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jax.sharding import Mesh

from cost_models import CostModelError, parse_topology
from planner.decision import Decision
from planner.emit.runner import Runner
from planner.machine.aot_child import Place, place_of
from planner.machine.device_topology import slices_of
from planner.machine.global_arrays import in_common
from planner.machine.processes import Processes
from planner.predicted import as_lowered
from planner.verify.aot import aot_compile
from planner.verify.hlo.collectives import CompiledCollective, read_collectives
from planner.verify.hlo.memory import CompiledMemory, memory_of
from planner.verify.numerics import Numerics, compare_numerics

COLLECTIVE_TOLERANCE = 0.10
SMALL_BYTES = 4096.0
"""Collectives that together move no more than this are not held against a plan: scalars, counters, flags."""
PEAK_TOLERANCE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Collectives:
    """Bytes and runs per (kind, axes), predicted and compiled; `surprises` name what was not predicted, and where."""

    ok: bool | None
    reason: str
    predicted_bytes: float = 0.0
    compiled_bytes: float = 0.0
    by_kind: Mapping[tuple[str, tuple[str, ...]], tuple[float, float]] | None = None
    surprises: tuple[str, ...] = ()
    compiled: tuple[CompiledCollective, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes per device, (predicted, compiled); `peak` is only held against a plan where the compiler's is trustworthy."""

    ok: bool | None
    reason: str
    arguments: tuple[float, float] = (0.0, 0.0)
    outputs: tuple[float, float] = (0.0, 0.0)
    aliased: tuple[float, float] = (0.0, 0.0)
    peak: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The three verdicts. `ok`: nothing that was checked failed, and something was checked."""

    numerics: Numerics
    collectives: Collectives
    memory: Memory

    @property
    def ok(self) -> bool:
        """Whether every check that was made passed, and at least one was made."""
        verdicts = [part.ok for part in (self.numerics, self.collectives, self.memory)]
        return False not in verdicts and True in verdicts

    def __str__(self) -> str:
        word = {True: "ok", False: "FAILED", None: "not checked"}
        parts = (("numerics", self.numerics), ("collectives", self.collectives), ("memory", self.memory))
        lines = [f"{name}: {word[part.ok]}. {part.reason}" for name, part in parts]
        return "\n".join([*lines, *(f"  {text}" for text in self.collectives.surprises)])


def verify(
    decision: Decision,
    runner: Runner,
    args: tuple[Any, ...] | str,
    *,
    seed: int,
    reference: Callable[..., Any] | None = None,
    rtol: float | None = None,
) -> Verification:
    """The verification of what a decision promises of what its runner does.

    `args` are the flat arguments, or the reason why it cannot be run. `reference` and `rtol` are as of
    `compare_numerics`. Where the devices are of several processes, all make this call together, and get one verdict.

    Raises: ProcessError where another process does not come.
    """
    target = runner.target
    processes = target.processes
    if target.devices is not None:
        names = [leaf.name for leaf in decision.arguments]
        args = in_common(names, args, runner.mesh, processes)
    found = _compiled(decision, runner)
    mine = found if isinstance(found, str) else None
    failed = next((why for why in processes.gathered(lambda: mine) if why), None)
    if isinstance(found, str) or failed is not None:
        return Verification(
            numerics=Numerics(ok=None, reason="the plan does not compile"),
            collectives=Collectives(ok=False, reason=f"the plan does not compile: {failed}"),
            memory=Memory(ok=None, reason="the plan does not compile"),
        )
    collectives, memory = found
    numerics = (
        Numerics(ok=None, reason=args)
        if isinstance(args, str)
        else _agreed(
            compare_numerics(
                decision, runner.program, target, runner.flat_call, args, seed=seed, reference=reference, rtol=rtol
            ),
            processes,
        )
    )
    return Verification(numerics=numerics, collectives=collectives, memory=memory)


def _agreed(mine: Numerics, processes: Processes) -> Numerics:
    """The verdict of all processes: the worst of theirs. The leaves are those of this one."""
    answers = processes.gathered(lambda: [mine.ok, mine.reason])
    verdicts = [ok for ok, _ in answers]
    worst = next(verdicts.index(ok) for ok in (False, None, True) if ok in verdicts)
    ok, reason = answers[worst]
    where = "" if len(set(verdicts)) == 1 else f"on process {processes.members[worst]}: "
    return replace(mine, ok=ok, reason=where + reason)


# ---------------------------------------------------------------- compiled program


def _compiled(decision: Decision, runner: Runner) -> tuple[Collectives, Memory] | str:
    """Collectives and memory of the compiled program against the prediction, or why it does not compile."""
    target = runner.target
    try:
        if target.devices is None or (target.why_not_run and target.platform == "tpu"):
            return _deviceless(decision, runner)
        executable = runner.executable
        count = int(np.prod(list(decision.mesh_shape.values()), dtype=np.int64))
        found = read_collectives(executable.as_text(), num_devices=count)
        platform = target.devices[0].platform
        return (
            compare_collectives(decision, found, platform),
            compare_memory(decision, memory_of(executable), platform),
        )
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:300]}"


def _deviceless(decision: Decision, runner: Runner) -> tuple[Collectives, Memory]:
    """What the compiler alone says, where nothing can be run."""
    mesh, target = runner.mesh, runner.target
    platform, topology = target.topology.chip.platform, target.topology.name
    options: dict[str, Any] = {}
    places: list[Place] | None = None
    if isinstance(mesh, Mesh):
        platform = target.platform
        topology, options = slices_of(list(mesh.devices.flat))
        places = [place for device in mesh.devices.flat if (place := place_of(device)) is not None]
    if platform != "tpu" or not _is_known(topology):
        reason = f"compiling for {topology} without devices is not supported"
        return Collectives(ok=None, reason=reason), Memory(ok=None, reason=reason)
    report = aot_compile(
        runner.flat_jit,
        runner.program.in_avals,
        mesh_shape=decision.mesh_shape,
        topology=topology,
        topology_options=options,
        places=places,
    )
    if report.status == "unavailable":
        return Collectives(ok=None, reason=report.message), Memory(ok=None, reason=report.message)
    if report.memory is None:
        reason = f"the compiler for {topology} said {report.status}: {report.message[:300]}"
        needed = report.needed_bytes or 0.0
        return (
            Collectives(ok=None if report.status == "oom" else False, reason=reason),
            Memory(ok=False, reason=reason, peak=(decision.predicted.peak_bytes, needed)),
        )
    return compare_collectives(decision, report.collectives, platform), compare_memory(
        decision, report.memory, platform
    )


def _is_known(topology: str) -> bool:
    """Whether a topology's name is one that compilers know, not one of the user's own."""
    try:
        parse_topology(topology)
    except CostModelError:
        return False
    return True


def compare_collectives(decision: Decision, compiled: Sequence[CompiledCollective], platform: str) -> Collectives:
    """Predicted and compiled bytes per kind and axes; ok when the totals agree within `COLLECTIVE_TOLERANCE`.

    Loops that end when some value does count as one pass on both sides: how often they run is not what is compared.
    """
    predicted = (
        as_lowered(decision.predicted.collectives, platform)
        if not _is_lowered(decision, platform)
        else (decision.predicted.collectives)
    )
    promised: dict[tuple[str, tuple[str, ...]], float] = {}
    for c in predicted:
        key = (c.kind, _real_axes(c.axes, decision.mesh_shape))
        promised[key] = promised.get(key, 0.0) + c.bytes * (c.count / c.assumed if c.assumed else 0.0)
    actual: dict[tuple[str, tuple[str, ...]], float] = {}
    largest: dict[tuple[str, tuple[str, ...]], CompiledCollective] = {}
    unknown: list[str] = []
    for c in compiled:
        axes = c.axes(decision.mesh_shape)
        key = (c.kind, axes if axes is not None else ("?",))
        actual[key] = actual.get(key, 0.0) + c.bytes * c.known_trips
        if key not in largest or c.bytes > largest[key].bytes:
            largest[key] = c
        if c.trip_count is None:
            unknown.append(f"how often the {c.kind} at {c.source or c.op_name} runs is not known: one pass is compared")
    total, real = sum(promised.values()), sum(actual.values())
    surprises = list(dict.fromkeys(unknown))
    for key in sorted(actual, key=lambda k: -actual[k]):
        extra = actual[key] - promised.get(key, 0.0)
        if extra > max(SMALL_BYTES, COLLECTIVE_TOLERANCE * max(total, real)):
            c = largest[key]
            surprises.append(
                f"{c.kind} over {','.join(key[1])}: {actual[key]:.4g} bytes, {promised.get(key, 0.0):.4g} predicted; "
                f"the largest is at {c.source or '?'} ({c.op_name})"
            )
    keys = set(promised) | set(actual)
    ok = abs(total - real) <= max(SMALL_BYTES, COLLECTIVE_TOLERANCE * max(total, real))
    return Collectives(
        ok=ok,
        reason=f"{real:.6g} bytes compiled, {total:.6g} predicted",
        predicted_bytes=total,
        compiled_bytes=real,
        by_kind={key: (promised.get(key, 0.0), actual.get(key, 0.0)) for key in sorted(keys)},
        surprises=tuple(surprises),
        compiled=tuple(compiled),
    )


def _is_lowered(decision: Decision, platform: str) -> bool:
    return decision.request.topology.chip.platform == "cpu" and platform == "cpu"


def _real_axes(axes: tuple[str, ...], mesh_shape: Mapping[str, int]) -> tuple[str, ...]:
    return tuple(axis for axis in axes if mesh_shape[axis] > 1)


def compare_memory(decision: Decision, compiled: CompiledMemory, platform: str) -> Memory:
    """Predicted and compiled bytes; ok when arguments, outputs and aliases agree, and off the CPU the peak within 25 %."""
    p = decision.predicted
    arguments = (p.argument_bytes, float(compiled.argument_bytes))
    outputs = (p.output_bytes, float(compiled.output_bytes))
    aliased = (p.alias_bytes, float(compiled.alias_bytes))
    peak = (p.peak_bytes, float(compiled.peak_bytes))
    close = all(abs(a - b) <= max(1024.0, 0.01 * b) for a, b in (arguments, outputs, aliased))
    if platform == "cpu":
        ok, extra = close, "the CPU's peak is not trustworthy"
    else:
        fits = abs(peak[0] - peak[1]) <= PEAK_TOLERANCE * max(peak)
        ok, extra = fits, f"peak {peak[1]:.4g} bytes compiled, {peak[0]:.4g} predicted"
    reason = (
        f"arguments {arguments[1]:.6g} of {arguments[0]:.6g}, results {outputs[1]:.6g} of {outputs[0]:.6g}, "
        f"aliased {aliased[1]:.6g} of {aliased[0]:.6g} bytes; {extra}"
    )
    return Memory(ok=ok, reason=reason, arguments=arguments, outputs=outputs, aliased=aliased, peak=peak)


def summary(verification: Verification) -> list[tuple[str, bool | None, str]]:
    """(what, ok, detail) of the three parts."""
    parts = (
        ("numerics", verification.numerics),
        ("collectives", verification.collectives),
        ("memory", verification.memory),
    )
    return [(name, part.ok, part.reason) for name, part in parts]
