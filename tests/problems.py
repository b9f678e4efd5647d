"""Planning problems of the benchmark programs at their small size, for tests of what lies between trace and plan."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import jax

from benchmarks.models import MODELS
from benchmarks.models.base import Model
from benchmarks.problems import least_time
from planner.machine.target import resolve
from planner.program.tracing.trace import trace
from planner.program.tracing.traced import Program
from planner.search.problem import PlanningProblem, planning_problem

ALIKE = "cpu:8"
"""A topology on which the two layers of a small model are alike: on a TPU the last meets its gradient on the chip."""


@cache
def small_model(name: str) -> Model:
    """A program at its small size with the shapes of its arguments: to make arrays, XLA compiles for seconds."""
    made: list[Model] = []

    def args() -> tuple[Any, ...]:
        made.append(MODELS[name]("small"))
        return made[0].args

    shapes = jax.eval_shape(args)
    return replace(made[0], args=shapes)


@cache
def small_program(name: str) -> Program:
    """One program, traced once for all tests of a process."""
    model = small_model(name)
    return trace(model.fn, model.args)


def small_problem(name: str, topology: str = "v5e:2x4") -> PlanningProblem:
    """The problem of one program, minimising time."""
    target = resolve(None, topology)
    request = least_time(target.topology, 16e9)
    return planning_problem(program=small_program(name), target=target, request=request)
