"""Plans of one function for several topologies, and for one device of each, beside one another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, final

from cost_models import Chip, Topology
from planner.plans.plan import Plan
from planner.printing.axes import new_axes
from planner.printing.parts import Part, table_of
from planner.printing.printed import Printed
from planner.studies.saved_folder import file_name, save_folder
from planner.units import quantity

FORMAT = "meshwright topologies"
VERSION = 1
SUMMARY = "topologies.json"
"""What a saved comparison has beside its plans."""
ENOUGH = 1.5
"""One device is enough where nothing else is more than so many times as fast."""
LAUNCH_SECONDS = 10e-6
"""Or where a call takes no longer than launching one does: `jax.jit` of an addition on a CPU, x86-64, jax 0.10.2."""
BY_SECONDS = attrgetter("seconds")
IN_SUMMARY = ("devices", "seconds", "device_seconds", "joules", "peak_bytes", "memory_limit", "efficiency")
"""Fields of `Figures` that the summary has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyRow:
    """The plan for a topology, or why there is none; with `alone` for one device of its chip.

    `limits` are the seconds of a call by what limits them, the most first. `least_bytes` is the memory per device with
    which a plan would fit, where none does and it is known.
    """

    topology: Topology
    alone: bool
    plan: Plan | None
    limits: Mapping[str, float]
    why_none: str = ""
    least_bytes: float | None = None

    @property
    def name(self) -> str:
        """That of the topology, or "one of v5e:4x4"."""
        return f"one of {self.topology.name}" if self.alone else self.topology.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a plan takes: `seconds` of a call, `device_seconds` and `joules` on all devices that it uses, bytes per device.

    `name` is that of its row. `efficiency`: the device-seconds of the plan on the fewest devices of the same chip, over
    those of this one.
    """

    name: str
    chip: Chip
    devices: int
    seconds: float
    device_seconds: float
    joules: float
    peak_bytes: float
    memory_limit: float
    efficiency: float = 1.0


@final
class TopologyComparison(Printed):
    """Plans of one function, a row for every topology in the order asked for, then one device of each chip alone.

    Every plan is one as `planner.plan` returns it. `notes` say which is the fastest, and where one device is enough.
    """

    def __init__(self, rows: Sequence[TopologyRow], *, objective: str) -> None:
        self.rows, self.objective = tuple(rows), objective
        self._figures = _figures(self.rows)

    @property
    def plans(self) -> dict[str, Plan]:
        """The plans by the names of their rows, but for those where there is none."""
        return {row.name: row.plan for row in self.rows if row.plan is not None}

    @property
    def fastest(self) -> Plan:
        """The plan of the least time per call."""
        return self.plans[min(self._figures.values(), key=BY_SECONDS).name]

    @property
    def notes(self) -> tuple[str, ...]:
        """What the table comes to, and what to know of it."""
        figures = list(self._figures.values())
        return (*_bests(figures), *_enough(self.rows, figures), *_doubts(self.rows))

    @property
    def summary(self) -> dict[str, Any]:
        """What the table says, as plain data: seconds, joules, bytes per device."""
        return {
            "function": self.fastest.decision.function_name,
            "objective": self.objective,
            "notes": list(self.notes),
            "rows": [self._data(row) for row in self.rows],
        }

    def _data(self, row: TopologyRow) -> dict[str, Any]:
        named = {"name": row.name, "topology": row.topology.name, "chip": row.topology.chip.name, "alone": row.alone}
        if row.plan is None:
            return {**named, "why_none": row.why_none, "least_bytes": row.least_bytes}
        certificate = row.plan.certificate
        return {
            **named,
            "mesh": dict(row.plan.decision.mesh_shape),
            "of_devices": row.topology.num_devices,
            **{name: getattr(self._figures[row.name], name) for name in IN_SUMMARY},
            "limits": dict(row.limits),
            "lower_bound": certificate.lower_bound,
            "unit": certificate.unit,
            "gap": certificate.gap,
            "checked": {check.what: check.ok for check in row.plan.checked},
        }

    def _parts(self) -> list[Part]:
        heading = f"Topologies for {self.fastest.decision.function_name}, by call"
        columns = "topology|devices|>time|>x devices|>energy|>memory left|>efficiency|limited by|certificate"
        return [heading, table_of(columns, map(self._cells, self.rows)), *(f"- {note}" for note in self.notes)]

    def _cells(self, row: TopologyRow) -> tuple[str, ...]:
        """A row of the printed table."""
        available = 1 if row.alone else row.topology.num_devices
        if row.plan is None:
            return row.name, str(available), "", "", "", "", "", row.why_none
        figures = self._figures[row.name]
        left = figures.memory_limit - figures.peak_bytes
        return (
            row.name,
            str(available) if available == figures.devices else f"{figures.devices} of {available}",
            quantity(figures.seconds, "s"),
            quantity(figures.device_seconds, "s"),
            quantity(figures.joules, "J"),
            f"{quantity(left, 'B')} {left / figures.memory_limit:.0%}",
            f"{figures.efficiency:.0%}",
            _bottleneck(row),
            row.plan.certificate.status,
        )

    def __repr__(self) -> str:
        return f"<TopologyComparison of {self.fastest.decision.function_name}: {len(self.rows)} rows>"

    def plot(self, ax: Any = None) -> Any:
        """The matplotlib axes with the time of a call over devices, a line for each chip. `ax`: where to draw it.

        Raises: ImportError where matplotlib is not installed.
        """
        ax = new_axes("TopologyComparison.plot") if ax is None else ax
        for chip in dict.fromkeys(one.chip for one in self._figures.values()):
            points = sorted((one.devices, one.seconds, one.name) for one in self._figures.values() if one.chip == chip)
            devices, seconds, _ = zip(*points, strict=True)
            ax.plot(devices, seconds, marker="o", label=chip.name)
            for *at, name in points:
                ax.annotate(name, at)
        ax.set(xscale="log", yscale="log", xlabel="devices", ylabel="time of a call, seconds")
        ax.set(title=f"{self.fastest.decision.function_name} by topology")
        ax.legend()
        return ax

    def save(self, folder: str | Path) -> None:
        """Writes `plan_0.json`, ... (for `planner.load`) and a summary, `topologies.json`, into a folder, all or nothing.

        A comparison that was saved there is replaced. Raises: ArgumentError where the folder holds anything else.
        """
        files = {name: file_name(i) for i, name in enumerate(self.plans)}
        rows = [{"file": files.get(row["name"]), **row} for row in self.summary["rows"]]
        summary = {"format": FORMAT, "version": VERSION, **self.summary, "rows": rows}
        save_folder(folder, list(self.plans.values()), SUMMARY, summary, "comparison")


# ---------------------------------------------------------------- figures


def _figures(rows: Sequence[TopologyRow]) -> dict[str, Figures]:
    """The figures of the plans, by the names of their rows."""
    found: list[Figures] = []
    for row in rows:
        if row.plan is not None:
            predicted, devices = row.plan.predicted, math.prod(row.plan.decision.mesh_shape.values())
            found.append(
                Figures(
                    name=row.name,
                    chip=row.topology.chip,
                    devices=devices,
                    seconds=predicted.seconds,
                    device_seconds=devices * predicted.seconds,
                    joules=devices * predicted.energy_joules,
                    peak_bytes=predicted.peak_bytes,
                    memory_limit=row.plan.decision.request.memory_limit,
                )
            )
    return {one.name: _with_efficiency(one, [other for other in found if other.chip == one.chip]) for one in found}


def _with_efficiency(one: Figures, of_chip: Sequence[Figures]) -> Figures:
    fewest = min(of_chip, key=lambda figures: (figures.devices, figures.seconds))
    return replace(one, efficiency=fewest.device_seconds / one.device_seconds) if one.device_seconds > 0 else one


# ---------------------------------------------------------------- sentences


def _bottleneck(row: TopologyRow) -> str:
    """What takes the most of the time of a call, and how much of it."""
    what = next(iter(row.limits), None)
    whole = sum(row.limits.values())
    return "nothing" if what is None else f"{what} {row.limits[what] / whole:.0%}"


def _bests(figures: Sequence[Figures]) -> list[str]:
    fast, small = min(figures, key=BY_SECONDS), min(figures, key=attrgetter("joules"))
    fastest = f"the fastest is {fast.name}: {quantity(fast.seconds, 's')} per call"
    if small is fast:
        return [f"{fastest}, and the least energy, {quantity(fast.joules, 'J')}"]
    return [f"{fastest}; {small.name} takes the least energy, {quantity(small.joules, 'J')}"]


def _enough(rows: Sequence[TopologyRow], figures: Sequence[Figures]) -> list[str]:
    """Where one device does, or the CPU: where nothing of the same chip, or nothing at all, is much faster."""
    found: list[str] = []
    for chip in dict.fromkeys(row.topology.chip for row in rows):
        own = [one for one in figures if one.chip == chip]
        single = [one for one in own if one.devices == 1]
        if any(row.topology.num_devices > 1 for row in rows if row.topology.chip == chip):
            found += _does(f"one device of {chip.name}", single, own)
    on_host = [one for one in figures if one.chip.on_host]
    if len(on_host) < len(figures):
        found += _does("the CPU", on_host, figures)
    return found


def _does(what: str, few: Sequence[Figures], others: Sequence[Figures]) -> list[str]:
    """That the fastest of a few plans is enough, where none of the others is much faster than it, or than its launch."""
    if not few:
        return []
    taken, best = min(few, key=BY_SECONDS), min(others, key=BY_SECONDS)
    enough = f"{what} is enough: {quantity(taken.seconds, 's')} per call"
    if taken.seconds <= best.seconds:
        return [f"{enough}, and nothing else is faster"]
    if taken.seconds <= LAUNCH_SECONDS:
        return [f"{enough}, which is less than launching it takes"]
    if taken.seconds > ENOUGH * best.seconds:
        return []
    return [f"{enough}, and {best.name} is {taken.seconds / best.seconds:.3g} times as fast on {best.devices} devices"]


def _doubts(rows: Sequence[TopologyRow]) -> list[str]:
    """What is to be known before the figures are relied upon."""
    found: list[str] = []
    for row in rows:
        failed = [] if row.plan is None else [check.what for check in row.plan.checked if check.ok is False]
        if failed:
            found.append(f"{row.name}: FAILED its check of {', '.join(failed)}")
    analytic = any(row.plan is not None and row.plan.decision.request.cost_model == "analytic" for row in rows)
    if analytic and any(row.topology.chip.on_host for row in rows):
        found.append(
            "the figures of cpu:N are of virtual devices that share one small host; measure yours by "
            "`meshwright calibrate`, for cost_model='measured'"
        )
    return found
