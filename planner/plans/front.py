"""The front: plans of one function along memory against time or energy, from the least peak to the least cost."""

from __future__ import annotations

import json
import math
import shutil
import uuid
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, final, overload

from planner.decision import Decision
from planner.errors import ArgumentError
from planner.options import Options
from planner.plans.plan import Plan
from planner.plans.text_table import Justify, add_row, table_of, text_of
from planner.units import quantity

FORMAT = "meshwright front"
VERSION = 1
SUMMARY = "front.json"
"""What a saved front has beside its plans."""
MOST_POINTS = 50
UNITS = {"time": "s", "energy": "J"}
"""Of the cost, by objective."""


def cost_of(decision: Decision, objective: str) -> float:
    """Seconds of a call, or joules on all devices together: what a front has beside the peak of memory."""
    if objective == "time":
        return decision.predicted.seconds
    if decision.certificate.unit != "bytes":
        return decision.certificate.value
    return decision.predicted.energy_joules * math.prod(decision.mesh_shape.values())


@final
class Front(Sequence[Plan]):
    """Plans of one function, the least peak of memory first: each next one takes more of it and costs less.

    Every one is a plan as `planner.plan` returns it. `notes` say what the search did not finish. `objective` is what is
    weighed against memory: "time" or "energy".
    """

    def __init__(self, plans: Sequence[Plan], *, objective: str, notes: Sequence[str] = ()) -> None:
        self._plans, self.objective, self.notes = tuple(plans), objective, tuple(notes)

    def __len__(self) -> int:
        return len(self._plans)

    @overload
    def __getitem__(self, index: int) -> Plan: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Plan, ...]: ...

    def __getitem__(self, index: int | slice) -> Plan | tuple[Plan, ...]:
        return self._plans[index]

    def within(self, memory_bytes: float) -> Plan:
        """The plan of least cost whose predicted peak is at most so many bytes per device. Raises: ArgumentError."""
        fitting = [plan for plan in self if plan.predicted.peak_bytes <= memory_bytes]
        if not fitting:
            raise ArgumentError(
                f"no plan of the front takes at most {quantity(memory_bytes, 'B')}; the least takes "
                f"{quantity(self[0].predicted.peak_bytes, 'B')}"
            )
        return fitting[-1]

    @property
    def summary(self) -> dict[str, Any]:
        """What the table says, as plain data: bytes per device, seconds or joules of a call, bounds."""
        first = self[0].decision
        return {
            "function": first.function_name,
            "topology": first.topology,
            "objective": self.objective,
            "memory_limit": first.request.memory_limit,
            "notes": list(self.notes),
            "plans": [
                {
                    "peak_bytes": plan.predicted.peak_bytes,
                    self.objective: cost_of(plan.decision, self.objective),
                    "mesh": dict(plan.decision.mesh_shape),
                    "minimised": plan.decision.request.objective,
                    "within_bytes": plan.certificate.within_bytes,
                    "value": plan.certificate.value,
                    "lower_bound": plan.certificate.lower_bound,
                    "unit": plan.certificate.unit,
                    "gap": plan.certificate.gap,
                    "checked": {check.what: check.ok for check in plan.checked},
                }
                for plan in self
            ],
        }

    def __str__(self) -> str:
        first = self[0].decision
        unit, costs = UNITS[self.objective], [cost_of(plan.decision, self.objective) for plan in self]
        heading = (
            f"Front of {first.function_name} for {first.topology}: peak memory per device against {self.objective} of a "
            f"call, {len(self)} plan{'' if len(self) == 1 else 's'}"
        )
        figures: list[tuple[str, Justify]] = [
            (name, "right") for name in ("", "peak", "of largest", self.objective, "of least")
        ]
        table = table_of(*figures, ("mesh", "left"), ("certificate", "left"), ("checks", "left"))
        most = max(self[-1].predicted.peak_bytes, 1.0)
        for i, (plan, cost) in enumerate(zip(self, costs, strict=True)):
            add_row(
                table,
                str(i),
                quantity(plan.predicted.peak_bytes, "B"),
                f"{plan.predicted.peak_bytes / most:.1%}",
                quantity(cost, unit),
                f"x {cost / costs[-1]:.3g}" if costs[-1] > 0 else "",
                " x ".join(f"{name}={size}" for name, size in plan.decision.mesh_shape.items()),
                _certificate_words(plan),
                _check_words(plan),
            )
        return text_of([heading, table, *(f"- {note}" for note in self.notes)])

    def __repr__(self) -> str:
        return f"<Front of {self[0].decision.function_name}: {len(self)} plans>"

    def plot(self, ax: Any = None) -> Any:
        """The matplotlib axes with the front drawn: `front.plot().figure.savefig("front.png")`. `ax`: where to draw it.

        Raises: ImportError where matplotlib is not installed.
        """
        if ax is None:
            _, ax = _pyplot().subplots(layout="constrained")
        peaks = [plan.predicted.peak_bytes for plan in self]
        costs = [cost_of(plan.decision, self.objective) for plan in self]
        # Between two plans nothing better is known than the one of less memory.
        ax.plot(peaks, costs, marker="o", drawstyle="steps-post")
        ax.set(xscale="log", yscale="log", xlabel="peak memory per device, bytes")
        ax.set(ylabel=f"{self.objective} of a call, {'seconds' if self.objective == 'time' else 'joules'}")
        ax.set(title=f"{self[0].decision.function_name} for {self[0].decision.topology}")
        for plan, peak, cost in zip(self, peaks, costs, strict=True):
            ax.annotate("x".join(map(str, plan.decision.mesh_shape.values())), (peak, cost))
        return ax

    def save(self, folder: str | Path) -> None:
        """Writes `plan_0.json`, ... (for `planner.load`) and a summary, `front.json`, into a folder, all or nothing.

        A front that was saved there is replaced. Raises: ArgumentError where the folder holds anything else.
        """
        folder = Path(folder).absolute()
        check_folder(folder)
        tag = uuid.uuid4().hex[:8]
        whole, before = (folder.with_name(f"{folder.name}.{tag}.{what}") for what in ("part", "old"))
        try:
            whole.mkdir(parents=True)
            self._write(whole)
            if folder.exists():
                folder.replace(before)
            whole.replace(folder)
        except OSError as error:
            raise ArgumentError(f"the front cannot be saved in {folder}: {error}; give another folder") from error
        finally:
            shutil.rmtree(whole, ignore_errors=True)
            shutil.rmtree(before, ignore_errors=True)

    def _write(self, folder: Path) -> None:
        names = [f"plan_{i}.json" for i in range(len(self))]
        for name, plan in zip(names, self, strict=True):
            plan.save(folder / name)
        told = self.summary
        points = [{"file": name, **point} for name, point in zip(names, told["plans"], strict=True)]
        told = {"format": FORMAT, "version": VERSION, **told, "plans": points}
        (folder / SUMMARY).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def check_front(points: int, objective: str, options: Options) -> None:
    """Nothing where such a front can be asked for. Raises: ArgumentError."""
    if isinstance(points, bool) or not isinstance(points, int) or not 2 <= points <= MOST_POINTS:
        raise ArgumentError(f"points is {points!r}; give a whole number of plans from 2 to {MOST_POINTS}")
    if objective not in UNITS:
        raise ArgumentError(f"objective is {objective!r}; a front is of memory against {' or '.join(map(repr, UNITS))}")
    if options.refine != "never":
        raise ArgumentError(
            f"Options(refine={options.refine!r}) is for single plans; leave it out here, and refine the plan that you "
            "choose by planner.plan(..., memory_limit=its peak)"
        )


