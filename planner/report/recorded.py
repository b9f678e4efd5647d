"""What a plan's file says of arrays by itself: how they lie, what that takes, what moves them; not what else could be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from jax.sharding import PartitionSpec

from planner.decision import Decision
from planner.errors import ArgumentError
from planner.logical import Names
from planner.pricing.candidates.pins import base_name, close_names, matcher
from planner.pricing.candidates.specs import spec_text
from planner.printing.parts import Part
from planner.printing.printed import Printed
from planner.program.graph import type_text
from planner.program.tracing.traced import Leaf
from planner.report.collectives import CollectiveUse, collective_uses
from planner.report.rows import bytes_on_device
from planner.units import quantity

Kind = Literal["argument", "result", "intermediate"]
MOST_LARGEST = 5
"""Arguments in the answer where none is named: the largest, of those of one type and spec one."""
MOST_MATCHES = 16
"""Arrays in the answer of those that a pattern names."""
MOST_MOVES = 4
"""Collectives of one array that are printed: those that move most."""
WHAT_IS_MISSING = (
    "This is what the plan's file says. With its program (meshwright explain PLAN.json FILE.py:FUNCTION, or bind(fn) and "
    "explain) it is also told what every other spec would cost, and the reason, and of arrays that the file does not name."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedArray:
    """An array of a plan as its file has it.

    `bytes` are those on one device, `peak_share` their part of the predicted peak; of intermediates the file has no type,
    so that is "", and these are None. `logical` are the names of the dims, where they are known.
    """

    name: str
    kind: Kind
    type: str
    spec: PartitionSpec
    pinned: bool
    logical: Names
    bytes: float | None
    peak_share: float | None
    moves: tuple[CollectiveUse, ...]

    def __str__(self) -> str:
        how = f"{self.kind}, pinned" if self.pinned else self.kind
        takes = "" if self.bytes is None else f", {quantity(self.bytes, 'B')} on each device"
        share = "" if self.peak_share is None else f", {100 * self.peak_share:.3g} % of the peak"
        dims = f"; its dims are {', '.join(name or 'nameless' for name in self.logical)}" if self.logical else ""
        lines = [
            f"{self.name}{' ' if self.type else ''}{self.type}, {how}",
            f"  -> {spec_text(self.spec)}{takes}{share}{dims}",
            *(f"     moved by {move}" for move in self.moves[:MOST_MOVES]),
        ]
        if len(self.moves) > MOST_MOVES:
            lines.append(f"     and {len(self.moves) - MOST_MOVES} moves more")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded(Printed):
    """What a plan's file says of arrays, `left` more of which match; `missing` says what its program would add."""

    arrays: tuple[RecordedArray, ...]
    left: int
    missing: str = WHAT_IS_MISSING

    def _parts(self) -> list[Part]:
        more = [f"and {self.left} more"] if self.left else []
        return [*map(str, self.arrays), *more, self.missing]


def recorded(decision: Decision, path: str | None) -> Recorded:
    """What a decision says of the arrays of a name or pattern, or of its largest arguments.

    Raises: ArgumentError where it has none of that name.
    """
    if path is None:
        arguments = [array for array in _arrays(decision) if array.kind == "argument"]
        alike = {(array.type, array.spec): array for array in reversed(arguments)}
        largest = sorted(alike.values(), key=lambda array: -(array.bytes or 0.0))
        return Recorded(arrays=tuple(largest[:MOST_LARGEST]), left=0)
    matches = matcher(path)
    found = [array for array in _arrays(decision) if matches(array.name) or matches(base_name(array.name))]
    if not found:
        names = close_names(path, [array.name for array in _arrays(decision)])
        raise ArgumentError(
            f"the plan's file says nothing of {path!r}; names look like {names}; for what it does not name, give its "
            "program as well, FILE.py:FUNCTION, or bind it"
        )
    return Recorded(arrays=tuple(found[:MOST_MATCHES]), left=max(0, len(found) - MOST_MATCHES))


def _arrays(decision: Decision) -> Iterator[RecordedArray]:
    """All that a decision names."""
    pins = list(map(matcher, decision.request.pins))
    moves: dict[str, list[CollectiveUse]] = {}
    for use in sorted(collective_uses(decision), key=lambda use: -use.bytes):
        moves.setdefault(use.tensor, []).append(use)
    peak = decision.predicted.peak_bytes

    def array(name: str, kind: Kind, spec: PartitionSpec, leaf: Leaf | None) -> RecordedArray:
        size = None if leaf is None else bytes_on_device(leaf, spec, decision.mesh_shape)
        return RecordedArray(
            name=name,
            kind=kind,
            type="" if leaf is None else type_text(leaf.aval),
            spec=spec,
            pinned=any(pinned(name) for pinned in pins),
            logical=decision.logical.names.get(name, ()),
            bytes=size,
            peak_share=None if size is None or peak <= 0 else size / peak,
            moves=tuple(moves.get(name, ())),
        )

    for leaf, spec in zip(decision.arguments, decision.in_specs, strict=True):
        if not leaf.constant:
            yield array(leaf.name, "argument", spec, leaf)
    for leaf, spec in zip(decision.results, decision.out_specs, strict=True):
        yield array(leaf.name, "result", spec, leaf)
    for name, spec in decision.intermediates.items():
        yield array(name, "intermediate", spec, None)
