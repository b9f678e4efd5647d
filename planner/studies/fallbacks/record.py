"""Fallbacks of a plan: for each topology that may be left a plan, and what going over to it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from cost_models import Topology
from planner.errors import ArgumentError
from planner.plans.plan import Plan
from planner.printing.parts import Part, count, table_of
from planner.printing.printed import Printed
from planner.studies.fallbacks.moved import LINKS, Move
from planner.studies.saved_folder import file_name, save_folder
from planner.units import quantity

FORMAT = "meshwright fallbacks"
VERSION = 1
SUMMARY = "fallbacks.json"
"""What saved fallbacks have beside their plans."""
COLUMNS = f"topology|devices|>time|>x today|layout|>kept|{'|'.join(f'>{link}' for link in LINKS)}|>to move|compiled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """The plan for a topology, what bringing the state there takes, or `why_none`.

    `layout` says which plan was taken: the "fastest", or the one whose arguments lie "as today". `compiled`: whether its
    program was compiled for devices that are here.
    """

    topology: Topology
    plan: Plan | None = None
    move: Move | None = None
    layout: str = ""
    compiled: bool = False
    why_none: str = ""


@final
class Fallbacks(Printed, tuple[Fallback, ...]):
    """The fallbacks of a plan, in the order asked for; `of` is the plan, `notes` say what was assumed."""

    of: Plan
    notes: tuple[str, ...]

    def __new__(cls, rows: Sequence[Fallback], *, of: Plan, notes: Sequence[str]) -> Fallbacks:
        """The fallbacks of these rows."""
        made = tuple.__new__(cls, rows)
        made.of, made.notes = of, tuple(notes)
        return made

    def plan_for(self, topology: str) -> Plan:
        """The plan for a topology, by its name. Raises: ArgumentError where there is none."""
        for row in self:
            if row.topology.name == topology and row.plan is not None:
                return row.plan
        there = ", ".join(row.topology.name for row in self if row.plan is not None)
        raise ArgumentError(f"there is no fallback for {topology!r}; there are plans for {there or 'none'}")

    @property
    def summary(self) -> dict[str, Any]:
        """What the table says, as plain data: bytes and seconds."""
        return {
            "function": self.of.decision.function_name,
            "topology": self.of.decision.topology,
            "seconds": self.of.predicted.seconds,
            "notes": list(self.notes),
            "rows": list(map(_data, self)),
        }

    def _parts(self) -> list[Part]:
        of = self.of.decision
        state = next((row.move.state_bytes for row in self if row.move is not None), 0.0)
        heading = (
            f"Fallbacks of {of.function_name} for {of.topology}, {quantity(of.predicted.seconds, 's')} per call: "
            f"{count(len(self), 'topology', 'topologies')}, a state of {quantity(state, 'B')}"
        )
        return [heading, table_of(COLUMNS, map(self._cells, self)), *(f"- {note}" for note in self.notes)]

    def __repr__(self) -> str:
        return f"<Fallbacks of {self.of.decision.function_name}: {len(self)} rows>"

    def _cells(self, row: Fallback) -> tuple[str, ...]:
        if row.plan is None or row.move is None:
            return row.topology.name, str(row.topology.num_devices), "", "", row.why_none
        seconds, today = row.plan.predicted.seconds, self.of.predicted.seconds
        over = [quantity(row.move.by_link[link].bytes, "B") for link in LINKS]
        return (
            row.topology.name,
            str(row.plan.mesh.size),
            quantity(seconds, "s"),
            f"{seconds / today:.3g}" if today > 0 else "",
            row.layout,
            quantity(row.move.kept_bytes, "B"),
            *over,
            quantity(row.move.seconds, "s"),
            "here" if row.compiled else "",
        )

    def save(self, folder: str | Path) -> None:
        """Writes `plan_0.json`, ... (for `planner.load`) and a summary, `fallbacks.json`, into a folder, all or nothing.

        Fallbacks that were saved there are replaced. Raises: ArgumentError where the folder holds anything else.
        """
        made = [row for row in self if row.plan is not None]
        files = {row.topology.name: file_name(i) for i, row in enumerate(made)}
        rows = [{"file": files.get(row.topology.name), **_data(row)} for row in self]
        record = {"format": FORMAT, "version": VERSION, **self.summary, "rows": rows}
        save_folder(folder, [row.plan for row in made if row.plan is not None], SUMMARY, record, "fallbacks")


def _data(row: Fallback) -> dict[str, Any]:
    """A row as plain data."""
    if row.plan is None or row.move is None:
        return {"topology": row.topology.name, "why_none": row.why_none}
    return {
        "topology": row.topology.name,
        "mesh": dict(row.plan.decision.mesh_shape),
        "seconds": row.plan.predicted.seconds,
        "peak_bytes": row.plan.predicted.peak_bytes,
        "layout": row.layout,
        "state_bytes": row.move.state_bytes,
        "kept_bytes": row.move.kept_bytes,
        "moved_bytes": row.move.bytes,
        "moved_bytes_per_device": row.move.bytes_per_device,
        "moving_seconds": row.move.seconds,
        "by_link": {
            link: {"bytes": moved.bytes, "bytes_per_device": moved.bytes_per_device, "seconds": moved.seconds}
            for link, moved in row.move.by_link.items()
        },
        "compiled": row.compiled,
        "checked": {check.what: check.ok for check in row.plan.checked},
    }
