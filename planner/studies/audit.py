"""What a user's own shardings cost: a record that prints, beside the plan found with everything free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jax.sharding import PartitionSpec

from planner.decision import Decision
from planner.plan_file.codec import as_json
from planner.pricing.candidates.specs import spec_text
from planner.pricing.mesh import mesh_text
from planner.printing.parts import Part, section, table_of
from planner.printing.printed import Printed
from planner.report.collectives import CollectiveUse, collective_uses, total_seconds
from planner.report.comparison import FIGURE_NAMES
from planner.report.plan_report import decision_data
from planner.studies.compiled_shardings import AsCompiled, Larger, Repeated
from planner.units import quantity

MOST_ROWS = 10
PARTS = 3
"""Parts of the compiler's names of operations that are printed."""


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
class Audit(Printed):
    """What a user's own shardings cost.

    `own` is the best completion of these shardings: what they leave open is placed as well as can be. `compiled` is the
    program as it stands, where the compiler completes them; None where it was not compiled, which the notes say. `free` is
    the plan found without them, and without what the program names itself. `surprises` are the collectives of `own` that
    `free` does without, by kind, axes, tensor and source line. `gains` are single changes, the best first.
    """

    own: Decision
    compiled: AsCompiled | None
    free: Decision
    surprises: tuple[CollectiveUse, ...]
    whole: tuple[HeldWhole, ...]
    gains: tuple[Gain, ...]
    notes: tuple[str, ...]

    @property
    def summary(self) -> dict[str, Any]:
        """The audit as plain data: seconds, bytes per device, specs as lists of the axes of every dim."""
        return {
            "own": decision_data(self.own),
            "free": decision_data(self.free),
            **{name: as_json(getattr(self, name)) for name in ("compiled", "surprises", "whole", "gains", "notes")},
        }

    def _parts(self) -> list[Part]:
        own = self.own
        return [
            f"Audit of the shardings of {own.function_name} for {own.topology}",
            table_of("|>yours|>free|>", _beside(own, self.free)),
            *(_own_shardings_compiled(own, self.compiled) if self.compiled else []),
            *_collectives("collectives", self.surprises, "the free plan does without"),
            *_whole(self.whole),
            *_gains(self.gains),
            "\nnotes",
            *(f"- {note}" for note in self.notes),
        ]

    def __repr__(self) -> str:
        return f"<Audit of {self.own.function_name} on {dict(self.own.mesh_shape)}>"


FIGURES = ("seconds", "compute_seconds", "communication_seconds", "peak_bytes", "argument_bytes", "energy_joules")
"""What is printed of both predictions."""


def _beside(own: Decision, free: Decision) -> list[tuple[str, ...]]:
    """The figures of a user's shardings and of the free plan, and their ratio."""
    rows: list[tuple[str, ...]] = [("mesh", mesh_text(own.mesh_shape), mesh_text(free.mesh_shape))]
    for field in FIGURES:
        name, unit = FIGURE_NAMES[field]
        mine, other = getattr(own.predicted, field), getattr(free.predicted, field)
        ratio = f"x {other / mine:.3g}" if mine > 0 else ""
        rows.append((name, quantity(mine, unit), quantity(other, unit), ratio))
    return rows


def _own_shardings_compiled(own: Decision, compiled: AsCompiled) -> list[Part]:
    """What the compiler makes of the program, beside its best completion."""
    best = own.predicted
    figures = (
        ("time of a call", compiled.seconds, best.seconds, "s"),
        ("  waiting for collectives", compiled.exposed_seconds, best.communication_seconds, "s"),
        ("collectives alone", compiled.communication_seconds, total_seconds(collective_uses(own)), "s"),
        ("peak memory", compiled.peak_bytes, best.peak_bytes, "B"),
        ("  arguments", compiled.argument_bytes, best.argument_bytes, "B"),
    )
    rows = [
        (name, quantity(mine, unit), "" if promised is None else quantity(promised, unit))
        for name, mine, promised, unit in figures
        if mine is not None
    ]
    return [
        "\nyour program as it stands, compiled",
        table_of("|>compiled|>completed best", rows),
        *section(
            "products of matrices of which every device computes more than in the best completion",
            "at|>compiled|>completed best|>",
            [_repeated(one) for one in compiled.repeated],
            MOST_ROWS,
        ),
        *section(
            "what you leave open and the compiler holds more of, per device",
            "|>compiled|>completed best",
            [(_counted(one), quantity(one.bytes, "B"), quantity(one.best, "B")) for one in compiled.larger],
            MOST_ROWS,
        ),
        *section(
            "arrays gathered whole for want of a way between two layouts",
            "a device's part|of|at",
            [(one.array, _end_of(one.operation), one.source) for one in compiled.held],
            MOST_ROWS,
        ),
        *(
            []
            if compiled.collectives is None
            else _collectives("compiled collectives", compiled.surprises, "the best completion does without")
        ),
    ]


def _repeated(one: Repeated) -> tuple[str, ...]:
    times = f"x {one.flops / one.best:.3g}" if one.best > 0 else ""
    return one.source, quantity(one.flops, "FLOP"), quantity(one.best, "FLOP"), times


def _counted(one: Larger | Gain) -> str:
    """The name of arrays, with their number where there are several."""
    return one.name if one.count == 1 else f"{one.name} ({one.count})"


def _end_of(operation: str) -> str:
    """The end of the compiler's name of an operation, where the module and the primitive are."""
    return "/".join(operation.split("/")[-PARTS:])


def _collectives(what: str, uses: Sequence[CollectiveUse], of_which: str) -> list[Part]:
    rows = [
        (
            f"{use.kind} over {','.join(use.axes)}",
            use.tensor or _end_of(use.operation),
            use.source,
            f"{use.runs:.4g}",
            quantity(use.bytes, "B"),
            "" if use.seconds is None else quantity(use.seconds, "s"),
        )
        for use in uses
    ]
    table = section(f"{what} that {of_which}", "|of|at|>runs|>bytes|>seconds alone", rows, MOST_ROWS)
    return table or [f"\nno {what.removesuffix('s')} that {of_which}"]


def _whole(arrays: Sequence[HeldWhole]) -> list[Part]:
    rows = [
        (
            one.name,
            spec_text(one.spec),
            "" if one.free is None else spec_text(one.free),
            ",".join(one.axes),
            quantity(one.bytes, "B"),
            quantity(one.saved, "B"),
        )
        for one in arrays
    ]
    columns = "|yours|free|whole along|>per device|>split saves"
    return section("large arrays held whole that could be split", columns, rows, MOST_ROWS)


def _gains(gains: Sequence[Gain]) -> list[Part]:
    rows = [
        (
            _counted(one),
            spec_text(one.spec),
            spec_text(one.better),
            _saved(one.seconds, "s"),
            _saved(one.bytes, "B"),
        )
        for one in gains
    ]
    title = "what leaving one sharding to the planner saves, the others as they are"
    table = section(title, "|yours|better|>saves|>at the peak", rows, MOST_ROWS)
    return table or ["\nno single sharding left to the planner gains anything"]


def _saved(amount: float, unit: str) -> str:
    """What is saved; what is lost with a minus."""
    return quantity(amount, unit) if amount >= 0 else f"-{quantity(-amount, unit)}"
