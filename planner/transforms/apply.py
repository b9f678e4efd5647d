"""Puts a program into a form: another jaxpr, which computes the same results of the same arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from planner.errors import ArgumentError
from planner.program.batch_parts import Batch
from planner.program.form import Form
from planner.program.jaxpr.canonicalize.added_stacks import with_stacks_added
from planner.program.jaxpr.microbatch.loop import microbatched
from planner.program.jaxpr.microbatch.slicing import NotInParts
from planner.program.jaxpr.remat.lifted_checkpoints import with_checkpoints_lifted
from planner.program.jaxpr.remat.rewrite_saved import NoSuchValues, with_saved
from planner.program.jaxpr.remat.scopes import Scope, scope_of
from planner.program.tracing.traced import Program
from planner.transforms.batch import Refused, batch_of
from planner.transforms.host_arguments import with_arguments_on_host


def formed(program: Program, form: Form) -> Program:
    """A program as written, in this form. What it takes and returns, and under which names, stays as it is.

    Raises: ArgumentError where the program cannot be computed so.
    """
    parts = in_parts(program, form)
    return finished(with_values_saved(parts, form, lambda: scope_of(parts)))


def in_parts(program: Program, form: Form) -> Program:
    """A program as written in the microbatches of a form, nothing saved as chosen. Raises: ArgumentError."""
    start = started(program, form)
    return start if form.microbatches == 1 else in_microbatches(start, form.microbatches, batch_of(start))


def finished(program: Program) -> Program:
    """A program in its form, in which loops add slices to the accumulators of loops around them.

    Last of all: what is saved is chosen between a forward loop and a backward loop that stacks gradients.
    """
    jaxpr = with_stacks_added(program.jaxpr)
    return program if jaxpr is program.jaxpr else replace(program, jaxpr=jaxpr, written=program.as_written.jaxpr)


def started(program: Program, form: Form) -> Program:
    """A program as written in the start of a form. Raises: ArgumentError where it cannot be computed so."""
    start = without_checkpoints(program) if form.without_checkpoints else program
    if start is None:
        raise ArgumentError(
            f"{program.function_name} has no checkpoints to be taken out, as the plan has it: the plan is another "
            "program's, or another release's; make it again"
        )
    return with_arguments_on_host(start, form.hosted) if form.hosted else start


def without_checkpoints(program: Program) -> Program | None:
    """A program as written without its checkpoints (`with_checkpoints_lifted`); None where it is written so."""
    lifted = with_checkpoints_lifted(program)
    return lifted and replace(lifted, form=replace(program.form, without_checkpoints=True), written=program.jaxpr)


def with_values_saved(program: Program, form: Form, scope: Callable[[], Scope]) -> Program:
    """A program in the microbatches of a form, whose scope this is, with the values saved that it says.

    Raises: ArgumentError.
    """
    if (form.saved, form.offloaded) == (program.form.saved, program.form.offloaded):
        return program
    return replace(_saving(program, form, scope), form=form, written=program.as_written.jaxpr)


def in_microbatches(program: Program, count: int, batch: Batch | Refused) -> Program:
    """A program, nothing saved as chosen, in so many microbatches, as its batch may be taken. Raises: ArgumentError."""
    jaxpr = _in_microbatches(program, count, batch)
    form = replace(program.form, microbatches=count)
    return replace(program, jaxpr=jaxpr, form=form, written=program.as_written.jaxpr)


def _in_microbatches(program: Program, count: int, batch: Batch | Refused) -> object:
    """The jaxpr of a program in so many microbatches. Raises: ArgumentError."""
    why = refusal(batch, count)
    if isinstance(batch, Refused) or why:
        raise ArgumentError(
            f"{program.function_name} cannot run as {count} microbatches: {why}; leave microbatches out"
        )
    try:
        return microbatched(batch, count)
    except NotInParts as error:
        raise ArgumentError(
            f"{program.function_name} cannot run as {count} microbatches: how an op is computed on a part of "
            f"the batch is not known ({error}); leave microbatches out"
        ) from error


def _saving(program: Program, form: Form, scope: Callable[[], Scope]) -> Program:
    """A program whose backward passes are handed what a form says. Raises: ArgumentError."""
    saved = {position: chosen for position, chosen in enumerate(form.saved) if chosen is not None}
    try:
        return with_saved(program, scope(), saved, dict(enumerate(form.offloaded))) if saved else program
    except NoSuchValues as error:
        raise ArgumentError(
            f"{program.function_name} has no such values to save for its backward pass {error}: the plan is another "
            "program's, or another release's; make it again"
        ) from error


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
