"""Puts a program into a form: another jaxpr, which computes the same results of the same arguments."""

from __future__ import annotations

from planner.errors import ArgumentError
from planner.program.form import Form
from planner.program.traced import Program


def formed(program: Program, form: Form) -> Program:
    """A program as written, in this form. What it takes and returns, and under which names, stays as it is.

    Raises: ArgumentError where the program cannot be computed so.
    """
    if form == program.form:
        return program
    raise ArgumentError(
        f"{program.function_name} cannot be computed in {form.microbatches} microbatches: only programs as they are "
        "written are computed here; make the plan again with this release"
    )
