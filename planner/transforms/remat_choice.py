"""What to save and what to compute again: the choices along the front of time against memory, priced value by value.

For a price of memory, the best choice is a minimum cut: a value that is needed is there if it is saved or computed again,
and what is computed again needs its operands there. Both are implications between yes-or-no variables, so that the linear
programme over them has whole solutions; with a budget of bytes it is a small integer programme. Prices are those of one
chip that holds everything: of values that are split alike only the ratios matter, and what a choice is worth in a plan is
told by planning it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import milp
from scipy.sparse import coo_array, csr_array, eye_array, hstack, vstack
from scipy.sparse.csgraph import connected_components

from cost_models.hardware import Chip
from pbqp.vectors import Floats
from planner.errors import ArgumentError
from planner.program.form import Form
from planner.program.jaxpr.remat.residuals import Crossing, Value
from planner.transforms.remat_prices import is_fused, is_view, step_flops, step_seconds

Pinned = Literal["save", "recompute", "host"]
"""What a user says of a value: it is not computed again, or it is not saved, or it waits in the memory of the host."""

ALIKE = 0.9
"""Choices whose bytes differ by less than this are not both offered."""
ALIKE_STEPS = 2
"""Values of layers written out are of one kind if they are computed alike from values computed alike, so far back."""
UNSURE = 0.1
"""The part of a program's seconds by which prices of choices may be off: scores of attention that are computed again take
5 % longer than if they are saved, where the prices say 6 % less (a decoder on v5p:4x4x4)."""
EVEN = 1e-12
"""What it costs beside all else that a value is there: of what costs nothing, nothing is saved without need."""
BESIDE, EXPOSED = 0.25, 0.1
"""The part of a pass's computing during which what it saves may travel to the host, and the part of that which is waited
for."""
SOLVE_SECONDS = 2.0
"""Most seconds for one choice within a budget; what is found by then is offered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which values of every crossing are saved, and which computed again.

    Those `offloaded` wait in the memory of hosts, where they take `host_bytes` at a time. `bytes` are what the other saved
    ones take on all devices at a time, `flops` what is computed again in a call, `seconds` those of one chip for computing
    again, and for writing and reading what is saved.
    """

    saved: tuple[tuple[int, ...], ...]
    repeated: tuple[tuple[int, ...], ...]
    offloaded: tuple[tuple[int, ...], ...]
    bytes: float
    host_bytes: float
    flops: float
    seconds: float

    def offloads(self, place: tuple[int, int]) -> bool:
        """Whether a value, by the positions of its crossing and in it, waits on the host."""
        return bool(self.offloaded) and place[1] in self.offloaded[place[0]]

    def of(self, form: Form) -> Form:
        """A form with this choice."""
        return replace(form, saved=self.saved, offloaded=self.offloaded)


class _Away(NamedTuple):
    """By kind of values whether it can wait on hosts (1 or 0), and the seconds of links that are waited for.

    `shares` has a row for each crossing: which part of what can travel during a pass each kind is.
    """

    possible: NDArray[np.float64]
    seconds: NDArray[np.float64]
    shares: Any


class Front:
    """The choices for the crossings of a program on a kind of chip; `pinned` says by name what a user wants of values.

    A value that cannot be what is wanted of it is left to the planner. The crossings are passed in every one of the `parts`
    of the batch that the program is computed in, one after the other.
    """

    def __init__(
        self,
        crossings: Sequence[Crossing],
        chip: Chip,
        pinned: Mapping[str, Pinned] = MappingProxyType({}),
        *,
        parts: int = 1,
    ) -> None:
        self.crossings, self.pinned, self._chip, self._parts = crossings, pinned, chip, parts
        self._values = [(crossing, value) for crossing in crossings for value in crossing.values]
        self._first = np.cumsum([0, *(len(crossing.values) for crossing in crossings)])
        read: Floats = np.array([value.aval.bytes * crossing.length for crossing, value in self._values])
        self._bytes: Floats = np.array(
            [value.aval.bytes * (1 if value.once else crossing.length) for crossing, value in self._values]
        )
        self._again: Floats = np.array(
            [parts * crossing.length * _again_seconds(crossing, value, chip) for crossing, value in self._values]
        )
        self._flops: Floats = np.array(
            [parts * crossing.length * math.fsum(map(step_flops, value.steps)) for crossing, value in self._values]
        )
        self._runs: NDArray[np.int64] = np.array(
            [
                first + value.run
                for first, crossing in zip(self._first.tolist(), crossings, strict=False)
                for value in crossing.values
            ],
            np.int64,
        )
        """For each value the first that the same run of an equation makes: what is computed again is paid once for all."""
        self._on_host: NDArray[np.bool_] = np.array(
            [pinned.get(value.name) == "host" and can_wait(crossing, value) for crossing, value in self._values], bool
        )
        self._saving: Floats = parts * (self._bytes + read) / chip.memory_bytes_per_s

    @cached_property
    def _kinds(self) -> NDArray[np.int64]:
        """For each value the number of its kind: layers written out choose alike, so that they are placed alike."""
        numbers: dict[object, int] = {}
        found: list[int] = []
        for at, crossing in enumerate(self.crossings):
            kinds: list[object] = [
                (at, *self._own_kind(value)) if crossing.length == 1 else (at, i)
                for i, value in enumerate(crossing.values)
            ]
            for _ in range(ALIKE_STEPS if crossing.length == 1 else 0):
                before = [numbers.setdefault(kind, len(numbers)) for kind in kinds]
                kinds = [
                    (before[i], tuple(before[operand] for operand in value.operands))
                    for i, value in enumerate(crossing.values)
                ]
            found += [numbers.setdefault(kind, len(numbers)) for kind in kinds]
        return np.unique(np.array(found, np.int64), return_inverse=True)[1]

    def _own_kind(self, value: Value) -> tuple[object, ...]:
        steps = tuple((step.kind, step.operands, step.results) for step in value.steps)
        flags = value.needed, value.forward, value.repeatable, value.saved, value.repeated
        return steps, value.aval, *flags, self.pinned.get(value.name)

    @cached_property
    def written(self) -> Choice:
        """The program as it is written."""
        saved = np.array([value.saved for _, value in self._values])
        repeated = np.array([value.repeated for _, value in self._values])
        return self._choice(saved, repeated)

    def _each(self, chosen: Sequence[Sequence[int]]) -> Iterator[tuple[Crossing, int]]:
        for crossing, own in zip(self.crossings, chosen, strict=True):
            yield from ((crossing, i) for i in own)

    @cached_property
    def saves_all(self) -> bool:
        """Whether the program as written computes nothing of the forward pass again but views."""
        again = (crossing.values[i] for crossing, i in self._each(self.written.repeated))
        return all(not value.forward or all(map(is_view, value.steps)) for value in again)

    @cached_property
    def everything(self) -> Choice:
        """All that the backward pass reads is saved, but for what is only another view of what is saved.

        Of layers written out such views are saved too: nothing is stacked there, and without anything to compute again no
        barrier is in the way of the compiler.
        """
        heavy = np.array(
            [
                value.forward if crossing.length == 1 else not all(is_view(step) for step in value.steps)
                for crossing, value in self._values
            ]
        )
        return self._cut(again=np.where(heavy, self._again + self._saving.sum(), self._again))

    def worth_saving(self, program_seconds: float) -> Choice | None:
        """Everything saved, where a program of so many seconds may gain by it, the prices aside; None elsewhere.

        What the fastest choice computes again in kernels of its own, such as matmuls, splits others; in layers written out
        whatever is computed again stands behind barriers. Both cost more than the prices know.
        """
        again = [(crossing, crossing.values[i]) for crossing, i in self._each(self.fastest.repeated)]
        barred = any(crossing.length == 1 and value.forward for crossing, value in again)
        split = any(not all(map(is_fused, value.steps)) for _, value in again)
        near = self.everything.seconds - self.fastest.seconds <= UNSURE * program_seconds
        worth = (barred or (split and near)) and self.everything.saved != self.fastest.saved
        return self.everything if worth else None

    @cached_property
    def nothing(self) -> Choice:
        """As little as can be is saved: whatever can be computed again is."""
        return self._cut(saving=self._saving + self._bytes * (1 + self._again.sum()) / max(self._bytes.min(), 1.0))

    def settled(self, saved: Sequence[Sequence[int] | None], offloaded: Sequence[Sequence[int]] = ()) -> Choice:
        """The choice that saves these values of each crossing; of one left out, or None, those that it saves as written.

        Of these some are `offloaded`. What else is needed is computed again, and saved where it cannot be.
        """
        kept, repeated, away = (np.zeros(len(self._values), bool) for _ in range(3))
        for at, (first, crossing) in enumerate(zip(self._first.tolist(), self.crossings, strict=False)):
            given = saved[at] if at < len(saved) else None
            own = {i for i, value in enumerate(crossing.values) if value.saved} if given is None else set(given)
            waiting = [i for i, value in enumerate(crossing.values) if value.needed and i not in own]
            again: set[int] = set()
            while waiting:
                position = waiting.pop()
                if position in own or position in again:
                    continue
                if crossing.values[position].repeatable:
                    again.add(position)
                    waiting += crossing.values[position].operands
                else:
                    own.add(position)
            kept[[first + i for i in own]] = True
            repeated[[first + i for i in again]] = True
            away[[first + i for i in (offloaded[at] if at < len(offloaded) else ())]] = True
        return self._choice(kept, repeated, away)

    def alike(self) -> list[list[tuple[int, int]]]:
        """The values that are chosen alike, as positions of their crossings and in these."""
        found: dict[int, list[tuple[int, int]]] = {}
        places = ((at, i) for at, crossing in enumerate(self.crossings) for i in range(len(crossing.values)))
        for kind, place in zip(self._kinds.tolist(), places, strict=True):
            found.setdefault(kind, []).append(place)
        return list(found.values())

    def repeating(self, places: Sequence[tuple[int, int]]) -> tuple[float, float, float]:
        """What some values take: bytes saved on all devices, seconds and operations of one chip to compute them again."""
        at = [int(self._first[crossing]) + i for crossing, i in places]
        runs = np.unique(self._runs[at])
        return float(self._bytes[at].sum()), float(self._again[runs].sum()), float(self._flops[runs].sum())

    @property
    def keeps_pins(self) -> bool:
        """Whether the program as written is as the user wants it."""
        pins = (self.pinned.get(value.name) for _, value in self._values)
        against = (
            pin is not None and (pin == "host" or (value.repeated if pin == "save" else value.saved))
            for pin, (_, value) in zip(pins, self._values, strict=True)
        )
        return not any(against)

    def can(self, places: Sequence[tuple[int, int]], how: Pinned) -> bool:
        """Whether all of some values can be saved, or computed again, or wait on the host."""
        of = [(self.crossings[at], self.crossings[at].values[i], self._savable[at][i]) for at, i in places]
        if how == "recompute":
            return all(value.repeatable for _, value, _ in of)
        return all(can_save and (how == "save" or can_wait(crossing, value)) for crossing, value, can_save in of)

    @cached_property
    def _savable(self) -> list[list[bool]]:
        return [savable(crossing) for crossing in self.crossings]

    @cached_property
    def _pins(self) -> dict[int, Pinned]:
        """What is wanted of kinds of values, by their numbers, where that can be."""
        found: dict[int, Pinned] = {}
        for places in self.alike():
            crossing, position = places[0]
            pin = self.pinned.get(self.crossings[crossing].values[position].name)
            if pin is not None and self.can(places, pin):
                found[int(self._kinds[int(self._first[crossing]) + position])] = pin
        return found

    @cached_property
    def fastest(self) -> Choice:
        """What takes the least time to compute again, to write and to read."""
        return self._cut()

    def offered(self) -> Iterator[Choice]:
        """The choices of the front, the fastest first: each takes at most half of the bytes of the one before."""
        yield self.fastest
        before, least, budget = self.fastest, self.nothing, self.fastest.bytes / 2
        while budget > least.bytes / ALIKE:
            found = self._cut(budget=budget)
            if found.bytes < ALIKE * before.bytes:
                yield found
            before = found
            budget /= 2
        if least.bytes < ALIKE * before.bytes:
            yield least

    def charged(self, choice: Choice, seconds: float) -> Choice:
        """The fastest choice if saving took more: so many seconds of one chip for what another choice saves, by bytes."""
        at = [int(first) + i for first, own in zip(self._first, choice.saved, strict=False) for i in own]
        saving = float(self._saving[at].sum())
        return self._cut(saving=self._saving * (1 + seconds / saving)) if saving and seconds > 0 else choice

    def within(self, budget: float) -> Choice:
        """The fastest choice within so many bytes of all devices."""
        return self._cut(budget=budget)

    def offloading(self, budgets: Sequence[float], host_budget: float) -> Iterator[Choice]:
        """The fastest choices within so many bytes of all devices, and of hosts, where some of the values wait there.

        Where as much may be saved without hosts, the next one that takes less.
        """
        before: Choice | None = None
        for budget in budgets:
            found = self._cut(budget=max(budget, 1.0), host_budget=host_budget)
            if not found.offloaded:
                found = self._cut(budget=max(ALIKE * found.bytes, 1.0), host_budget=host_budget)
            if found.offloaded and (before is None or found.bytes < ALIKE * before.bytes):
                yield found
                before = found

    @cached_property
    def _away(self) -> _Away:
        """What waiting on hosts takes."""
        of, count = self._kinds, int(self._kinds.max()) + 1
        possible, seconds = np.ones(count), np.zeros(count)
        share = np.zeros((len(self.crossings), count))
        link = self._chip.host_link_bytes_per_s
        for at, (first, crossing) in enumerate(zip(self._first.tolist(), self.crossings, strict=False)):
            room = BESIDE * link * math.fsum(step_seconds(step, self._chip) for step in crossing.steps)
            for i, value in enumerate(crossing.values):
                kind = of[first + i]
                if can_wait(crossing, value) and room:
                    share[at, kind] += value.aval.bytes / room
                    seconds[kind] += self._parts * crossing.length * EXPOSED * 2 * value.aval.bytes / link
                else:
                    possible[kind] = 0.0
        return _Away(possible=possible, seconds=seconds, shares=csr_array(share))

    def _cut(
        self,
        *,
        again: Floats | None = None,
        saving: Floats | None = None,
        budget: float = math.inf,
        host_budget: float = 0.0,
    ) -> Choice:
        """The choice of least seconds, at these prices if given, within so many bytes, and so many of hosts."""
        of, count, (runs, of_run) = self._kinds, int(self._kinds.max()) + 1, self._run_kinds
        first = np.unique(self._runs)
        paid = (self._again if again is None else again)[first]
        alone = of_run[of[first]] < 0
        again_of = np.bincount(of[first][alone], weights=paid[alone], minlength=count).astype(np.float64)
        runs_of = np.bincount(of_run[of[first]][~alone], weights=paid[~alone], minlength=runs).astype(np.float64)
        saving_of = np.asarray(np.bincount(of, weights=self._saving if saving is None else saving), np.float64)
        bytes_of = np.asarray(np.bincount(of, weights=self._bytes), np.float64)
        # A kind is computed again (the first `count` variables), or there at all (the next): less one, it is saved. Then
        # come the runs that make several kinds: made if one of these is computed again.
        costs = np.concatenate([again_of - saving_of, saving_of, runs_of])
        size = np.concatenate([-bytes_of, bytes_of, np.zeros(runs)])
        needed, repeatable = np.zeros(count), np.ones(count)
        np.maximum.at(needed, of, [float(value.needed) for _, value in self._values])
        np.minimum.at(repeatable, of, [float(value.repeatable) for _, value in self._values])
        repeatable[[kind for kind, pin in self._pins.items() if pin != "recompute"]] = 0.0
        lower = np.concatenate([np.zeros(count), needed, np.zeros(runs)])
        upper = np.concatenate([repeatable, np.ones(count + runs)])
        rows, most = self._implications, np.zeros(self._implications.shape[0])
        if host_budget:
            # Last come the kinds that wait on hosts: of those saved, as many as travel.
            away, one = self._away, eye_array(count)
            costs, size = np.append(costs, away.seconds), np.append(size, -bytes_of)
            lower, upper = np.append(lower, np.zeros(count)), np.append(upper, away.possible)
            saved = hstack([one, -one, csr_array((count, runs)), one])
            travels = hstack([csr_array((len(self.crossings), 2 * count + runs)), away.shares])
            held = hstack([csr_array((1, 2 * count + runs)), csr_array(bytes_of[None, :] / host_budget)])
            rows = vstack([hstack([rows, csr_array((rows.shape[0], count))]), saved, travels, held])
            most = np.concatenate([most, np.zeros(count), np.ones(len(self.crossings) + 1)])
        if math.isfinite(budget):
            rows, most = vstack([rows, csr_array(size[None, :] / budget)]), np.append(most, 1.0)
        scale = max(float(np.abs(costs).max()), 1e-300)
        costs[count : 2 * count] += EVEN * scale
        found: Any = milp(
            costs / scale,
            constraints=(rows, np.full_like(most, -np.inf), most),
            bounds=(lower, upper),
            integrality=np.full(len(costs), float(math.isfinite(budget))),
            options={"time_limit": SOLVE_SECONDS},
        )
        if found.x is None and math.isinf(budget):
            raise ArgumentError(f"no choice of what is saved keeps to {dict(self.pinned)}; leave some of it out")
        if found.x is None:
            return self.nothing
        repeated, there = (found.x[:count] > 0.5)[of], (found.x[count : 2 * count] > 0.5)[of]
        away_of = (found.x[2 * count + runs :] > 0.5)[of] if host_budget else None
        return self._choice(there & ~repeated, repeated, away_of)

    @cached_property
    def _implications(self) -> Any:
        """Rows x_i - x_j <= 0, over the variables of `_cut`: what must hold if something does."""
        of, count, pairs = self._kinds, int(self._kinds.max()) + 1, dict[tuple[int, int], None]()
        runs, of_run = self._run_kinds
        pairs |= {(kind, 2 * count + int(of_run[kind])): None for kind in np.flatnonzero(of_run >= 0).tolist()}
        for first, crossing, can in zip(self._first.tolist(), self.crossings, self._savable, strict=False):
            for value, own, is_savable in zip(crossing.values, of[first:], can, strict=False):
                pairs[own, count + own] = None
                pairs |= dict.fromkeys((own, count + of[first + operand]) for operand in value.operands)
                if not is_savable or self._pins.get(own) == "recompute":
                    pairs[count + own, own] = None
        numbers, ends = np.arange(len(pairs)), np.array(list(pairs)).T
        signs = np.concatenate([np.ones(len(pairs)), -np.ones(len(pairs))])
        places = (np.concatenate([numbers, numbers]), ends.reshape(-1))
        return csr_array(coo_array((signs, places), shape=(len(pairs), 2 * count + runs)))

    @cached_property
    def _run_kinds(self) -> tuple[int, NDArray[np.int64]]:
        """How many runs make values of several kinds, and by kind the number of its run, -1 where it makes one."""
        of, count = self._kinds, int(self._kinds.max()) + 1
        edges = coo_array((np.ones(len(of)), (of, of[self._runs])), shape=(count, count))
        joined = np.asarray(connected_components(edges, directed=False)[1])
        several = np.flatnonzero(np.bincount(joined) > 1)
        numbers = np.full(int(joined.max()) + 1, -1, np.int64)
        numbers[several] = np.arange(len(several))
        return len(several), numbers[joined]

    def _choice(self, saved: np.ndarray, repeated: np.ndarray, offloaded: np.ndarray | None = None) -> Choice:
        away = saved & (self._on_host if offloaded is None else self._on_host | offloaded)
        runs = np.unique(self._runs[repeated])

        def by_crossing(chosen: np.ndarray) -> tuple[tuple[int, ...], ...]:
            bounds = pairwise(self._first.tolist())
            return tuple(tuple(np.flatnonzero(chosen[first:last]).tolist()) for first, last in bounds)

        return Choice(
            saved=by_crossing(saved),
            repeated=by_crossing(repeated),
            offloaded=by_crossing(away) if away.any() else (),
            bytes=float(self._bytes[saved & ~away].sum()),
            host_bytes=float(self._bytes[away].sum()),
            flops=float(self._flops[runs].sum()),
            seconds=float(self._saving[saved].sum() + self._again[runs].sum()),
        )


def _again_seconds(crossing: Crossing, value: Value, chip: Chip) -> float:
    """Seconds of computing a value again in one pass: of its steps, and of what a weight is cast to in layers written out.

    The forward pass has cast that as well, and a compiler must not merge the two: so devices that hold parts of a weight
    send each other twice what it is cast to, or the weight itself, which is as much. In loops every pass does so anyway.
    """
    computing = math.fsum(step_seconds(step, chip) for step in value.steps)
    if crossing.length > 1 or value.operands or not value.forward:
        return computing
    casts = (step for step in value.steps if step.kind == "convert_element_type")
    wide = sum(step.operands[0].bytes for step in casts if step.operands[0].itemsize > step.results[0].itemsize)
    return computing + 2 * wide / chip.memory_bytes_per_s


def savable(crossing: Crossing) -> list[bool]:
    """Which values can be saved: those of the forward loop, and what passes along of them make.

    What else only the backward loop computes would be computed in the forward loop beside an equal that is not known as
    one.
    """
    found: list[bool] = []
    for value in crossing.values:
        passed = all(is_fused(step) for step in value.steps)
        found.append(value.forward or (passed and all(found[i] for i in value.operands)))
    return found


def can_wait(crossing: Crossing, value: Value) -> bool:
    """Whether a value, where it is saved, can wait on the host: a loop stacks it, pass by pass."""
    return crossing.length > 1 and not value.once and value.forward and value.aval.itemsize > 0
