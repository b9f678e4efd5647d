"""Planning problems of the benchmark programs at their small size, for tests of what lies between trace and plan."""

from __future__ import annotations

from benchmarks.models import MODELS
from benchmarks.problems import least_time
from planner.machine.target import resolve
from planner.program.tracing.trace import trace
from planner.search.problem import PlanningProblem, planning_problem

ALIKE = "cpu:8"
"""A topology on which the two layers of a small model are alike: on a TPU the last meets its gradient on the chip."""


def small_problem(name: str, topology: str = "v5e:2x4") -> PlanningProblem:
    """The problem of one program, minimising time."""
    model = MODELS[name]("small")
    target = resolve(None, topology)
    request = least_time(target.topology, 16e9)
    return planning_problem(program=trace(model.fn, model.args), target=target, request=request)
