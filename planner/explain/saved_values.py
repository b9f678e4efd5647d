"""Values of a forward pass that its backward pass reads: whether they are saved, and what the other choice would take.

Prices are those by which the choices were offered: of one chip that holds everything, here shared evenly by all devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from planner.pricing.candidates.pins import base_name, matcher
from planner.program.form import Form
from planner.program.graph import Aval
from planner.transforms.remat_choice import Choice, Front
from planner.units import quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedValue:
    """A value, or several that are chosen alike: `saved`, or computed again.

    All figures are per device and call, were all of it split evenly: `bytes` that saving takes, `seconds` and `flops` of
    computing it again. `on_host`: what is saved waits there. `other_bytes`, `other_seconds` and `other_flops` are what the
    other choice adds, all else as it is but for what is needed then; None where there is no other. `count` values run in
    `passes` each.
    """

    name: str
    aval: Aval
    count: int
    passes: int
    saved: bool
    on_host: bool
    bytes: float
    seconds: float
    flops: float
    other_bytes: float | None
    other_seconds: float | None
    other_flops: float | None

    def __str__(self) -> str:
        times = " x ".join(str(times) for times in (self.count, self.passes) if times > 1)
        shape = f"{self.aval.dtype}{list(self.aval.shape)}{f' x {times}' if times else ''}"
        again = f"{quantity(self.seconds, 's')} and {quantity(self.flops, 'FLOP')} to compute again"
        now = f"saved{' in the memory of the host' if self.on_host else ''}" if self.saved else "computed again"
        lines = [f"{self.name} {shape}: {now}; {quantity(self.bytes, 'B')} to save, {again}"]
        if self.other_bytes is None or self.other_seconds is None or self.other_flops is None:
            lines.append(f"     it cannot be {'computed again' if self.saved else 'saved'}")
        else:
            other = "computed again" if self.saved else "saved"
            lines.append(
                f"     {other} instead: {_more(self.other_bytes, 'B')} saved, {_more(self.other_seconds, 's')}, "
                f"{_more(self.other_flops, 'FLOP')}"
            )
        return "\n".join(lines)


@dataclass(kw_only=True)
class SavedValues:
    """What is known of the saved values of a plan, found when it is asked for.

    `make` gives the choices of the program, `form` which values are saved of each crossing, and where, `devices` share all
    of it.
    """

    make: Callable[[], Front | None]
    form: Form
    devices: int

    @cached_property
    def front(self) -> Front | None:
        """The choices that there were; None where nothing crosses to a backward pass."""
        return self.make()

    @cached_property
    def known(self) -> list[SavedValue]:
        """Those that are saved or computed again, the largest first."""
        front = self.front
        if front is None:
            return []
        choice = front.settled(self.form.saved, self.form.offloaded)
        found = [self._described(front, choice, places) for places in front.alike()]
        return sorted((value for value in found if value is not None), key=lambda value: -value.bytes)

    def _described(self, front: Front, choice: Choice, places: Sequence[tuple[int, int]]) -> SavedValue | None:
        """One kind of values; None where they are neither saved nor needed again."""
        saved = [place for place in places if place[1] in choice.saved[place[0]]]
        again = [place for place in places if place[1] in choice.repeated[place[0]]]
        if not saved and not again:
            return None
        crossing, position = (saved or again)[0]
        value = front.crossings[crossing].values[position]
        size, seconds, flops = (amount / self.devices for amount in front.repeating(saved or again))
        other = self._other(front, choice, places, keep=not saved)
        return SavedValue(
            name=value.name,
            aval=value.aval,
            count=len(saved or again),
            passes=1 if saved and value.once else front.crossings[crossing].length,
            saved=bool(saved),
            on_host=bool(saved) and choice.offloads(saved[0]),
            bytes=size,
            seconds=seconds,
            flops=flops,
            other_bytes=other and (other.bytes - choice.bytes) / self.devices,
            other_seconds=other and (other.seconds - choice.seconds) / self.devices,
            other_flops=other and (other.flops - choice.flops) / self.devices,
        )

    @staticmethod
    def _other(front: Front, choice: Choice, places: Sequence[tuple[int, int]], *, keep: bool) -> Choice | None:
        """The choice with these values saved, or not; None where they cannot be."""
        if not front.can(places, "save" if keep else "recompute"):
            return None
        own: list[set[int]] = [set(saved) for saved in choice.saved]
        for crossing, position in places:
            if keep:
                own[crossing].add(position)
            else:
                own[crossing].discard(position)
        return front.settled([sorted(saved) for saved in own])


def naming(pattern: str) -> Callable[[str], bool]:
    """Whether a pattern names a value: by its name, or by that of its tensor, which has a folder before the file."""
    matches = matcher(pattern)
    return lambda name: matches(name) or base_name(pattern).endswith(f"/{name}")


def _more(amount: float, unit: str) -> str:
    """A difference in words."""
    return f"{quantity(abs(amount), unit)} {'more' if amount >= 0 else 'less'}"
