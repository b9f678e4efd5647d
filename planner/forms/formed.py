"""Puts a program into a form: another jaxpr, which computes the same results of the same arguments."""

from __future__ import annotations

from dataclasses import replace

from planner.errors import ArgumentError
from planner.forms.batch import Refused, batch_of
from planner.program.batch_parts import Batch
from planner.program.form import Form
from planner.program.jaxpr.microbatched import microbatched
from planner.program.jaxpr.parts_of_bodies import NotInParts
from planner.program.traced import Program


def formed(program: Program, form: Form) -> Program:
    """A program as written, in this form. What it takes and returns, and under which names, stays as it is.

    Raises: ArgumentError where the program cannot be computed so.
    """
    if form == program.form:
        return program
    batch = batch_of(program)
    why = refusal(batch, form.microbatches)
    if isinstance(batch, Refused) or why:
        raise ArgumentError(f"{program.function_name} cannot run as {form.microbatches} microbatches: {why}")
    try:
        jaxpr = microbatched(batch, form.microbatches)
    except NotInParts as error:
        raise ArgumentError(
            f"{program.function_name} cannot run as {form.microbatches} microbatches: how an op is computed on a part of "
            f"the batch is not known ({error}); leave microbatches out"
        ) from error
    return replace(program, jaxpr=jaxpr, form=form, written=program.jaxpr)


def refusal(batch: Batch | Refused, count: int) -> str:
    """Why a batch cannot be taken in so many parts, and what would do; "" where it can."""
    if isinstance(batch, Refused):
        return batch.why
    if count < 1 or batch.extent % count:
        return f"its batch has {batch.extent} examples; give one of {', '.join(map(str, divisors(batch.extent)))}"
    return ""


def divisors(number: int) -> list[int]:
    """Those of a number, ascending."""
    return [d for d in range(1, number + 1) if number % d == 0]
