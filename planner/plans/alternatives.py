"""The problem that a decision solves, stated again to explain the decision."""

from __future__ import annotations

import math

from cost_models import Chip
from planner.decision import Decision
from planner.errors import ArgumentError
from planner.explain.explain import Alternatives
from planner.explain.saved_values import SavedValues
from planner.pricing.assignment import Chosen
from planner.program.jaxpr.remat.scopes import crossings
from planner.program.tracing.traced import Program
from planner.search.problem import PlanningProblem
from planner.transforms.apply import in_parts
from planner.transforms.remat_choice import Front


def alternatives(problem: PlanningProblem, decision: Decision) -> Alternatives:
    """The problem that a decision solves, stated again, with what was chosen.

    Raises: ArgumentError where this planner states another problem for the program than the one that made the plan.
    """
    instance, choice = problem.instance(decision.mesh_shape), decision.choice
    counts = [len(strategies) for strategies in instance.strategies]
    fits = len(choice) == len(counts) and all(pick < count for pick, count in zip(choice, counts, strict=True))
    chosen = Chosen(instance=instance, choice=choice, apart_above=decision.apart_above)
    if not fits or tuple(map(chosen.stored, problem.graph.inputs)) != decision.in_specs:
        raise ArgumentError(
            f"the plan of {decision.function_name} was made by another release of this planner, and cannot be "
            "explained by this one; plan again"
        )
    return Alternatives(
        problem_of_program=problem,
        instance=instance,
        choice=choice,
        minimised=problem.request.objective,
        limit_bytes=problem.request.memory_limit,
        apart_above=decision.apart_above,
        function_name=decision.function_name,
        platform=problem.request.topology.chip.platform,
        saved=SavedValues(
            make=lambda: _front(problem.program, problem.request.topology.chip),
            form=decision.form,
            devices=math.prod(decision.mesh_shape.values()),
        ),
    )


def _front(program: Program, chip: Chip) -> Front | None:
    """The choices of what a program saves, that the one of its form is among; None where there are none."""
    found = crossings(in_parts(program.as_written, program.form))
    return Front(found, chip, parts=program.form.microbatches) if found else None
