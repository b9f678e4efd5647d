"""What an explanation says: tensors, the specs each could have, what those would cost, and why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from jax.sharding import PartitionSpec

from planner.explain.reasons import Reason
from planner.explain.recipe import Recipes
from planner.explain.saved_values import SavedValue
from planner.pricing.candidates.specs import spec_text
from planner.printing.parts import Part
from planner.printing.printed import Printed
from planner.units import quantity

MOST_MOVES = 4
"""Most moves of one tensor that are printed: those that take longest."""
MOST_ALTERNATIVES = 4
"""Most alternatives of one tensor that are printed, those that cost alike taken for one."""
MOST_ALIKE = 2
"""Most specs that cost alike of which each is printed."""
CHEAPER = 1e-6
"""An alternative counts as cheaper than the plan when it is so by this share."""
EQUAL = 1e-9
"""Two alternatives cost the same when they differ by no more than this share: the rounding of sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One spec a tensor could have: the best value of any plan that has it, and the bytes per device it takes.

    Where `exact` is False, `value` is that of the best plan found around the chosen one. `reason` says what that plan has
    more than the chosen one; it is sought for the best few, and None for what costs nothing more.
    """

    spec: PartitionSpec
    value: float
    exact: bool
    bytes: float
    chosen: bool
    reason: Reason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """What the plan does to bring a tensor to one of its readers, an edge of the op graph; bytes and seconds per call."""

    reader: str
    spec: str
    collective: str
    bytes: float
    seconds: float

    def __str__(self) -> str:
        shared = "" if self.seconds else ", run for an earlier reader"
        figures = f"{quantity(self.bytes, 'B')} in {quantity(self.seconds, 's')}{shared}"
        return f"{self.collective} to {self.spec} for {self.reader}: {figures}"


class AlternativeRow(NamedTuple):
    """Alternatives that cost alike, as they are told: their specs, the cost beside the plan's, bytes, and the reason."""

    chosen: bool
    specs: str
    cost: str
    bytes: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorExplanation:
    """A tensor's spec among its alternatives, best first; `pinned` where the user left no alternative.

    `unseen` further specs were not looked at, as bounds say that they cost more. `memory` says of an intermediate value
    whether it is materialized, by which pass of the compiler, and from which release that pass was read. `moves` are the
    collectives that bring it to its readers in the chosen plan, those that take longest first. Values are in `unit`.
    """

    name: str
    shape: tuple[int, ...]
    decided_by: str
    pinned: bool
    alternatives: tuple[Alternative, ...]
    unseen: int
    moves: tuple[Move, ...]
    unit: Literal["s", "J", "B"]
    memory: str = ""

    @property
    def cheaper(self) -> bool:
        """Whether an alternative costs less than what was chosen."""
        mine = min((a.value for a in self.alternatives if a.chosen), default=-math.inf)
        return any(a.value < mine * (1 - CHEAPER) for a in self.alternatives)

    @property
    def alike(self) -> tuple[tuple[Alternative, ...], ...]:
        """The alternatives, those together that take as many bytes and cost the same, the chosen spec first."""
        found: list[list[Alternative]] = []
        for one in self.alternatives:
            last = next((of for of in reversed(found) if same_cost(of[0], one)), None)
            if last is None:
                found.append([one])
            else:
                last.insert(0 if one.chosen else len(last), one)
        return tuple(map(tuple, found))

    @property
    def rows(self) -> tuple[AlternativeRow, ...]:
        """The alternatives that are told of: the chosen spec and the best others."""
        mine = self._mine
        rows: list[AlternativeRow] = []
        for of in self._shown:
            one, reason = of[0], of[0].reason
            net = 0.0 if reason is None else one.value - mine.value if mine is not None else reason.more
            size = f"{quantity(one.bytes, 'B')} each"
            text = "" if reason is None else reason.text_for(net)
            rows.append(AlternativeRow(one.chosen, _names(of), self._cost(one, mine), size, text))
        return tuple(rows)

    @property
    def left_out(self) -> tuple[str, ...]:
        """What is not told of one by one, as lines."""
        groups, shown, mine = self.alike, self._shown, self._mine
        lines: list[str] = []
        left = sum(map(len, groups)) - sum(map(len, shown))
        if left:
            rest = min((of[0].value for of in groups if of not in shown), default=0.0)
            more = f", from +{quantity(rest - mine.value, self.unit)} on" if mine and rest > mine.value else ""
            lines.append(f"and {left} more{more}")
        if self.unseen:
            lines.append(f"and {self.unseen} that were not looked at, whose lower bounds are higher")
        return tuple(lines)

    @property
    def _mine(self) -> Alternative | None:
        return next((a for a in self.alternatives if a.chosen), None)

    @property
    def _shown(self) -> Sequence[Sequence[Alternative]]:
        return [of for i, of in enumerate(self.alike) if i <= MOST_ALTERNATIVES or of[0].chosen]

    def __str__(self) -> str:
        place = "pinned" if self.pinned else f"decided at {self.decided_by}"
        lines = [f"{self.name} {list(self.shape)}, {place}"]
        rows = self.rows
        wide = [
            max(map(len, column)) for column in zip(*((row.specs, row.cost, row.bytes) for row in rows), strict=True)
        ]
        for row in rows:
            mark = "->" if row.chosen else "  "
            lines.append(f"  {mark} {row.specs:<{wide[0]}}  {row.cost:>{wide[1]}}  {row.bytes:>{wide[2]}}")
            lines += [f"       {row.reason}"] if row.reason else []
        lines += [f"     {line}" for line in self.left_out]
        lines += [f"     {self.memory}"] if self.memory else []
        lines += [f"     moved by {move}" for move in self.moves[:MOST_MOVES]]
        if len(self.moves) > MOST_MOVES:
            lines.append(f"     and {len(self.moves) - MOST_MOVES} moves more")
        return "\n".join(lines)

    def _cost(self, one: Alternative, mine: Alternative | None) -> str:
        """What the chosen spec costs, and what another costs more or less."""
        if mine is None or one.chosen:
            return quantity(one.value, self.unit)
        more = one.value - mine.value
        share = 100 * abs(more) / mine.value if mine.value > 0 else 0.0
        percent = f" ({f'{share:.2g}' if share < 100 else f'{share:.0f}'} %)" if share else ""
        return f"{'' if one.exact else '~'}{'+' if more >= 0 else '-'}{quantity(abs(more), self.unit)}{percent}"


