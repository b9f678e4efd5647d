"""Plans of one function for several topologies, and for one device of each, beside one another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

from cost_models import Chip, Topology
from planner.plans.plan import Plan
from planner.report.drawing import new_axes
from planner.report.text_table import table_of, text_of
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

    `efficiency`: the device-seconds of the plan on the fewest devices of the same chip, over those of this one.
    """

    devices: int
    seconds: float
    device_seconds: float
    joules: float
    peak_bytes: float
    memory_limit: float
    efficiency: float = 1.0


@final
class TopologyComparison:
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
        return self.plans[_least(self._figures, "seconds")]

    @property
    def notes(self) -> tuple[str, ...]:
        """What the table comes to, and what to know of it."""
        return (*_bests(self._figures), *_enough(self.rows, self._figures), *_doubts(self.rows))

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
            **asdict(self._figures[row.name]),
            "limits": dict(row.limits),
            "lower_bound": certificate.lower_bound,
            "unit": certificate.unit,
            "gap": certificate.gap,
            "checked": {check.what: check.ok for check in row.plan.checked},
        }

    def __str__(self) -> str:
        heading = f"Topologies for {self.fastest.decision.function_name}, by call"
        columns = "topology|devices|>time|>x devices|>energy|>memory left|>efficiency|limited by|certificate"
        return text_of([heading, table_of(columns, map(self._cells, self.rows)), *(f"- {note}" for note in self.notes)])

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
        for chip in dict.fromkeys(row.topology.chip for row in self.rows if row.plan is not None):
            named = [(name, self._figures[name]) for name in _of_chip(chip, self.rows) if name in self._figures]
            points = sorted((figures.devices, figures.seconds, name) for name, figures in named)
            devices, seconds, names = zip(*points, strict=True)
            ax.plot(devices, seconds, marker="o", label=chip.name)
            for at, took, name in zip(devices, seconds, names, strict=True):
                ax.annotate(name, (at, took))
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
        told = {"format": FORMAT, "version": VERSION, **self.summary, "rows": rows}
        save_folder(folder, list(self.plans.values()), SUMMARY, told, "comparison")


# ---------------------------------------------------------------- figures


def _figures(rows: Sequence[TopologyRow]) -> dict[str, Figures]:
    """The figures of the plans, by the names of their rows."""
    found: dict[str, Figures] = {}
    for row in rows:
        if row.plan is not None:
            predicted, devices = row.plan.predicted, math.prod(row.plan.decision.mesh_shape.values())
            found[row.name] = Figures(
                devices=devices,
                seconds=predicted.seconds,
                device_seconds=devices * predicted.seconds,
                joules=devices * predicted.energy_joules,
                peak_bytes=predicted.peak_bytes,
                memory_limit=row.plan.decision.request.memory_limit,
            )
    return {row.name: _rated(row, rows, found) for row in rows if row.name in found}


def _rated(row: TopologyRow, rows: Sequence[TopologyRow], found: Mapping[str, Figures]) -> Figures:
    """The figures of a row with its efficiency."""
    own, alike = found[row.name], [found[name] for name in _of_chip(row.topology.chip, rows) if name in found]
    fewest = min(alike, key=lambda figures: (figures.devices, figures.seconds))
    return replace(own, efficiency=fewest.device_seconds / own.device_seconds) if own.device_seconds > 0 else own


def _of_chip(chip: Chip, rows: Sequence[TopologyRow]) -> list[str]:
    """The names of the rows of a chip."""
    return [row.name for row in rows if row.topology.chip == chip]


def _least(figures: Mapping[str, Figures], what: str) -> str:
    """The name of the row of the least of a figure, the first of equal ones."""
    return min(figures, key=lambda name: getattr(figures[name], what))


# ---------------------------------------------------------------- words


def _bottleneck(row: TopologyRow) -> str:
    """What takes the most of the time of a call, and how much of it."""
    what = next(iter(row.limits), None)
    whole = sum(row.limits.values())
    return "nothing" if what is None else f"{what} {row.limits[what] / whole:.0%}"


def _bests(figures: Mapping[str, Figures]) -> list[str]:
    fast, small = _least(figures, "seconds"), _least(figures, "joules")
    fastest = f"the fastest is {fast}: {quantity(figures[fast].seconds, 's')} per call"
    if small == fast:
        return [f"{fastest}, and the least energy, {quantity(figures[fast].joules, 'J')}"]
    return [f"{fastest}; {small} takes the least energy, {quantity(figures[small].joules, 'J')}"]


def _enough(rows: Sequence[TopologyRow], figures: Mapping[str, Figures]) -> list[str]:
    """Where one device does, or the CPU: where nothing of the same chip, or nothing at all, is much faster."""
    found: list[str] = []
    for chip in dict.fromkeys(row.topology.chip for row in rows):
        own = {name: figures[name] for name in _of_chip(chip, rows) if name in figures}
        single = {name: taken for name, taken in own.items() if taken.devices == 1}
        if single and any(row.topology.num_devices > 1 for row in rows if row.topology.chip == chip):
            least = _least(single, "seconds")
            found += _does(f"one device of {chip.name}", single[least], _least(own, "seconds"), own)
    on_host = {
        row.name: figures[row.name] for row in rows if row.topology.chip.platform == "cpu" and row.name in figures
    }
    if on_host and len(on_host) < len(figures):
        least = _least(on_host, "seconds")
        found += _does("the CPU", on_host[least], _least(figures, "seconds"), figures)
    return found


def _does(what: str, taken: Figures, best: str, figures: Mapping[str, Figures]) -> list[str]:
    """That something is enough, where nothing is much faster than it, or than its launch."""
    seconds = figures[best].seconds
    enough = f"{what} is enough: {quantity(taken.seconds, 's')} per call"
    if taken.seconds <= seconds:
        return [f"{enough}, and nothing else is faster"]
    if taken.seconds <= LAUNCH_SECONDS:
        return [f"{enough}, which is less than launching it takes"]
    if taken.seconds > ENOUGH * seconds:
        return []
    return [f"{enough}, and {best} is {taken.seconds / seconds:.3g} times as fast on {figures[best].devices} devices"]


def _doubts(rows: Sequence[TopologyRow]) -> list[str]:
    """What is to be known before the figures are relied upon."""
    found: list[str] = []
    for row in rows:
        failed = [] if row.plan is None else [check.what for check in row.plan.checked if check.ok is False]
        if failed:
            found.append(f"{row.name}: FAILED its check of {', '.join(failed)}")
    analytic = any(row.plan is not None and row.plan.decision.request.cost_model == "analytic" for row in rows)
    if analytic and any(row.topology.chip.platform == "cpu" for row in rows):
        found.append(
            "the figures of cpu:N are of virtual devices that share one small host; measure yours by "
            "`meshwright calibrate`, for cost_model='measured'"
        )
    return found
