"""The front: plans of one function along memory against time or energy, from the least peak to the least cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

from planner.decision import Decision
from planner.errors import ArgumentError
from planner.options import Options
from planner.plans.plan import Plan
from planner.printing.axes import new_axes
from planner.printing.parts import Part, count, table_of
from planner.printing.printed import Printed
from planner.studies.saved_folder import file_name, save_folder
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
class Front(Printed, tuple[Plan, ...]):
    """Plans of one function, the least peak of memory first: each next one takes more of it and costs less.

    Every one is a plan as `planner.plan` returns it. `notes` say what the search did not finish. `objective` is what is
    weighed against memory: "time" or "energy".
    """

    objective: str
    notes: tuple[str, ...]

    def __new__(cls, plans: Sequence[Plan], *, objective: str, notes: Sequence[str] = ()) -> Front:
        """The front of these plans."""
        made = tuple.__new__(cls, plans)
        made.objective, made.notes = objective, tuple(notes)
        return made

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
                    "host_bytes": plan.predicted.offloaded_bytes,
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

    def _parts(self) -> list[Part]:
        first = self[0].decision
        unit, costs = UNITS[self.objective], [cost_of(plan.decision, self.objective) for plan in self]
        heading = (
            f"Front of {first.function_name} for {first.topology}: peak memory per device against {self.objective} of a "
            f"call, {count(len(self), 'plan')}"
        )
        most = max(self[-1].predicted.peak_bytes, 1.0)
        waiting = any(plan.predicted.offloaded_bytes for plan in self)
        rows = [
            (
                str(i),
                quantity(plan.predicted.peak_bytes, "B"),
                *([quantity(plan.predicted.offloaded_bytes, "B")] if waiting else []),
                f"{plan.predicted.peak_bytes / most:.1%}",
                quantity(cost, unit),
                f"x {cost / costs[-1]:.3g}" if costs[-1] > 0 else "",
                " x ".join(f"{name}={size}" for name, size in plan.decision.mesh_shape.items()),
                _certificate_text(plan),
                _checks_text(plan),
            )
            for i, (plan, cost) in enumerate(zip(self, costs, strict=True))
        ]
        columns = (
            f">|>peak|{'>on hosts|' if waiting else ''}>of largest|>{self.objective}|>of least|mesh|certificate|checks"
        )
        return [heading, table_of(columns, rows), *(f"- {note}" for note in self.notes)]

    def __repr__(self) -> str:
        return f"<Front of {self[0].decision.function_name}: {len(self)} plans>"

    def plot(self, ax: Any = None) -> Any:
        """The matplotlib axes with the front drawn: `front.plot().figure.savefig("front.png")`. `ax`: where to draw it.

        Raises: ImportError where matplotlib is not installed.
        """
        ax = new_axes("Front.plot") if ax is None else ax
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
        points = [{"file": file_name(i), **point} for i, point in enumerate(self.summary["plans"])]
        record = {"format": FORMAT, "version": VERSION, **self.summary, "plans": points}
        save_folder(folder, self, SUMMARY, record, "front")


def check_front(points: int, objective: str, options: Options) -> None:
    """Nothing where such a front can be asked for. Raises: ArgumentError."""
    if isinstance(points, bool) or not isinstance(points, int) or not 2 <= points <= MOST_POINTS:
        raise ArgumentError(f"points is {points!r}; give a whole number of plans from 2 to {MOST_POINTS}")
    if objective not in UNITS:
        raise ArgumentError(f"objective is {objective!r}; a front is of memory against {' or '.join(map(repr, UNITS))}")
    if options.autotune != "never":
        raise ArgumentError(
            f"Options(autotune={options.autotune!r}) is for single plans; leave it out here, and refine the plan that you "
            "choose by planner.plan(..., memory_limit=its peak)"
        )


def _certificate_text(plan: Plan) -> str:
    """How good a plan is among those of its memory, or by its peak."""
    certificate = plan.certificate
    of = "peak" if certificate.unit == "bytes" else {"seconds": "time", "joules": "energy"}[certificate.unit]
    return f"{of} {certificate.status}"


def _checks_text(plan: Plan) -> str:
    """What became of the checks of a plan."""
    found = {
        verdict: [check.what for check in plan.checked if check.verdict == verdict]
        for verdict in ("FAILED", "differs", "ok")
    }
    if len(found["ok"]) == len(plan.checked) > 0:
        return "all ok"
    if found["FAILED"]:
        return f"FAILED: {', '.join(found['FAILED'])}"
    return "; ".join(f"{verdict}: {', '.join(what)}" for verdict, what in found.items() if what) or "not checked"
