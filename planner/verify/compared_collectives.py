"""Collectives: those of the compiled program beside those that were promised, weighed by the seconds they take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from planner.compiler.collectives.lowering import as_lowered
from planner.compiler.targets.table import COMPILERS
from planner.decision import Decision
from planner.prediction import Collective
from planner.program.jaxpr.origins import own_line, short_line
from planner.units import quantity
from planner.verify.collective_prices import CollectivePrices, collective_prices, plain_kind
from planner.verify.differences import Difference, Key, Moved, bytes_by, differences
from planner.verify.hlo.collectives import CompiledCollective

BROKEN_SHARE = 0.05
"""A promise is broken where what became of it costs more than this share of the seconds of a call."""
COMMUNICATION_SHARE = 0.05
"""A difference is told from this share on of the seconds of all communication, promised or compiled, the larger one."""
STEP_SHARE = 0.01
"""And from this share on of the seconds of a call."""
BYTES_SHARE = 0.10
"""Where the CPU compiles, by this share of the bytes instead: between virtual devices seconds say nothing."""
SMALL_BYTES = 4096.0
"""Collectives that together move no more than this are not held against a plan: scalars, counters, flags."""
NOTED_SHARE = 0.1
"""Differences are told where they are more than this share of what is allowed."""
BETWEEN_SLICES = "what passes between slices is compiled to transfers by the hosts, which are not read"
MOST_NOTED = 8
SMALLEST_NOTED = 0.01
"""One by one: at most so many, of at least this share of the largest's seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collectives:
    """Bytes and seconds of a call, promised and compiled, by kind and axes; `differences` name what became of what.

    `ok` is False where a promise is broken, or the plan does not compile; `differs` where more than a little is not as
    promised. `extra_seconds` are compiled and were not promised, `missing_seconds` were promised and are not compiled,
    `lost_seconds` is what that costs. `surprises` says the largest differences in words.
    """

    ok: bool | None
    reason: str
    differs: bool = False
    predicted_bytes: float = 0.0
    compiled_bytes: float = 0.0
    predicted_seconds: float = 0.0
    compiled_seconds: float = 0.0
    extra_seconds: float = 0.0
    missing_seconds: float = 0.0
    lost_seconds: float = 0.0
    by_kind: Mapping[Key, tuple[float, float]] | None = None
    differences: tuple[Difference, ...] = ()
    surprises: tuple[str, ...] = ()
    compiled: tuple[CompiledCollective, ...] = field(default=(), repr=False)


def compare_collectives(
    decision: Decision, compiled: Sequence[CompiledCollective], platform: str, *, scheduled_seconds: float | None = None
) -> Collectives:
    """Promised and compiled collectives, kind by kind and axes by axes, each difference priced on the topology's wires.

    They differ where what is compiled and was not promised, or what was promised and is not compiled, takes more than
    `COMMUNICATION_SHARE` of the seconds of communication and `STEP_SHARE` of those predicted of a call (on CPU: moves
    more than `BYTES_SHARE` of the bytes), and moves more than `SMALL_BYTES`. A difference of only the number of pieces
    is none. Loops that end when some value does count as one pass on both sides: how often they run is not what is
    compared.

    ok unless they differ and `BROKEN_SHARE` of a call is lost by it. Lost are the seconds by which all that is compiled
    exceeds all that was promised. Where less is compiled, the work may be done without moving anything, on every device
    again: then lost are the seconds of the schedule (`scheduled_seconds` of a call, if known) above the predicted ones,
    as far as what is missing accounts for them.
    """
    shape = decision.mesh_shape
    promised, actual = moved(decision, compiled, platform)
    found = differences(promised, actual, every_axis=tuple(axis for axis, size in shape.items() if size > 1))
    by_kind = [bytes_by(side, lambda m: m.key) for side in (promised, actual)]
    total = [sum(sums.values()) for sums in by_kind]
    seconds = [sum(m.seconds for m in side) for side in (promised, actual)]
    missing, extra = sum(d.promised_seconds for d in found), sum(d.compiled_seconds for d in found)
    if platform == "cpu":
        apart = max(sum(d.promised_bytes for d in found), sum(d.compiled_bytes for d in found))
        allowed = BYTES_SHARE * max(total)
    else:
        apart = max(missing, extra)
        allowed = max(COMMUNICATION_SHARE * max(seconds), STEP_SHARE * decision.predicted.seconds)
    small = sum(max(d.promised_bytes, d.compiled_bytes) for d in found) <= SMALL_BYTES
    differs = not small and apart > allowed
    call = decision.predicted.seconds if scheduled_seconds is None else scheduled_seconds
    lost = max(extra - missing, min(missing, call - decision.predicted.seconds), 0.0)
    broken = differs and lost > BROKEN_SHARE * call
    reason = (
        f"{quantity(total[1], 'B')} in {quantity(seconds[1], 's')}, as promised" if any(total) else "none, as promised"
    )
    if found:
        reason = (
            f"{quantity(total[1], 'B')} in {quantity(seconds[1], 's')} compiled, {quantity(total[0], 'B')} in "
            f"{quantity(seconds[0], 's')} promised; {quantity(extra, 's')} compiled that were not promised, "
            f"{quantity(missing, 's')} promised that were not compiled"
        )
    if broken:
        reason = f"a broken promise costs {quantity(lost, 's')} of the {quantity(call, 's')} of a call: {reason}"
    return Collectives(
        ok=not broken,
        reason=reason,
        differs=differs,
        predicted_bytes=total[0],
        compiled_bytes=total[1],
        predicted_seconds=seconds[0],
        compiled_seconds=seconds[1],
        extra_seconds=extra,
        missing_seconds=missing,
        lost_seconds=lost,
        by_kind={
            key: (by_kind[0].get(key, 0.0), by_kind[1].get(key, 0.0)) for key in sorted({*by_kind[0], *by_kind[1]})
        },
        differences=found,
        surprises=(*_unknown_loops(compiled), *(() if small or apart <= NOTED_SHARE * allowed else _noted(found))),
        compiled=tuple(compiled),
    )


