"""What limits a plan: how many seconds of a call go by because of computing, of memory traffic, and of which wires."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cost_models import Link, Topology
from cost_models.hardware import Platform
from cost_models.network.links import LinkKind
from planner.emit.predict import run_seconds, runs_of
from planner.prediction import Predicted
from planner.pricing.assignment import Chosen

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