def check_folder(folder: Path) -> None:
    """Nothing where a front can be saved in this folder. Raises: ArgumentError where it holds anything but a front."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ArgumentError(f"{folder} is a file; give a folder to save the front in")
    names = {path.name for path in folder.iterdir()}
    of_front = {name for name in names if name == SUMMARY or (name.startswith("plan_") and name.endswith(".json"))}
    if names and (SUMMARY not in names or names != of_front):
        raise ArgumentError(
            f"the folder {folder} holds other files than those of a front; give a new one to save it in"
        )


def _certificate_words(plan: Plan) -> str:
    """How good a plan is among those of its memory, or by its peak."""
    certificate = plan.certificate
    of = "peak" if certificate.unit == "bytes" else {"seconds": "time", "joules": "energy"}[certificate.unit]
    return f"{of} {certificate.status}"


def _check_words(plan: Plan) -> str:
    """What became of the checks of a plan."""
    failed = [check.what for check in plan.checked if check.ok is False]
    passed = [check.what for check in plan.checked if check.ok]
    if failed:
        return f"FAILED: {', '.join(failed)}"
    if not passed:
        return "not checked"
    return "all ok" if len(passed) == len(plan.checked) else f"ok: {', '.join(passed)}"


def _pyplot() -> Any:
    try:
        return import_module("matplotlib.pyplot")
    except ImportError as error:
        raise ImportError(
            "Front.plot draws with matplotlib, which is not installed: pip install 'meshwright[viz]'"
        ) from error
