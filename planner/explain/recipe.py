"""A recipe beside a plan: what it would take, whether it fits, and why it is worse."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from planner.decision import Request
from planner.prediction import Predicted
from planner.pricing.assignment import Chosen
from planner.pricing.mesh import mesh_text
from planner.program.spec_entries import parts_over
from planner.units import quantity

ALIKE = 2e-3
"""Values that differ by no more than this share are told as the same: solves may leave as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A usual placement, with what a call would take per device: `predicted` is None where the program does not allow it.

    `mesh` is that on which it is best. `share` is what is minimised as a multiple of the plan's, None where that is not
    known. `why` says what makes it worse, or what keeps it from being used.
    """

    name: str
    mesh: Mapping[str, int]
    predicted: Predicted | None
    fits: bool
    share: float | None
    why: str

    @property
    def verdict(self) -> str:
        """Whether it can be used: "fits", "does not fit" or "not possible"."""
        return "not possible" if self.predicted is None else "fits" if self.fits else "does not fit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipes:
    """A plan, its `mesh` and what is `predicted` of it, beside the usual recipes; it prints as a table."""

    mesh: Mapping[str, int]
    predicted: Predicted
    others: tuple[Recipe, ...]

    def __str__(self) -> str:
        rows = [HEADINGS, ("this plan", *_cells(self.predicted), "fits", mesh_text(self.mesh))]
        for one in self.others:
            cells = ("",) * 5 if one.predicted is None else _cells(one.predicted)
            rows.append((one.name, *cells, one.verdict, mesh_text(one.mesh)))
        wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(
                f"{cell:>{w}}" if i in NUMBERS else f"{cell:<{w}}"
                for i, (cell, w) in enumerate(zip(row, wide, strict=True))
            )
            for row in rows
        ]
        whys = ["", "", *(f"\n      {one.why}" for one in self.others)]
        return "\n".join(f"  {line.rstrip()}{why}" for line, why in zip(lines, whys, strict=True))


HEADINGS = ("", "time", "computing", "exposed", "hidden", "peak", "", "mesh")
"""Exposed and hidden are the seconds of communication."""
NUMBERS = range(1, 6)


def _cells(p: Predicted) -> tuple[str, ...]:
    times = (p.seconds, p.compute_seconds, p.communication_seconds, p.hidden_seconds)
    return (*(quantity(seconds, "s") for seconds in times), quantity(p.peak_bytes, "B"))


def objective_value(predicted: Predicted, objective: str, devices: int) -> float:
    """What is minimised: seconds or bytes of a device, or joules of all."""
    if objective == "memory":
        return predicted.peak_bytes
    return predicted.energy_joules * devices if objective == "energy" else predicted.seconds


def why_worse(plan: tuple[Chosen, Predicted], recipe: tuple[Chosen, Predicted], request: Request, *, fits: bool) -> str:
    """Why a recipe is worse than a plan, the memory that it does not have first; or that it is not."""
    said = [] if fits else [_memory(recipe[0], request.memory_limit)]
    (mine, a), (other, b) = plan, recipe
    objective = request.objective
    before, after = (objective_value(p, objective, c.instance.mesh.num_devices) for c, p in (plan, recipe))
    if abs(after - before) <= ALIKE * before:
        said.append("it takes what the plan takes")
    elif after < before:
        unit = "B" if objective == "memory" else "J" if objective == "energy" else "s"
        held = "" if fits else ", were there memory for it"
        said.append(f"it takes {quantity(before - after, unit)} less than the plan{held}")
    elif objective == "memory":
        said.append(f"it needs {quantity(after - before, 'B')} more")
    elif b.compute_seconds - a.compute_seconds >= b.communication_seconds - a.communication_seconds:
        said.append(_computing(a, b))
    else:
        said.append(_communicating(a, b, mine, other))
    return "; ".join(said)


def _memory(recipe: Chosen, limit: float) -> str:
    memory = recipe.memory
    profile = memory.profile(recipe.choice)
    fullest = int(profile.argmax())
    name, size = memory.alive(fullest, recipe.choice)[0]
    needs = f"it needs {quantity(float(profile.max()), 'B')} of a device, and the limit is {quantity(limit, 'B')}"
    return f"{needs}: {name} alone takes {quantity(size, 'B')}"


def _computing(a: Predicted, b: Predicted) -> str:
    more = f"computing takes {quantity(b.compute_seconds - a.compute_seconds, 's')} more"
    if b.flops > (1 + ALIKE) * a.flops:
        return f"{more}: {quantity(b.flops, 'FLOP')} on a device instead of {quantity(a.flops, 'FLOP')}"
    return f"{more}: {quantity(b.traffic_bytes, 'B')} read and written instead of {quantity(a.traffic_bytes, 'B')}"


def _communicating(a: Predicted, b: Predicted, plan: Chosen, recipe: Chosen) -> str:
    """What communicates more, named by the kind of collective that takes the most seconds more by itself."""
    text = f"exposed communication takes {quantity(b.communication_seconds - a.communication_seconds, 's')} more"
    before, after = _moved(a, plan), _moved(b, recipe)
    none = _Moved()
    kind = max(sorted(after), key=lambda kind: after[kind].seconds - before.get(kind, none).seconds, default="")
    if not kind:
        return text
    at, own = after[kind].most_at, before.get(kind)
    instead = "none" if own is None else f"{quantity(own.bytes, 'B')} over {own.devices} devices"
    moved = f"{kind}s of {quantity(after[kind].bytes, 'B')} over {after[kind].devices} devices instead of {instead}"
    return f"{text}: {moved}{f', most of it at {at}' if at else ''}"


@dataclass(slots=True)
class _Moved:
    """The collectives of one kind: seconds as if nothing hid them, bytes, and where and over how many devices most are."""

    seconds: float = 0.0
    bytes: float = 0.0
    at: dict[str, float] = field(default_factory=lambda: defaultdict[str, float](float))
    over: dict[int, float] = field(default_factory=lambda: defaultdict[int, float](float))

    @property
    def most_at(self) -> str:
        return max(sorted(self.at), key=lambda line: self.at[line])

    @property
    def devices(self) -> int:
        return max(sorted(self.over), key=lambda devices: self.over[devices])


def _moved(predicted: Predicted, chosen: Chosen) -> Mapping[str, _Moved]:
    mesh = chosen.instance.mesh
    found: dict[str, _Moved] = defaultdict(_Moved)
    for c in predicted.collectives:
        of, seconds = found[c.kind], c.count * mesh.collective_seconds(c.kind, mesh.mask(c.axes), c.bytes)
        of.seconds += seconds
        of.bytes += c.count * c.bytes
        of.at[c.source] += seconds
        of.over[parts_over(c.axes, mesh.shape)] += seconds
    return found
