"""Advice: which arguments to donate, and the bytes per device that this saves in a plan."""

from __future__ import annotations

from dataclasses import dataclass

from planner.pricing.assignment import Chosen
from planner.program.fed_back import Donatable, donatable
from planner.program.tracing.traced import Program
from planner.units import quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Donation:
    """An argument to donate by name, all of `donate_argnums` then, and the bytes per device of results that replace it.

    So much is saved where all of those results are alive at the peak, and at most that elsewhere. `fed_back`: they take
    its place at the next call, as far as the structure tells.
    """

    name: str
    donate_argnums: tuple[int, ...]
    bytes: float
    fed_back: bool

    def __str__(self) -> str:
        return (
            f"donate {self.name} (donate_argnums={self.donate_argnums}) if it is not used after the call: its results "
            f"take its place, up to {quantity(self.bytes, 'B')} per device"
        )


def donations(program: Program, chosen: Chosen) -> tuple[Donation, ...]:
    """What could be donated, most bytes first: arguments whose leaves have results of the same types and specs."""
    found = [
        Donation(
            name=argument.name,
            donate_argnums=tuple(sorted({*program.donate_argnums, argument.argument})),
            bytes=_replaced(argument, chosen),
            fed_back=argument.fed_back,
        )
        for argument in donatable(program, chosen.instance.model.graph.feeds)
    ]
    return tuple(sorted((one for one in found if one.bytes > 0), key=lambda one: -one.bytes))


def _replaced(argument: Donatable, chosen: Chosen) -> float:
    """Bytes per device of the leaves whose result is returned in the spec in which they are taken."""
    inputs = chosen.instance.model.graph.inputs
    return sum(
        chosen.stored_bytes(inputs[leaf])
        for leaf, out in argument.leaves.items()
        if chosen.returned(out) == chosen.stored(inputs[leaf])
    )
