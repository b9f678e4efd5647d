"""Sessions of the benchmark programs at their small size, for tests of what lies between trace and plan."""

from __future__ import annotations

from benchmarks.models import MODELS
from planner.decision import Request
from planner.machine.target import resolve
from planner.program.trace import trace
from planner.session import Session


def small_session(name: str) -> Session:
    """The session of one program for v5e:2x4, minimising time."""
    model = MODELS[name]("small")
    target = resolve(None, "v5e:2x4")
    request = Request(
        topology=target.topology,
        platform=None,
        objective="time",
        memory_limit=16e9,
        pins={},
        cost_model="analytic",
        profile=None,
        while_trips=1.0,
    )
    return Session(program=trace(model.fn, model.args), target=target, request=request)
