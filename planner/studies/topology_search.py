"""The search over topologies: one function planned for each of several, and for one device of each chip alone.

The time limit is shared: every topology has an equal part of it, and one part is for the single devices. These are the
simplest answer to "how many", so they are planned wherever the meshes are the planner's to choose and no plan for their
chip came out on one device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from cost_models import Link, Topology
from cost_models.hardware import Platform
from cost_models.network.links import LinkKind
from planner.emit.predict import run_seconds, runs_of
from planner.errors import ArgumentError, CompileError, InfeasibleError, MeshError, PlannerError
from planner.machine.target import Target, resolve
from planner.options import Options, telling
from planner.planning.driver import chosen
from planner.planning.plan_cache import planned_or_kept
from planner.plans.plan import Plan
from planner.prediction import Predicted
from planner.pricing.assignment import Chosen
from planner.request.resolve import PlanRequest
from planner.studies.topology_table import TopologyComparison, TopologyRow
from planner.units import quantity

ONE = {"x": 1}
"""The mesh of one device."""
Resolve = Callable[[Target, Options], PlanRequest]
"""Makes the request for a target."""


def targets_of(topologies: Sequence[str | Topology]) -> list[Target]:
    """The targets of these topologies. Raises: ArgumentError where they are none or name one twice, MeshError."""
    if isinstance(topologies, (str, Topology)) or not isinstance(topologies, Sequence) or not topologies:
        raise ArgumentError(
            f"topologies is {topologies!r}; give a list of names such as ['v5e:4x4', 'h100:8'], or of cost_models.Topology"
        )
    targets = [resolve(None, topology) for topology in topologies]
    names = [target.topology.name for target in targets]
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise ArgumentError(f"topologies holds {twice!r} twice; give each once")
    return targets


def compared(
    resolve_for: Resolve, targets: Sequence[Target], options: Options, *, objective: str
) -> TopologyComparison:
    """The plans for these targets, a row for each, also where none fits.

    Raises: what making ready raises, but for a mesh that only some targets have; InfeasibleError where nothing fits any.
    """
    share = options.time_limit_s / (len(targets) + 1)
    checked = replace(options, affordable_compile_s=options.affordable_compile_s / len(targets), time_limit_s=share)
    search = _Search(resolve_for)
    rows = [search.row(target, telling(checked, target.topology.name)) for target in targets]
    chips = {row.topology.chip for row in rows} - {row.topology.chip for row in rows if _uses_one(row)}
    single = {row.topology.chip: row.topology for row in reversed(rows) if row.topology.chip in chips}
    quick = replace(options, check="never", autotune="never", cache=None, time_limit_s=share / max(len(single), 1))
    for topology in reversed(single.values()):
        rows += search.alone(topology, quick)
    if all(row.plan is None for row in rows):
        raise search.nothing(rows)
    return TopologyComparison(rows, objective=objective)


class _Search:
    """Rows of one function; the requests made so far, by topology, and what went wrong."""

    def __init__(self, resolve_for: Resolve) -> None:
        self.resolve_for = resolve_for
        self.requests: dict[str, PlanRequest] = {}
        self.errors: list[PlannerError] = []

    def row(self, target: Target, options: Options) -> TopologyRow:
        """That of a topology."""
        name = target.topology.name

        def planned() -> Plan:
            self.requests[name] = self.resolve_for(target, options)
            return planned_or_kept(self.requests[name])

        return self._made(target.topology, planned, alone=False)

    def alone(self, topology: Topology, options: Options) -> list[TopologyRow]:
        """That of one device of a topology; none where its meshes are not the planner's to choose."""
        request = self.requests.get(topology.name)
        if request is None or ONE not in request.meshes:
            return []
        single = replace(request, meshes=[ONE], options=telling(options, f"one of {topology.name}"))
        return [self._made(topology, lambda: _fitting(single), alone=True)]

    def _made(self, topology: Topology, planned: Callable[[], Plan], *, alone: bool) -> TopologyRow:
        try:
            plan = planned()
        except (CompileError, InfeasibleError, MeshError) as error:
            self.errors.append(error)
            least = error.least_bytes if isinstance(error, InfeasibleError) else None
            return TopologyRow(
                topology=topology, alone=alone, plan=None, limits={}, why_none=_why(error, least), least_bytes=least
            )
        limits = limits_of(chosen(self.requests[topology.name], plan.decision), plan.predicted, topology)
        return TopologyRow(topology=topology, alone=alone, plan=plan, limits=limits)

    def nothing(self, rows: Sequence[TopologyRow]) -> PlannerError:
        """The error that there is no plan at all: what went wrong first, where it is not memory."""
        other = next((error for error in self.errors if not isinstance(error, InfeasibleError)), None)
        reasons = "; ".join(f"{row.name}: {row.why_none}" for row in rows)
        return other or InfeasibleError(
            f"no plan fits any of the topologies: {reasons}. Give larger ones, or make the program take less memory"
        )