def _names(of: Sequence[Alternative]) -> str:
    """The specs of alternatives that cost the same; the chosen one stands first."""
    first, *others = [spec_text(a.spec) for a in of]
    shown_names = (
        others if len(others) <= MOST_ALIKE else [*others[: MOST_ALIKE - 1], f"{len(others) - MOST_ALIKE + 1} others"]
    )
    if of[0].chosen:
        return f"{first}, as good as {' or '.join(shown_names)}" if shown_names else first
    return " or ".join([first, *shown_names])


def same_cost(a: Alternative, b: Alternative) -> bool:
    """Whether two alternatives cost the same, and take as many bytes."""
    return math.isclose(a.value, b.value, rel_tol=EQUAL) and math.isclose(a.bytes, b.bytes, rel_tol=EQUAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation(Printed):
    """Why tensors are placed as they are.

    Values are in `unit` per call, of plans on this mesh without a memory limit; `minimised` is the plan's objective.
    `saved` are those values of that name that a backward pass reads: saved, or computed again. `recipes` is the plan beside
    the usual recipes, where no name was asked for.
    """

    tensors: tuple[TensorExplanation, ...]
    unit: str
    minimised: str
    saved: tuple[SavedValue, ...] = ()
    recipes: Recipes | None = None

    @property
    def limited(self) -> bool:
        """Whether an alternative costs less than the plan: something else than its cost ruled it out."""
        return any(tensor.cheaper for tensor in self.tensors)

    def _parts(self) -> list[Part]:
        what = "peak bytes per device" if self.minimised == "memory" else f"{self.unit} per call"
        lines: list[Part] = []
        if self.recipes is not None and self.recipes.others:
            lines += ["The plan beside the usual recipes, per device and call, by the same model:", str(self.recipes)]
        if self.tensors:
            lines.append(
                f"Each spec with the best plan that has it, in {what}, and the bytes of the array on each device:"
            )
            lines += map(str, self.tensors)
        if self.saved:
            lines.append("Read by the backward pass, per device and call were it split evenly:")
            lines += map(str, self.saved)
        if not all(a.exact or a.chosen for tensor in self.tensors for a in tensor.alternatives):
            lines.append("~ the best plan found, not proven to be the best with that spec.")
        if self.limited and self.minimised != "memory":
            lines.append(
                "What costs less than the plan breaks its memory limit, or was not found in the search's time."
            )
        return lines
