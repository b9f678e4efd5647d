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

    `donate_argnames` are the names of these where some are given by keyword, else empty.

    So much is saved where all of those results are alive at the peak, and at most that elsewhere. `fed_back`: they take
    its place at the next call, as far as the structure tells.
    """

    name: str
    donate_argnums: tuple[int, ...]
    donate_argnames: tuple[str, ...]
    bytes: float
    fed_back: bool

    def __str__(self) -> str:
        by_name, by_position = f"donate_argnames={self.donate_argnames}", f"donate_argnums={self.donate_argnums}"
        return (
            f"donate {self.name} ({by_name if self.donate_argnames else by_position}) if it is not used after the call: "
            f"its results take its place, up to {quantity(self.bytes, 'B')} per device"
        )


def donations(program: Program, chosen: Chosen) -> tuple[Donation, ...]:
    """What could be donated, most bytes first: arguments whose leaves have results of the same types and specs."""
    found: list[Donation] = []
    for argument in donatable(program, chosen.instance.model.graph.feeds):
        donated = tuple(sorted({*program.donate_argnums, argument.argument}))
        names = tuple(program.parameters[i] for i in donated)
        found.append(
            Donation(
                name=argument.name,
                donate_argnums=donated,
                donate_argnames=names if set(names) & set(program.keywords) else (),
                bytes=_replaced(argument, chosen),
                fed_back=argument.fed_back,
            )
        )
    return tuple(sorted((one for one in found if one.bytes > 0), key=lambda one: -one.bytes))


def _replaced(argument: Donatable, chosen: Chosen) -> float:
    """Bytes per device of the leaves whose result is returned in the spec in which they are taken."""
    inputs = chosen.instance.model.graph.inputs
    return sum(
        chosen.stored_bytes(inputs[leaf])
        for leaf, out in argument.leaves.items()
        if chosen.returned(out) == chosen.stored(inputs[leaf])
    )
