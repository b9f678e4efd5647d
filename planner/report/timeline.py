"""The predicted step as a timeline: trace events in the JSON of Chrome's trace viewer, which Perfetto reads, too.

All devices do the same, so one stands for each of them. Its tracks are

    program             loops and branches, the outer ones around the inner ones
    computing           the ops, one after the other in program order
    links of AXES       the collectives over these axes, each before the op that reads what it brings

The runs of a loop's body are drawn as one of their whole length: an op in a loop of 32 passes is one event with the
seconds of all 32. A collective has the seconds that are not hidden beside computing. So the length of the timeline is what
a call is predicted to take.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from planner.explain.op_graph import OpGraph

MICROSECONDS = 1e6
"""Times of trace events are in microseconds."""
PROGRAM, COMPUTING = "program", "computing"
Event = dict[str, Any]


def trace_events(network: OpGraph, *, devices: int) -> dict[str, Any]:
    """The trace of a decided op graph on so many devices, as an object ready for `json.dumps`."""
    drawn = _Timeline()
    for name, node in network.nodes(data=True):
        drawn.enter(node["region"])
        for maker, _, edge in network.in_edges(name, data=True):
            if edge["seconds"]:
                drawn.collective(network.nodes[maker], edge)
        drawn.op(node)
    drawn.enter("")
    title = f"each of {devices} devices" if devices > 1 else "the device"
    names: Iterator[Event] = (
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": number, "args": {"name": track}}
        for track, number in drawn.tracks.items()
    )
    process: Event = {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": title}}
    return {
        "displayTimeUnit": "ms",
        "otherData": {"plan": network.name, "mesh": network.graph["mesh"], "seconds": drawn.now},
        "traceEvents": [process, *names, *drawn.events],
    }


@dataclass(slots=True)
class _Timeline:
    """Events drawn so far, up to `now` in seconds; `tracks` by number, `within` the regions entered and when they were."""

    events: list[Event] = field(default_factory=list[Event])
    tracks: dict[str, int] = field(default_factory=lambda: {PROGRAM: 0, COMPUTING: 1})
    within: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])
    now: float = 0.0

    def enter(self, region: str) -> None:
        """Leaves the regions that end here and enters those that begin; a region is "outer/inner"."""
        path = region.split("/") if region else []
        kept = 0
        while kept < min(len(path), len(self.within)) and self.within[kept][0] == path[kept]:
            kept += 1
        while len(self.within) > kept:
            name, start = self.within.pop()
            self._draw(PROGRAM, name, start, self.now - start, {})
        self.within += [(name, self.now) for name in path[kept:]]

    def op(self, node: Event) -> None:
        """Draws the computing of an op."""
        facts = ("op", "source", "strategy", "trips", "flops", "bytes")
        self._next(COMPUTING, node["label"], node["seconds"], {name: node[name] for name in facts})

    def collective(self, maker: Event, edge: Event) -> None:
        """Draws what moves a tensor from the op that makes it to one that reads it."""
        facts = ("tensor", "type", "spec_from", "partial", "spec_to", "bytes")
        track = f"links of {edge['axes']}" if edge["axes"] else "links"
        args = {name: edge[name] for name in facts} | {"source": maker["source"]}
        self._next(track, edge["collective"] or "move", edge["seconds"], args)

    def _next(self, track: str, name: str, seconds: float, args: Event) -> None:
        if seconds > 0:
            self._draw(track, name, self.now, seconds, args)
            self.now += seconds

    def _draw(self, track: str, name: str, start: float, seconds: float, args: Event) -> None:
        if seconds <= 0:
            return
        number = self.tracks.setdefault(track, len(self.tracks))
        times = {"ts": MICROSECONDS * start, "dur": MICROSECONDS * seconds}
        self.events.append({"ph": "X", "name": name, "pid": 0, "tid": number, **times, "args": args})
