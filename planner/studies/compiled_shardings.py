"""What a compiler makes of a program with a user's shardings alone, beside what their best completion promises."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jax.sharding import PartitionSpec

from planner.compiler.targets.table import COMPILERS
from planner.decision import Decision
from planner.emit.alternatives import remedy_text
from planner.explain.repeated_products import products_by_source
from planner.folded import fold_numbers
from planner.options import Options
from planner.planning.checks import why_not_compiled
from planner.plans.plan import Plan
from planner.pricing.candidates.pins import exactly
from planner.program.jaxpr.flatten import build_graph
from planner.program.jaxpr.origins import own_line
from planner.program.tracing.traced import Leaf, Program
from planner.report.collectives import CollectiveUse, by_cost, total_seconds
from planner.report.rows import bytes_on_device
from planner.units import quantity
from planner.verify.aot import AotReport, flags_note
from planner.verify.compared_collectives import BETWEEN_SLICES, between_slices, moved
from planner.verify.compiled import compiled_with_own_shardings
from planner.verify.differences import Moved, bytes_by, surplus
from planner.verify.hlo.entry import argument_bytes, result_bytes
from planner.verify.hlo.products import innermost, read_products
from planner.verify.hlo.text import Module, parse_module
from planner.verify.scheduled import schedule_of
from planner.verify.verification import COMPILE_LIMIT_S

MORE = 0.01
"""A line computes, and an array takes, more than in the best completion where it does so by this share of all."""
MOST_MESSAGE = 300
"""Characters of a compiler's message that are told."""
_ARRAY = re.compile(r"HLO operation %?\S+ = (\w+\[[\d,]*\])")
_OPERATION = re.compile(r'op_name="([^"]*)"')