def _fitting(single: PlanRequest) -> Plan:
    """The plan on one device. Raises: InfeasibleError, at once where not even the arguments fit."""
    program, limit = single.variants.program, single.variants.request.memory_limit
    arguments = sum(leaf.aval.bytes for leaf in program.arguments)
    if arguments > limit:
        raise InfeasibleError(f"the arguments alone take {quantity(arguments, 'B')}", least_bytes=arguments)
    return planned_or_kept(single)


def _why(error: PlannerError, least_bytes: float | None) -> str:
    """Why a topology has no plan, in a few words."""
    if least_bytes is not None:
        return f"nothing fits: at least {quantity(least_bytes, 'B')} per device"
    return str(error).partition(";")[0].partition(". ")[0]


def _uses_one(row: TopologyRow) -> bool:
    """Whether a row already is of one device of its chip."""
    return row.topology.num_devices == 1 or (
        row.plan is not None and math.prod(row.plan.decision.mesh_shape.values()) == 1
    )


# ---------------------------------------------------------------- what limits a plan


COMPUTING, MEMORY = "computing", "memory traffic"
WIRES: Mapping[tuple[Platform, LinkKind], str] = {
    ("tpu", "torus"): "chip links",
    ("tpu", "switch"): "core links",
    ("tpu", "network"): "slice network",
    ("gpu", "switch"): "node links",
    ("gpu", "full"): "node links",
    ("gpu", "network"): "node network",
    ("cpu", "switch"): "host memory",
}
"""What wires are called: between the chips of a slice or the cores of a chip, within a node, between these."""


def limits_of(chosen: Chosen, predicted: Predicted, topology: Topology) -> dict[str, float]:
    """The seconds of a call by what limits them, the most first; they add up to those that are predicted of this choice.

    A group of fused ops is limited by memory traffic where moving its bytes takes more than half of its seconds, a
    collective by the slowest wires under its axes.
    """
    found: dict[str, float] = {}
    for work, pick in zip(chosen.instance.works, chosen.choice, strict=True):
        if work is not None:
            seconds, moved = float(work.seconds[pick]), float(work.traffic_bytes[pick])
            what = MEMORY if 2 * moved > seconds * topology.chip.memory_bytes_per_s else COMPUTING
            found[what] = found.get(what, 0.0) + seconds
    found |= _by_wires(chosen, predicted.communication_seconds, topology)
    return {what: found[what] for what in sorted(found, key=lambda what: -found[what]) if found[what] > 0}


def _by_wires(chosen: Chosen, communication_seconds: float, topology: Topology) -> dict[str, float]:
    """The seconds of communication by the slowest wires of each collective; what a compiler hides is left out of all."""
    mesh, links = chosen.instance.mesh, topology.links(chosen.instance.mesh.sizes) or ()
    found: dict[str, float] = {}
    for collective in runs_of(chosen).everything():
        own = [link for name, link in zip(mesh.names, links, strict=True) if name in collective.axes]
        wires = _wires(own, topology)
        found[wires] = found.get(wires, 0.0) + run_seconds(chosen.instance, collective)
    whole = sum(found.values())
    return {what: seconds * communication_seconds / whole for what, seconds in found.items()} if whole > 0 else {}


def _wires(links: Sequence[Link], topology: Topology) -> str:
    """What the slowest wires of some axes are called."""
    segments = [segment for link in links for segment in link.dims if segment.extent > 1]
    if not segments:
        return "links"
    slowest = min(segments, key=lambda segment: segment.ring_bytes_per_s)
    return WIRES.get((topology.chip.platform, slowest.kind), "links")
