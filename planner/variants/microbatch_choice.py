"""Microbatches: whether a program runs over its batch in one pass or in several, as asked, or as fits the memory."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import replace

from pbqp.deadline import Deadline
from planner.decision import Decision
from planner.errors import ArgumentError, InfeasibleError
from planner.options import Options
from planner.pricing.mesh import Shape
from planner.problem import Session
from planner.program.form import Form
from planner.transforms.batch import Refused
from planner.units import quantity
from planner.variants.memory_limits import takes_all
from planner.variants.microbatch_search import part_counts
from planner.variants.problem_variants import Sessions
from planner.variants.variant_search import searched
from planner.variants.verdict import Answer

Proposed = Callable[[Session, Options, Sequence[str]], Generator[Decision, Answer]]
"""The decisions to try for a session, with options and further notes."""
MORE = 2
"""How many numbers of microbatches that fit are compared, the least first."""


def first_form(options: Options) -> Form:
    """The form to begin with: as many microbatches as are asked for, or as the program is written."""
    return Form(microbatches=1 if options.microbatches == "auto" else options.microbatches)


def told_of_form(sessions: Sessions, options: Options) -> tuple[str, ...]:
    """What a plan says of the form that is asked for. Raises: ArgumentError where the program cannot be computed so."""
    form = first_form(options)
    sessions.program_in(form)
    return (f"{sessions.words(form.microbatches)}, as asked for",) if form.microbatches > 1 else ()


def in_first_form(
    sessions: Sessions, asked: Session, meshes: Sequence[Shape], options: Options, proposed: Proposed
) -> Generator[Decision, Answer]:
    """The decisions to try, best first, as they are `proposed` for the form that is asked for, of a session.

    Where that is left to the planner and nothing fits as written, for the least number of microbatches with which a plan
    fits. Raises: what `proposed` raises.
    """
    deadline = Deadline.after(options.time_limit_s)
    try:
        yield from proposed(asked, options, ())
        return
    except InfeasibleError as error:
        none_fits = error
    if options.microbatches != "auto" or none_fits.least_bytes is None:
        raise none_fits
    batch = sessions.batch
    if isinstance(batch, Refused):
        raise _told(none_fits, f"It cannot run as microbatches: {batch.why}") from none_fits
    counts, tried = part_counts(batch.extent), 0
    more = f"Nor does any plan fit with the batch of {batch.extent} in microbatches"
    while counts:
        if tried and deadline.passed:
            more = (
                f"Nor does any plan of {tried} microbatches fit by the compiler; more were not tried in the time limit"
            )
            break
        timed = replace(options, time_limit_s=deadline.left(1.0))
        count = _fitting(sessions, asked, meshes, timed, counts)
        if count is None:
            break
        counts, tried = [other for other in counts if other > count], count
        why = (
            f"{sessions.words(count)}: the whole batch at once needs about {quantity(none_fits.least_bytes, 'B')} per "
            f"device, above the limit of {quantity(asked.request.memory_limit, 'B')}"
        )
        with suppress(InfeasibleError):  # by the compiler
            yield from proposed(_of(sessions, asked, count), timed, (why,))
            return
    raise _told(none_fits, more) from none_fits


def in_form_between(
    sessions: Sessions,
    asked: Session,
    meshes: Sequence[Shape],
    options: Options,
    proposed: Proposed,
    *,
    fewest: int,
    most: int,
) -> Generator[Decision, Answer]:
    """The decisions to try, best first, as they are `proposed` for the best of forms of so many microbatches.

    Plans of less memory than is asked for have the one number, plans of more the other. Raises: what `proposed` raises,
    InfeasibleError where nothing fits in any of the forms.
    """
    counts = [count for count in (1, *part_counts(most)) if count >= fewest] or [most]
    deadline = Deadline.after(options.time_limit_s)
    count = counts[0] if len(counts) == 1 else _fitting(sessions, asked, meshes, options, counts)
    limit = quantity(asked.request.memory_limit, "B")
    if count is None:
        raise InfeasibleError(f"no plan fits {limit} per device in {fewest} to {most} microbatches")
    told = count > 1 and options.microbatches == "auto"
    why = (f"{sessions.words(count)}: the best of what was tried within {limit} per device",) if told else ()
    yield from proposed(_of(sessions, asked, count), replace(options, time_limit_s=deadline.left(1.0)), why)


def _of(sessions: Sessions, asked: Session, count: int) -> Session:
    """What a session asks, of the program in so many microbatches."""
    request = asked.request
    return sessions.of(Form(microbatches=count)).asking(objective=request.objective, memory_limit=request.memory_limit)


def _fitting(
    sessions: Sessions, asked: Session, meshes: Sequence[Shape], options: Options, counts: Sequence[int]
) -> int | None:
    """Of the least numbers of microbatches with which a plan fits, the one with the best plan; None where none fits.

    One that takes all of the memory is taken where none leaves room.
    """
    found: list[tuple[bool, float, int]] = []
    for count in counts:
        if sum(not full for full, _, _ in found) == MORE:
            break
        with suppress(ArgumentError, InfeasibleError):
            start = sessions.starting(_of(sessions, asked, count))
            best = searched(start, meshes, options, judged=lambda: False, explained=False)
            full = asked.request.objective != "memory" and takes_all(best.session, best.limit_bytes)
            found.append((full, best.found.candidates[0].value, count))
    return min(found)[2] if found else None


def _told(none_fits: InfeasibleError, more: str) -> InfeasibleError:
    """The error with a sentence more."""
    return InfeasibleError(
        f"{none_fits}. {more}",
        least_bytes=none_fits.least_bytes,
        conflict=none_fits.conflict,
        offers=none_fits.offers,
    )
