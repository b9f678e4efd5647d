"""The collectives of a plan with the seconds that they take, one by one and merged."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace

from cost_models import Roofline, objective
from planner.decision import Decision
from planner.pricing.mesh import make_mesh
from planner.units import quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveUse:
    """A collective, or several as one: runs, bytes and seconds per device and call.

    `seconds` are those of the collective by itself, as if nothing hid it or shared its latency; None where prices were
    measured, as a plan's file does not keep those. `tensor` is what it moves and `operation` the compiler's name of what it
    came from, "" where these are not known. `axes` are ("?",) where a compiled program does not say.
    """

    kind: str
    axes: tuple[str, ...]
    runs: float
    bytes: float
    seconds: float | None
    source: str = ""
    tensor: str = ""
    operation: str = ""

    def __str__(self) -> str:
        time = "" if self.seconds is None else f" in {quantity(self.seconds, 's')}"
        where = f", at {self.source}" if self.source else ""
        return f"{self.kind} over {', '.join(self.axes)}: {quantity(self.bytes, 'B')}{time}{where}"


def collective_uses(decision: Decision) -> list[CollectiveUse]:
    """Every predicted collective of a plan, in the order of the prediction, from what the plan's file says alone."""
    request, collectives = decision.request, decision.predicted.collectives
    seconds: list[float | None] = [None] * len(collectives)
    if request.cost_model == "analytic":
        topology = request.topology
        mesh = make_mesh(decision.mesh_shape, topology, Roofline(topology=topology), objective("time", topology.chip))
        seconds = [c.count * mesh.collective_seconds(c.kind, mesh.mask(c.axes), c.bytes) for c in collectives]
    return [
        CollectiveUse(
            kind=c.kind,
            axes=c.axes,
            runs=c.count,
            bytes=c.count * c.bytes,
            seconds=each,
            source=c.source,
            tensor=c.tensor,
        )
        for c, each in zip(collectives, seconds, strict=True)
    ]


def merged(uses: Iterable[CollectiveUse], key: Callable[[CollectiveUse], Hashable]) -> list[CollectiveUse]:
    """The collectives of equal `key` as one, in the order of their first.

    The key must tell kinds and axes apart. Names that are not the same in all of a group are "".
    """
    groups: dict[Hashable, list[CollectiveUse]] = {}
    for use in uses:
        groups.setdefault(key(use), []).append(use)
    return [
        replace(
            group[0],
            runs=sum((use.runs for use in group), 0.0),
            bytes=sum((use.bytes for use in group), 0.0),
            seconds=total_seconds(group),
            source=_common(use.source for use in group),
            tensor=_common(use.tensor for use in group),
            operation=_common(use.operation for use in group),
        )
        for group in groups.values()
    ]


def _common(names: Iterable[str]) -> str:
    distinct = set(names)
    return distinct.pop() if len(distinct) == 1 else ""


def total_seconds(uses: Iterable[CollectiveUse]) -> float | None:
    """The seconds of all of them, None where those of one are not known."""
    total = 0.0
    for use in uses:
        if use.seconds is None:
            return None
        total += use.seconds
    return total


def by_cost(use: CollectiveUse) -> tuple[float, float, str, str, str, tuple[str, ...]]:
    """The key of an order: those that take longest first, then those of the most bytes."""
    return -(use.seconds or 0.0), -use.bytes, use.tensor, use.source, use.kind, use.axes
