"""Two plans beside each other, as a record that prints: where they differ, and what that costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax.sharding import PartitionSpec

from planner.pricing.candidates.specs import spec_text
from planner.pricing.mesh import mesh_text
from planner.printing.axes import new_axes
from planner.printing.parts import Part, section, table_of
from planner.printing.printed import Printed
from planner.units import listed, quantity

MOST_ARRAYS = 24
MOST_COLLECTIVES = 16
MOST_NAMES = 6
ALIKE = 1e-9
"""Figures are the same that differ by no more than this share."""
FIGURE_NAMES = {
    "seconds": ("time of a call", "s"),
    "compute_seconds": ("  computing", "s"),
    "communication_seconds": ("  communicating", "s"),
    "flops": ("operations", "FLOP"),
    "traffic_bytes": ("read and written", "B"),
    "peak_bytes": ("peak memory", "B"),
    "offloaded_bytes": ("waiting on hosts", "B"),
    "argument_bytes": ("  arguments", "B"),
    "output_bytes": ("  results", "B"),
    "energy_joules": ("energy", "J"),
}
"""The names and units of what is compared of a prediction, by field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure of both plans, per device and call."""

    name: str
    unit: str
    a: float
    b: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayChange:
    """Arrays of one type, under folded names, that the plans place otherwise; bytes are of all of them on one device."""

    name: str
    type: str
    count: int
    a: PartitionSpec
    b: PartitionSpec
    bytes_a: float
    bytes_b: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveChange:
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
class Comparison(Printed):
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
    arrays: tuple[ArrayChange, ...]
    intermediates: tuple[ArrayChange, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    collectives: tuple[CollectiveChange, ...]

    @property
    def same(self) -> bool:
        """Whether nothing that is compared differs."""
        same_figures = all(alike(figure.a, figure.b) for figure in self.figures)
        lists = (self.arrays, self.intermediates, self.only_a, self.only_b, self.different_collectives)
        return same_figures and not any(lists) and (self.mesh_a, self.form_a) == (self.mesh_b, self.form_b)

    @property
    def different_collectives(self) -> list[CollectiveChange]:
        """The collectives of which runs or bytes are not the same."""
        return [m for m in self.collectives if not (alike(m.bytes_a, m.bytes_b) and alike(m.runs_a, m.runs_b))]

    def _parts(self) -> list[Part]:
        return comparison_parts(self)

    def plot(self, ax: Any = None) -> Any:
        """The matplotlib axes with every figure of B as a multiple of A's. `ax`: where to draw it.

        Raises: ImportError where matplotlib is not installed.
        """
        ax = new_axes("Comparison.plot") if ax is None else ax
        figures = [figure for figure in self.figures if figure.a > 0]
        names = [FIGURE_NAMES[figure.name][0].strip() for figure in figures]
        bars = ax.barh(names, [figure.b / figure.a for figure in figures])
        ax.bar_label(bars, [quantity(figure.b, figure.unit) for figure in figures], padding=3)
        ax.margins(x=0.2)
        ax.axvline(1.0, color="black", linewidth=1)
        ax.invert_yaxis()
        ax.set(xlabel="B / A", title=f"A: {self.a}\nB: {self.b}")
        return ax


def alike(a: float, b: float) -> bool:
    """Whether two figures are the same."""
    return abs(a - b) <= ALIKE * max(abs(a), abs(b))


# ---------------------------------------------------------------- as text


def comparison_parts(comparison: Comparison) -> list[Part]:
    """What a comparison says, to be printed."""
    parts: list[Part] = [f"A  {comparison.a}\nB  {comparison.b}", table_of("|>A|>B|>B - A|>", _summary(comparison))]
    if comparison.same:
        parts.append("\nThe plans are the same.")
    parts += _placed("arguments and results", comparison.arrays)
    parts += _placed("intermediates", comparison.intermediates)
    for which, names in (("A", comparison.only_a), ("B", comparison.only_b)):
        if names:
            parts.append(f"\nonly in {which}: {listed(names, MOST_NAMES)}")
    rows = [_moved(one) for one in comparison.different_collectives]
    title = "collectives that differ, per device and call"
    parts += section(title, "|over|>A|>B|>bytes|>seconds alone", rows, MOST_COLLECTIVES)
    if comparison.notes:
        parts += ["\nnotes", *(f"- {note}" for note in comparison.notes)]
    return parts


def _summary(comparison: Comparison) -> list[tuple[str, ...]]:
    rows = [("mesh", mesh_text(comparison.mesh_a), mesh_text(comparison.mesh_b))]
    if comparison.form_a != comparison.form_b or comparison.form_a != "as written":
        rows.append(("form", comparison.form_a, comparison.form_b))
    return [*rows, *map(_figure, comparison.figures)]


def _figure(figure: Figure) -> tuple[str, ...]:
    a, b, unit = figure.a, figure.b, figure.unit
    change = "same" if alike(a, b) else _change(b - a, unit)
    share = "" if alike(a, b) or not a else f"{100 * (b - a) / a:+.3g} %" if abs(b - a) < a else f"x {b / a:.3g}"
    return FIGURE_NAMES[figure.name][0], quantity(a, unit), quantity(b, unit), change, share


def _change(value: float, unit: str) -> str:
    return f"{'+' if value >= 0 else '-'}{quantity(abs(value), unit)}"


def _placed(what: str, placed: Sequence[ArrayChange]) -> list[Part]:
    """The arrays placed differently; types and bytes are not known of intermediates."""
    if not placed:
        return []
    rows = [
        (one.name, one.type, spec_text(one.a), spec_text(one.b), f"{_bytes(one.bytes_a)} -> {_bytes(one.bytes_b)}")
        for one in placed[:MOST_ARRAYS]
    ]
    if any(one.type for one in placed):
        table = table_of("|type|A|B|>per device", rows)
    else:
        table = table_of("|A|B", [(name, a, b) for name, _, a, b, _ in rows])
    more = sum(one.count for one in placed[MOST_ARRAYS:])
    title = f"\n{what} placed otherwise: {sum(one.count for one in placed)}"
    return [title, table, *([f"... and {more} more"] if more else [])]


def _moved(m: CollectiveChange) -> tuple[str, ...]:
    seconds = "" if m.seconds_a is None or m.seconds_b is None else _change(m.seconds_b - m.seconds_a, "s")
    a, b = (
        f"{runs:g} x, {_bytes(size)}" if runs else "none"
        for runs, size in ((m.runs_a, m.bytes_a), (m.runs_b, m.bytes_b))
    )
    return m.kind, m.over, a, b, _change(m.bytes_b - m.bytes_a, "B"), seconds


def _bytes(size: float) -> str:
    return quantity(size, "B")
