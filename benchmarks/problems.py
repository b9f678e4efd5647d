"""Requests and problems made by hand, without the public API: for the least time, by data sheets."""

from __future__ import annotations

from cost_models import Topology
from planner.decision import Request
from planner.machine.target import Target
from planner.program.tracing.traced import Program
from planner.search.problem import PlanningProblem, planning_problem


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


def modelled_problem(program: Program, target: Target, request: Request) -> PlanningProblem:
    """The problem of a program, with the model of it, which is made when it is first read."""
    problem = planning_problem(program=program, target=target, request=request)
    _ = problem.model
    return problem
