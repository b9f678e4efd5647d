"""Reasons: the one thing that an alternative costs more than the plan, and where in the program."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from planner.explain.breakdown import COMPUTING, FEEDING, STORING, Part, differences
from planner.pricing.assignment import Chosen
from planner.pricing.memory.memory_model import MemoryModel
from planner.units import quantity

ABOUT = 0.05
"""What a reason and an alternative cost is not told twice where they differ by less than this share."""
MOSTLY = 0.9
"""A reason names one source line as its place where that has this share of it, else says that it is most of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why an alternative is not taken: what is `more` in it, in `unit` per call, at a source line.

    `kind` is "computing", "feeding", "memory", or a collective's, with the axes that it runs over, or that computing is
    not split by.
    """

    kind: str
    axes: tuple[str, ...]
    text: str
    at: str
    more: float
    unit: Literal["s", "J", "B"]

    def text_for(self, net: float) -> str:
        """The reason in words; `net` is what the alternative costs more in all."""
        if abs(self.more - net) <= ABOUT * abs(net):
            return self.text
        rest = ", partly saved elsewhere" if self.more > net >= 0 and self.kind != "memory" else ""
        return f"{self.text}: +{quantity(self.more, self.unit)}{rest}"


def cost_reason(mine: Chosen, other: Chosen, unit: Literal["s", "J"]) -> Reason | None:
    """What `other` costs most of all more than `mine`; None where it costs nothing more."""
    parts: dict[tuple[str, tuple[str, ...]], list[tuple[Part, float]]] = defaultdict(list)
    for part, sign in differences(mine, other):
        if part.kind != COMPUTING or part.value > 0:
            parts[part.kind, part.axes].append((part, sign))
    totals = {key: sum(sign * part.value for part, sign in found) for key, found in parts.items()}
    key = max(sorted(totals), key=lambda key: totals[key], default=None)
    if key is None or totals[key] <= 0:
        return None
    kind, axes = key
    at, where = _place(parts[key], totals[key])
    return Reason(
        kind=kind, axes=axes, text=_cost_text(kind, axes, parts[key]) + where, at=at, more=totals[key], unit=unit
    )


def _place(parts: Sequence[tuple[Part, float]], total: float) -> tuple[str, str]:
    """The source line with the most of some parts, and the words that say so."""
    lines: dict[str, float] = defaultdict(float)
    for part, sign in parts:
        lines[part.source] += sign * part.value
    at = max(sorted(lines), key=lambda line: lines[line])
    if not at:
        return "", ""
    return at, f", at {at}" if lines[at] >= MOSTLY * total else f", most of it at {at}"


def _cost_text(kind: str, axes: Sequence[str], parts: Sequence[tuple[Part, float]]) -> str:
    over = " and ".join([", ".join(axes[:-1]), axes[-1]] if len(axes) > 1 else axes)
    if kind == COMPUTING:
        return f"computing not split over {over}" if axes else "computing split otherwise"
    if kind == FEEDING:
        return "more to bring from hosts"
    if kind == STORING:
        return "more bytes held, at the same speed otherwise"
    moved = sum(sign * part.bytes for part, sign in parts)
    count = sum(sign for part, sign in parts if part.bytes)
    size = f" of {quantity(moved, 'B')}{' in all' if count > 1 else ''}" if moved > 0 else ""
    name = kind if count <= 1 else f"{kind}s"
    return f"{name}{size}{f' over {over}' if over else ''} more"


def memory_reason(
    memory: MemoryModel, mine: Sequence[int], other: Sequence[int], than_bytes: float, what: str
) -> Reason:
    """What `other` holds at its fullest point above `than_bytes`, and which array has grown the most since `mine`."""
    profile = memory.profile(other)
    time = int(profile.argmax())
    before = defaultdict(float)
    for name, size in memory.alive(time, mine):
        before[name] += size
    after = defaultdict(float)
    for name, size in memory.alive(time, other):
        after[name] += size
    grown = max(after, key=lambda name: after[name] - before[name], default=None)
    at = memory.describe(time).removeprefix("memory at ")
    more = float(profile[time]) - than_bytes
    text = f"{what}, at {at}"
    if grown is not None and after[grown] > before[grown]:
        text += f", where {grown} takes {quantity(after[grown], 'B')} instead of {quantity(before[grown], 'B')}"
    return Reason(kind="memory", axes=(), text=text, at=at, more=more, unit="B")
