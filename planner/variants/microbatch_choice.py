"""The number of microbatches: as the user asks, or the least in which a plan fits the memory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from planner.errors import ArgumentError, InfeasibleError
from planner.options import Options
from planner.pricing.mesh import Shape
from planner.problem import PlanningProblem
from planner.program.form import Form
from planner.variants.memory_limits import takes_all
from planner.variants.problem_variants import ProblemVariants
from planner.variants.variant_search import best_variant

MORE = 2
"""How many numbers of microbatches that fit are compared, the least first."""


def first_form(options: Options) -> Form:
    """The form to begin with: as many microbatches as the user asks for, or as the program is written."""
    return Form(microbatches=1 if options.microbatches == "auto" else options.microbatches)


def note_on_form(variants: ProblemVariants, options: Options) -> tuple[str, ...]:
    """What a plan says of the form that the user asks for. Raises: ArgumentError where the program has no such form."""
    form = first_form(options)
    variants.forms.program(form)
    return (f"{variants.describe(form.microbatches)}, as asked for",) if form.microbatches > 1 else ()


def problem_in_microbatches(variants: ProblemVariants, problem: PlanningProblem, count: int) -> PlanningProblem:
    """The same problem for the program in so many microbatches. Raises: ArgumentError, PinError."""
    request = problem.request
    return variants.of(Form(microbatches=count)).with_objective(request.objective, request.memory_limit)


def fitting_count(
    variants: ProblemVariants,
    problem: PlanningProblem,
    meshes: Sequence[Shape],
    options: Options,
    counts: Sequence[int],
) -> int | None:
    """Of the least numbers of microbatches with which a plan fits, the one with the best plan; None where none fits.

    A plan that takes all of the memory counts only where none leaves room.
    """
    found: list[tuple[bool, float, int]] = []
    for count in counts:
        if sum(not full for full, _, _ in found) == MORE:
            break
        with suppress(ArgumentError, InfeasibleError):
            start = variants.starting(problem_in_microbatches(variants, problem, count))
            best = best_variant(start, meshes, options, judged=lambda: False, explained=False)
            full = problem.request.objective != "memory" and takes_all(best.problem, best.limit_bytes)
            found.append((full, best.result.candidates[0].value, count))
    return min(found)[2] if found else None