def moved(decision: Decision, compiled: Sequence[CompiledCollective], platform: str) -> tuple[list[Moved], list[Moved]]:
    """The collectives that a decision promises, as a platform's compiler writes them, and those that it has compiled."""
    shape = decision.mesh_shape
    prices = collective_prices(decision.request.topology, shape)
    predicted = decision.predicted.collectives
    # What is predicted is what the compiler of the topology's own platform writes: of whole-slice scatters sums.
    if platform != decision.request.topology.chip.platform:
        predicted = as_lowered(predicted, COMPILERS[platform], lambda kind, *_: kind)
    promised = [m for c in predicted if (m := _promised(c, shape, prices)).axes]
    return promised, [_compiled(c, prices) for c in compiled]


def between_slices(decision: Decision, platform: str) -> bool:
    """Whether a mesh lies on more than one slice of TPUs."""
    links = decision.request.topology.links(tuple(decision.mesh_shape.values())) or ()
    return platform == "tpu" and any(segment.kind == "network" for link in links for segment in link.dims)


def _promised(collective: Collective, mesh_shape: Mapping[str, int], prices: CollectivePrices) -> Moved:
    axes = tuple(axis for axis in collective.axes if mesh_shape[axis] > 1)
    runs = collective.count / collective.assumed if collective.assumed else 0.0
    return Moved(
        kind=collective.kind,
        axes=axes,
        line=collective.line or collective.source,
        source=collective.source,
        each_bytes=collective.bytes,
        runs=runs,
        bytes=runs * collective.bytes,
        seconds=runs * prices.promised(collective.kind, collective.bytes, axes),
    )


def _compiled(collective: CompiledCollective, prices: CollectivePrices) -> Moved:
    runs = collective.known_trips
    return Moved(
        kind=plain_kind(collective.kind),
        axes=collective.axes(prices.mesh_shape) or ("?",),
        line=short_line(collective.source),
        source=own_line(collective.sources) or short_line(collective.source),
        each_bytes=collective.bytes,
        runs=runs,
        bytes=runs * collective.bytes,
        seconds=runs * prices.compiled(collective),
        op_name=collective.op_name,
        windowed=collective.windowed,
    )


def _unknown_loops(compiled: Sequence[CompiledCollective]) -> tuple[str, ...]:
    """What could not be read of the compiled program."""
    unknown = [c for c in compiled if c.trip_count is None]
    notes = [
        f"how often the {c.kind} at {c.source or c.op_name} runs is not known: one pass is compared" for c in unknown
    ]
    return tuple(dict.fromkeys(notes))


def _noted(found: Sequence[Difference]) -> tuple[str, ...]:
    """The largest differences in words."""
    large = [d for d in found if d.seconds >= SMALLEST_NOTED * found[0].seconds][:MOST_NOTED]
    rest = found[len(large) :]
    if not rest:
        return tuple(map(str, large))
    more = quantity(max(sum(d.promised_seconds for d in rest), sum(d.compiled_seconds for d in rest)), "s")
    return (*map(str, large), f"and {len(rest)} smaller difference{'s' * (len(rest) > 1)} of {more}")
