"""What a user's own shardings cost: a record that prints, beside the plan found with everything free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jax.sharding import PartitionSpec
from rich.console import RenderableType
from rich.text import Text

from planner.decision import Decision
from planner.plan_file.codec import as_json
from planner.pricing.candidates.specs import spec_words
from planner.pricing.mesh import mesh_words
from planner.report.collective_seconds import collective_seconds
from planner.report.plain_data import told
from planner.report.text_table import Justify, add_row, table_of, text_of
from planner.studies.compiled_shardings import AsCompiled, HeldOnTheWay, Larger, Repeated
from planner.units import quantity

MOST_ROWS = 10
PARTS = 3
"""Parts of the compiler's names of operations that are printed."""
COUNTED: tuple[tuple[str, Justify], ...] = (("runs", "right"), ("bytes", "right"), ("seconds alone", "right"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Surprise:
    """Collectives that the free plan does not have: of one kind over some axes, on one array, at one source line.

    `runs` and `bytes` per call; `seconds` as if nothing hid them, None where prices were measured.
    """

    kind: str
    axes: tuple[str, ...]
    tensor: str
    source: str
    runs: float
    bytes: float
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldWhole:
    """An argument or result that is held whole along `axes`, though it could be split by them.

    `spec` is its own, `free` that of the free plan, where that has the array; `bytes` are on one device, `saved` would be
    spared were it split by these axes as well.
    """

    name: str
    spec: PartitionSpec
    free: PartitionSpec | None
    axes: tuple[str, ...]
    bytes: float
    saved: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """What it gains to leave an array's sharding to the planner, the others as they are; of several alike together.

    `better` is the spec it has then; `seconds` and `bytes` (at the peak, per device) are saved, negative where they grow.
    """

    name: str
    count: int
    spec: PartitionSpec
    better: PartitionSpec
    seconds: float
    bytes: float


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What a user's own shardings cost.

    `own` is the best completion of these shardings: what they leave open is placed as well as can be. `compiled` is the
    program as it stands, where the compiler completes them; None where it was not compiled, which the notes say. `free` is
    the plan found without them, and without what the program names itself. `surprises` are the collectives of `own` that
    `free` does without. `gains` are single changes, the best first.
    """

    own: Decision
    compiled: AsCompiled | None
    free: Decision
    surprises: tuple[Surprise, ...]
    whole: tuple[HeldWhole, ...]
    gains: tuple[Gain, ...]
    notes: tuple[str, ...]

    @property
    def summary(self) -> dict[str, Any]:
        """The audit as plain data: seconds, bytes per device, specs as lists of the axes of every dim."""
        return {
            "own": told(self.own),
            "free": told(self.free),
            **{name: as_json(getattr(self, name)) for name in ("compiled", "surprises", "whole", "gains", "notes")},
        }

    def __str__(self) -> str:
        own = self.own
        parts: list[RenderableType] = [
            Text(f"Audit of the shardings of {own.function_name} for {own.topology}", style="bold"),
            *_beside(own, self.free),
            *_as_it_stands(own, self.compiled),
            *_surprises(self.surprises),
            *_whole(self.whole),
            *_gains(self.gains),
            Text("\nnotes", style="bold"),
            *(Text(f"- {note}") for note in self.notes),
        ]
        return text_of(parts)

    def __repr__(self) -> str:
        return f"<Audit of {self.own.function_name} on {dict(self.own.mesh_shape)}>"


def _beside(own: Decision, free: Decision) -> list[RenderableType]:
    columns: list[tuple[str, Justify]] = [("", "left"), ("yours", "right"), ("free", "right"), ("", "right")]
    table = table_of(*columns)

    def row(name: str, mine: str, its: str, beside: str = "") -> None:
        add_row(table, name, mine, its, beside)

    row("mesh", mesh_words(own.mesh_shape), mesh_words(free.mesh_shape))
    figures = (
        ("time of a call", "seconds", "s"),
        ("  computing", "compute_seconds", "s"),
        ("  communicating", "communication_seconds", "s"),
        ("peak memory", "peak_bytes", "B"),
        ("  arguments", "argument_bytes", "B"),
        ("energy", "energy_joules", "J"),
    )
    for name, figure, unit in figures:
        mine = getattr(own.predicted, figure)
        its = getattr(free.predicted, figure)
        beside = f"x {its / mine:.3g}" if mine > 0 else ""
        row(name, quantity(mine, unit), quantity(its, unit), beside)
    return [table]


def _as_it_stands(own: Decision, found: AsCompiled | None) -> list[RenderableType]:
    if found is None:
        return []
    table = table_of(("", "left"), ("compiled", "right"), ("completed best", "right"))
    alone = collective_seconds(own)
    figures = (
        ("time of a call", found.seconds, own.predicted.seconds, "s"),
        ("  waiting for collectives", found.exposed_seconds, own.predicted.communication_seconds, "s"),
        ("collectives alone", found.communication_seconds, None if alone is None else sum(alone), "s"),
        ("peak memory", found.peak_bytes, own.predicted.peak_bytes, "B"),
        ("  arguments", found.argument_bytes, own.predicted.argument_bytes, "B"),
    )
    for name, compiled, promised, unit in figures:
        if compiled is not None:
            add_row(table, name, quantity(compiled, unit), "" if promised is None else quantity(promised, unit))
    parts: list[RenderableType] = [Text("\nyour program as it stands, compiled", style="bold"), table]
    parts += [*_repeated(found.repeated), *_larger(found.larger), *_held(found.held)]
    if found.collectives is None:
        return parts
    if not found.surprises:
        return [*parts, Text("\nno compiled collective that the best completion does without")]
    moves = table_of(("", "left"), ("of", "left"), ("at", "left"), *COUNTED)
    for one in found.surprises[:MOST_ROWS]:
        what = _end_of(one.operation)
        _add_collective(moves, one.kind, one.axes, what, one.source, one.runs, one.bytes, one.seconds)
    title = Text("\ncompiled collectives that the best completion does without", style="bold")
    return [*parts, title, moves, *_more(len(found.surprises))]


def _repeated(found: Sequence[Repeated]) -> list[RenderableType]:
    if not found:
        return []
    table = table_of(("at", "left"), ("compiled", "right"), ("completed best", "right"), ("", "right"))
    for one in found[:MOST_ROWS]:
        times = f"x {one.flops / one.best:.3g}" if one.best > 0 else ""
        add_row(table, one.source, quantity(one.flops, "FLOP"), quantity(one.best, "FLOP"), times)
    title = Text("\nproducts of matrices of which every device computes more than in the best completion", style="bold")
    return [title, table, *_more(len(found))]


def _larger(found: Sequence[Larger]) -> list[RenderableType]:
    if not found:
        return []
    table = table_of(("", "left"), ("compiled", "right"), ("completed best", "right"))
    for one in found[:MOST_ROWS]:
        name = one.name if one.count == 1 else f"{one.name} ({one.count})"
        add_row(table, name, quantity(one.bytes, "B"), quantity(one.best, "B"))
    title = Text("\nwhat you leave open and the compiler holds more of, per device", style="bold")
    return [title, table, *_more(len(found))]


def _held(found: Sequence[HeldOnTheWay]) -> list[RenderableType]:
    if not found:
        return []
    table = table_of(("a device's part", "left"), ("of", "left"), ("at", "left"))
    for one in found[:MOST_ROWS]:
        add_row(table, one.array, _end_of(one.operation), one.source)
    title = Text("\narrays gathered whole for want of a way between two layouts", style="bold")
    return [title, table, *_more(len(found))]


def _end_of(operation: str) -> str:
    """The end of the compiler's name of an operation, where the module and the primitive stand."""
    return "/".join(operation.split("/")[-PARTS:])


def _add_collective(
    table: Any,
    kind: str,
    axes: Sequence[str],
    what: str,
    source: str,
    runs: float,
    size: float,
    seconds: float | None,
) -> None:
    alone = "" if seconds is None else quantity(seconds, "s")
    add_row(table, f"{kind} over {','.join(axes)}", what, source, f"{runs:.4g}", quantity(size, "B"), alone)


def _surprises(found: Sequence[Surprise]) -> list[RenderableType]:
    if not found:
        return [Text("\nno collective that the free plan does without")]
    table = table_of(("", "left"), ("of", "left"), ("at", "left"), *COUNTED)
    for one in found[:MOST_ROWS]:
        _add_collective(table, one.kind, one.axes, one.tensor, one.source, one.runs, one.bytes, one.seconds)
    return [Text("\ncollectives that the free plan does without", style="bold"), table, *_more(len(found))]


def _whole(found: Sequence[HeldWhole]) -> list[RenderableType]:
    if not found:
        return []
    columns: list[tuple[str, Justify]] = [("", "left"), ("yours", "left"), ("free", "left"), ("whole along", "left")]
    table = table_of(*columns, ("per device", "right"), ("split saves", "right"))
    for one in found[:MOST_ROWS]:
        free = "" if one.free is None else spec_words(one.free)
        add_row(
            table,
            one.name,
            spec_words(one.spec),
            free,
            ",".join(one.axes),
            quantity(one.bytes, "B"),
            quantity(one.saved, "B"),
        )
    return [Text("\nlarge arrays held whole that could be split", style="bold"), table, *_more(len(found))]


def _gains(found: Sequence[Gain]) -> list[RenderableType]:
    if not found:
        return [Text("\nno single sharding left to the planner gains anything")]
    columns: list[tuple[str, Justify]] = [("", "left"), ("yours", "left"), ("better", "left")]
    table = table_of(*columns, ("saves", "right"), ("at the peak", "right"))
    for one in found[:MOST_ROWS]:
        name = one.name if one.count == 1 else f"{one.name} ({one.count})"
        add_row(
            table,
            name,
            spec_words(one.spec),
            spec_words(one.better),
            _signed(one.seconds, "s"),
            _signed(one.bytes, "B"),
        )
    return [
        Text("\nwhat leaving one sharding to the planner saves, the others as they are", style="bold"),
        table,
        *_more(len(found)),
    ]


def _more(count: int) -> list[RenderableType]:
    return [Text(f"... and {count - MOST_ROWS} more")] if count > MOST_ROWS else []


def _signed(saved: float, unit: str) -> str:
    """What is saved; what is lost with a minus."""
    return quantity(saved, unit) if saved >= 0 else f"-{quantity(-saved, unit)}"
