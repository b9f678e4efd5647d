"""Two plans beside each other, as a record that prints: where they differ, and what that costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jax.sharding import PartitionSpec
from rich.console import RenderableType
from rich.text import Text

from planner.pricing.candidates.specs import spec_words
from planner.pricing.mesh import mesh_words
from planner.report.text_table import Justify, add_row, table_of, text_of
from planner.units import quantity

MOST_ARRAYS = 24
MOST_COLLECTIVES = 16
MOST_NAMES = 6
ALIKE = 1e-9
"""Figures are the same that differ by no more than this share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure of both plans, per device and call."""

    name: str
    unit: str
    a: float
    b: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Arrays of one type, under folded names, that the plans place otherwise; bytes are of all of them on one device."""

    name: str
    type: str
    count: int
    a: PartitionSpec
    b: PartitionSpec
    bytes_a: float
    bytes_b: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """The collectives of one kind over the same axes, by group size where the meshes differ: runs and bytes per call.

    Seconds are those of the collectives as if nothing hid them; None for a plan whose prices its file does not tell.
    """

    kind: str
    over: str
    runs_a: float
    runs_b: float
    bytes_a: float
    bytes_b: float
    seconds_a: float | None
    seconds_b: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Where two plans differ. `notes` say what could not be compared, and how it was compared instead.

    `arrays` are arguments and results, `intermediates` those inside, `only_a` and `only_b` names of arrays of one alone.
    """

    a: str
    b: str
    notes: tuple[str, ...]
    mesh_a: Mapping[str, int]
    mesh_b: Mapping[str, int]
    form_a: str
    form_b: str
    figures: tuple[Figure, ...]
    arrays: tuple[Placed, ...]
    intermediates: tuple[Placed, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    collectives: tuple[Moved, ...]

    @property
    def same(self) -> bool:
        """Whether nothing that is compared differs."""
        parts = (self.arrays, self.intermediates, self.only_a, self.only_b)
        moved = [m for m in self.collectives if not (alike(m.bytes_a, m.bytes_b) and alike(m.runs_a, m.runs_b))]
        figures = [f for f in self.figures if not alike(f.a, f.b)]
        return (
            not any(parts) and not moved and not figures and self.mesh_a == self.mesh_b and self.form_a == self.form_b
        )

    def __str__(self) -> str:
        parts: list[RenderableType] = [Text(f"A  {self.a}\nB  {self.b}", style="bold"), *_summary(self)]
        if self.same:
            parts.append(Text("\nThe plans are the same."))
        parts += _placed("arguments and results", self.arrays)
        parts += _placed("intermediates", self.intermediates)
        for who, names in (("A", self.only_a), ("B", self.only_b)):
            if names:
                more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
                parts.append(Text(f"\nonly in {who}: {', '.join(names[:MOST_NAMES])}{more}"))
        parts += _moved(self.collectives)
        if self.notes:
            parts += [Text("\nnotes", style="bold"), *(Text(f"- {note}") for note in self.notes)]
        return text_of(parts)


def alike(a: float, b: float) -> bool:
    """Whether two figures are the same."""
    return abs(a - b) <= ALIKE * max(abs(a), abs(b))


# ---------------------------------------------------------------- in words

FIGURE_NAMES = {
    "seconds": "time of a call",
    "compute_seconds": "  computing",
    "communication_seconds": "  communicating",
    "flops": "operations",
    "traffic_bytes": "read and written",
    "peak_bytes": "peak memory",
    "argument_bytes": "  arguments",
    "output_bytes": "  results",
    "energy_joules": "energy",
}


def _summary(found: Comparison) -> list[RenderableType]:
    columns: list[tuple[str, Justify]] = [
        ("", "left"),
        ("A", "right"),
        ("B", "right"),
        ("B - A", "right"),
        ("", "right"),
    ]
    table = table_of(*columns)
    add_row(table, "mesh", mesh_words(found.mesh_a), mesh_words(found.mesh_b), "", "")
    if found.form_a != found.form_b or found.form_a != "as written":
        add_row(table, "form", found.form_a, found.form_b, "", "")
    for figure in found.figures:
        a, b, unit = figure.a, figure.b, figure.unit
        change = "same" if alike(a, b) else _signed(b - a, unit)
        share = "" if alike(a, b) or not a else f"{100 * (b - a) / a:+.3g} %" if abs(b - a) < a else f"x {b / a:.3g}"
        add_row(table, FIGURE_NAMES[figure.name], quantity(a, unit), quantity(b, unit), change, share)
    return [table]


def _signed(value: float, unit: str) -> str:
    return f"{'+' if value >= 0 else '-'}{quantity(abs(value), unit)}"


def _placed(what: str, placed: Sequence[Placed]) -> list[RenderableType]:
    if not placed:
        return []
    with_types = any(one.type for one in placed)
    columns: list[tuple[str, Justify]] = [
        ("", "left"),
        ("type", "left"),
        ("A", "left"),
        ("B", "left"),
        ("per device", "right"),
    ]
    table = table_of(*(column for column in columns if with_types or column[0] not in ("type", "per device")))
    for one in placed[:MOST_ARRAYS]:
        cells = [one.name, one.type, spec_words(one.a), spec_words(one.b)]
        size = f"{quantity(one.bytes_a, 'B')} -> {quantity(one.bytes_b, 'B')}"
        add_row(table, *([*cells, size] if with_types else [cells[0], *cells[2:]]))
    more = sum(one.count for one in placed[MOST_ARRAYS:])
    rest: list[RenderableType] = [Text(f"... and {more} more")] if more else []
    return [Text(f"\n{what} placed otherwise: {sum(one.count for one in placed)}", style="bold"), table, *rest]


def _moved(collectives: Sequence[Moved]) -> list[RenderableType]:
    different = [m for m in collectives if not (alike(m.bytes_a, m.bytes_b) and alike(m.runs_a, m.runs_b))]
    if not different:
        return []
    figures: list[tuple[str, Justify]] = [(name, "right") for name in ("A", "B", "bytes", "seconds alone")]
    table = table_of(("", "left"), ("over", "left"), *figures)
    for m in different[:MOST_COLLECTIVES]:
        seconds = ""
        if m.seconds_a is not None and m.seconds_b is not None:
            seconds = _signed(m.seconds_b - m.seconds_a, "s")
        add_row(
            table,
            m.kind,
            m.over,
            f"{m.runs_a:g} x, {quantity(m.bytes_a, 'B')}" if m.runs_a else "none",
            f"{m.runs_b:g} x, {quantity(m.bytes_b, 'B')}" if m.runs_b else "none",
            _signed(m.bytes_b - m.bytes_a, "B"),
            seconds,
        )
    left = len(different) - MOST_COLLECTIVES
    rest: list[RenderableType] = [Text(f"... and {left} more")] if left > 0 else []
    return [Text("\ncollectives that differ, per device and call", style="bold"), table, *rest]
