"""Plans of several programs on one mesh, by name, and what holds of them together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from jax.sharding import PartitionSpec

from planner.decision import Certificate
from planner.plans.plan import Plan
from planner.pricing.candidates.specs import spec_text
from planner.printing.parts import Part, table_of
from planner.printing.printed import Printed
from planner.units import quantity

UNITS = {"seconds": "s", "joules": "J", "bytes": "B"}
MOST_MOVES = 8
"""Moves that are printed one by one, those that take longest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutMove:
    """A shared array on its way between two layouts, at every call of a program that has one of its own.

    `bytes` per device and `seconds` as predicted; `value` is in the unit of the certificate.
    """

    program: str
    array: str
    source: PartitionSpec
    target: PartitionSpec
    bytes: float
    seconds: float
    value: float


@final
class Programs(Printed, dict[str, Plan]):
    """The plans of several programs by name, on one mesh; each is a plan as `planner.plan` returns it.

    `calls` is how often each counts. `shared` is how many arrays several of them have; these lie alike in all, but for
    `moves`, where layouts are each program's own. `certificate` is of all calls together: its bound is the sum of what each
    program takes at the least by itself. `notes` say what was not tried, and what the one layout costs.
    """

    def __init__(
        self,
        plans: Mapping[str, Plan],
        *,
        calls: Mapping[str, float],
        shared: int,
        moves: Sequence[LayoutMove],
        certificate: Certificate,
        notes: Sequence[str],
    ) -> None:
        dict[str, Plan].__init__(self, plans)
        self.calls, self.shared, self.moves = dict(calls), shared, tuple(moves)
        self.certificate, self.notes = certificate, tuple(notes)

    def _parts(self) -> list[Part]:
        first = next(iter(self.values())).decision
        shape = " x ".join(f"{name}={size}" for name, size in first.mesh_shape.items())
        how = f"{len(self.moves)} of them moved between layouts" if self.moves else "in one layout"
        unit, found = UNITS[self.certificate.unit], self.certificate
        rows: list[tuple[str, ...]] = []
        for name, plan in self.items():
            value = plan.certificate.value
            all_calls = value if unit == "B" else self.calls[name] * value
            passed = [check for check in plan.checked if check.ok]
            checks = ", ".join(c.what + (" (differs)" if c.differs else "") for c in passed) or "none"
            figures = (quantity(value, unit), quantity(all_calls, unit), quantity(plan.predicted.peak_bytes, "B"))
            rows.append((name, f"{self.calls[name]:g}", *figures, checks))
        parts: list[Part] = [
            f"{len(self)} programs for {first.topology} on the mesh {shape}, {self.shared} arrays shared, {how}",
            f"certificate  {found.status}: {quantity(found.value, unit)} for all calls, and no layouts are below "
            f"{quantity(found.lower_bound, unit)} by this cost model",
            "",
            table_of("|>calls|>of each|>in all|>peak|checks", rows),
        ]
        longest = sorted(self.moves, key=lambda move: -move.seconds)
        if self.moves:
            parts += ["", "moved at every call"]
            parts += [
                f"- {move.program}: {move.array} from {spec_text(move.source)} to {spec_text(move.target)}, "
                f"{quantity(move.bytes, 'B')} in {quantity(move.seconds, 's')}"
                for move in longest[:MOST_MOVES]
            ]
        if len(longest) > MOST_MOVES:
            rest = sum(move.seconds for move in longest[MOST_MOVES:])
            parts.append(f"- {len(longest) - MOST_MOVES} more in {quantity(rest, 's')}")
        if self.notes:
            parts += ["", "notes", *(f"- {note}" for note in self.notes)]
        return parts

    def __repr__(self) -> str:
        return f"<Programs {', '.join(self)}: {self.certificate.status}>"
