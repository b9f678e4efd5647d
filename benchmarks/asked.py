"""What the planner is asked for where sessions are made by hand: the least time, by data sheets."""

from __future__ import annotations

from cost_models import Topology
from planner.decision import Request


def least_time(topology: Topology, memory_limit: float, *, platform: str | None = None) -> Request:
    """The request for a topology within so many bytes per device, to run on devices of a platform, if on any."""
    return Request(
        topology=topology,
        platform=platform,
        objective="time",
        memory_limit=memory_limit,
        pins={},
        cost_model="analytic",
        profile=None,
        while_trips=1.0,
    )
