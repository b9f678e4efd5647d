"""What the planner is asked for where sessions are made by hand: the least time, by data sheets; and such sessions."""

from __future__ import annotations

from cost_models import Topology
from planner.decision import Request
from planner.machine.target import Target
from planner.problem import Session
from planner.program.tracing.traced import Program


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
        inputs="auto",
    )


def made_ready(program: Program, target: Target, request: Request) -> Session:
    """The session of a program, with the model of it, which is made when it is first asked for."""
    session = Session(program=program, target=target, request=request)
    _ = session.model
    return session