COMPLETED = (
    "what is priced is the best completion of your shardings: what they leave open is placed as well as can be. XLA "
    "completes shardings by its own rules, so the program as you run it may be slower"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """Products of matrices at a source line: operations per device and call, compiled, and in the best completion."""

    source: str
    flops: float
    best: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Larger:
    """An argument or result left open of which a device holds more `bytes` than in the best completion.

    `count` alike have one folded name; the bytes are those of each.
    """

    name: str
    count: int
    bytes: float
    best: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOnTheWay:
    """An array that is gathered whole, and split again, as the compiler finds no other way between two of its layouts.

    `array` is the type of what a device has of it before.
    """

    array: str
    operation: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AsCompiled:
    """A program as it was compiled with a user's shardings alone: all per device and call.

    `seconds` are those of the compiler's schedule, of which `exposed_seconds` wait for collectives; None where it tells
    none. `collectives` are None where they cannot be read. `peak_bytes` is the compiler's, None of a CPU's, which is not
    trustworthy. `surprises` are the collectives that the best completion does without, with the part of bytes and seconds
    that is beyond those of its kind and axes there, `repeated` the products of which a device computes more, `larger` the
    arguments and results of which it holds more, `held` the arrays that it holds whole on the way, which are known of
    compiles in a child process only.
    """

    seconds: float | None
    exposed_seconds: float | None
    peak_bytes: float | None
    argument_bytes: float | None
    collectives: tuple[CollectiveUse, ...] | None
    surprises: tuple[CollectiveUse, ...]
    repeated: tuple[Repeated, ...]
    larger: tuple[Larger, ...]
    held: tuple[HeldOnTheWay, ...]

    @property
    def communication_seconds(self) -> float | None:
        """The seconds of all collectives, as if nothing hid them."""
        return None if self.collectives is None else total_seconds(self.collectives)


def compiled_alone(program: Program, best: Plan, options: Options) -> AotReport:
    """What the compiler of a plan's target makes of a program on its mesh, with its pins alone."""
    own, target = best.decision, best.target
    why_not = why_not_compiled(target, options, len(build_graph(program).ops))
    if why_not:
        return AotReport(status="unavailable", message=why_not, seconds=0.0)

    def pinned(leaves: Sequence[Leaf]) -> list[PartitionSpec | None]:
        return [own.request.pins.get(exactly(leaf.name)) for leaf in leaves if not leaf.constant]

    return compiled_with_own_shardings(
        program,
        pinned(program.arguments),
        pinned(program.results),
        target,
        mesh_shape=own.mesh_shape,
        limit_s=options.affordable_compile_s if options.check == "auto" else COMPILE_LIMIT_S,
    )


def as_compiled(best: Plan, report: AotReport) -> AsCompiled | None:
    """What a report says of the program whose best completion is `best`; None where nothing was compiled."""
    if not report.hlo:
        return None
    own, module = best.decision, parse_module(report.hlo)
    platform = own.request.platform or own.request.topology.chip.platform
    memory, schedule = report.memory, schedule_of(report.hlo, own.request.topology, own.mesh_shape, platform)
    peak = report.needed_bytes if memory is None else float(memory.peak_bytes)
    unread = between_slices(own, platform)
    promised, found = moved(own, () if unread else report.collectives, platform)
    return AsCompiled(
        seconds=None if schedule is None else schedule.seconds,
        exposed_seconds=None if schedule is None else schedule.exposed_collective_seconds,
        peak_bytes=peak if COMPILERS[platform].reports_peak else None,
        argument_bytes=None if memory is None else float(memory.argument_bytes),
        collectives=None if unread else _by_line(found),
        surprises=_by_line(surplus(found, promised)),
        repeated=_repeated(products_by_source(best.alternatives.chosen), read_products(report.hlo, line=_own) or {}),
        larger=_larger(own, module),
        held=_held(report, module),
    )


def compile_note(own: Decision, report: AotReport, compiled: AsCompiled | None) -> str:
    """What the notes say of the program as it stands."""
    if compiled is None:
        return f"{COMPLETED}; it was not compiled as it stands: {_why_not(report)}"
    where = "for the devices here" if own.request.platform else f"for {own.topology}"
    note = f"{COMPLETED}; as it stands, with your shardings alone, it was compiled {where}"
    if report.remedy:
        note += f", {remedy_text(report.remedy)}"
    if flags := "" if own.request.platform else flags_note(own.request.topology.chip.platform):
        note += f"; {flags}"
    if between_slices(own, own.request.platform or own.request.topology.chip.platform):
        note += f", and of its collectives nothing is told: {BETWEEN_SLICES}"
    limit = min(own.request.memory_limit, float(own.request.topology.chip.hbm_bytes))
    peak = compiled.peak_bytes or 0.0
    over = f"needs {quantity(peak, 'B')} per device, more than the {quantity(limit, 'B')} there are"
    return note if peak <= limit else f"{note}, and {over}"


def _why_not(report: AotReport) -> str:
    """Why a report has no program."""
    if report.status == "timeout":
        return "the compile took too long; Options(affordable_compile_s=...) allows more, check='always' the most"
    if report.status == "oom" and report.needed_bytes is not None:
        return f"it does not fit, as it needs {quantity(report.needed_bytes, 'B')} per device by its compiler"
    return report.message[:MOST_MESSAGE]


def _own(sources: Sequence[str]) -> str:
    """The user's own line; the innermost where the compiler was not told as far."""
    return own_line(sources) or innermost(sources)


def _repeated(best: Mapping[str, float], compiled: Mapping[str, float]) -> tuple[Repeated, ...]:
    """The lines at which clearly more is compiled, those with the most more first."""
    least = MORE * sum(compiled.values())
    found = [Repeated(source=at, flops=flops, best=best.get(at, 0.0)) for at, flops in compiled.items()]
    more = [one for one in found if one.flops - one.best > least]
    return tuple(sorted(more, key=lambda one: (one.best - one.flops, one.source)))


def _larger(own: Decision, module: Module) -> tuple[Larger, ...]:
    """What is clearly larger of what is left open, that which takes most first."""
    arguments, results = argument_bytes(module), dict(enumerate(result_bytes(module)))
    least = MORE * (own.predicted.argument_bytes + own.predicted.output_bytes)
    sides = ((own.arguments, own.in_specs, arguments), (own.results, own.out_specs, results))
    names: list[str] = []
    sizes: list[tuple[float, float]] = []
    for leaves, specs, compiled in sides:
        for i, (leaf, spec) in enumerate(zip(leaves, specs, strict=True)):
            best = bytes_on_device(leaf, spec, own.mesh_shape)
            if exactly(leaf.name) not in own.request.pins and compiled.get(i, 0.0) > best:
                names.append(leaf.name)
                sizes.append((compiled[i], best))
    found = [
        Larger(name=name, count=len(members), bytes=sizes[members[0]][0], best=sizes[members[0]][1])
        for name, members in fold_numbers(names, sizes)
    ]
    more = [one for one in found if one.count * (one.bytes - one.best) > least]
    return tuple(sorted(more, key=lambda one: (one.count * (one.best - one.bytes), one.name)))


def _held(report: AotReport, module: Module) -> tuple[HeldOnTheWay, ...]:
    """What the compiler warns of, read as far as it says what it is."""
    found: list[HeldOnTheWay] = []
    for line in report.rematerialized:
        array, operation = _ARRAY.search(line), _OPERATION.search(line)
        found.append(
            HeldOnTheWay(
                array=array[1] if array else "",
                operation=operation[1] if operation else "",
                source=_own(module.sources_in(line)),
            )
        )
    return tuple(dict.fromkeys(found))


def _by_line(collectives: Sequence[Moved]) -> tuple[CollectiveUse, ...]:
    """The collectives by kind, axes and source line, those that take longest first, named after their largest operation."""
    groups: dict[tuple[str, tuple[str, ...], str], list[Moved]] = {}
    for one in collectives:
        groups.setdefault((*one.key, one.source), []).append(one)
    found = [
        CollectiveUse(
            kind=kind,
            axes=axes,
            source=source,
            operation=max(by_name := bytes_by(group, lambda m: m.op_name), key=by_name.__getitem__),
            runs=sum(one.runs for one in group),
            bytes=sum(one.bytes for one in group),
            seconds=sum(one.seconds for one in group),
        )
        for (kind, axes, source), group in groups.items()
    ]
    return tuple(sorted(found, key=by_cost))
