"""The best form: which values of the forward pass are saved, chosen by planning the program in several forms.

A program begins without its checkpoints, so that what is found does not depend on them. `remat_choice` offers choices from
the fastest to the one that saves the least, priced without regard to placement. Each is planned, the fastest first, and
only for plans better than the best so far, until one is none: what saves less computes more again, and what fits sooner is
placed better. Where choices promise hardly more and spare little memory, the program that saves all is kept; the program as
written is one more candidate. In how many microbatches the batch is taken is chosen with that (`microbatch_search`): first,
where much stays on the chips in some number of them; else where memory is short.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

from pbqp.deadline import Deadline
from planner.errors import ArgumentError, InfeasibleError, PinError
from planner.explain.saved_values import naming
from planner.options import Options
from planner.pricing.candidates.pins import close_names
from planner.pricing.mesh import Shape
from planner.program.jaxpr.remat.residuals import Crossing
from planner.program.tracing.traced import Program
from planner.search.infeasible import with_reason
from planner.search.mesh_search import SearchOptions, SearchResult, search
from planner.search.problem import PlanningProblem
from planner.transforms.remat_choice import ALIKE, Choice, Front, Pinned
from planner.units import quantity
from planner.variants.host_arguments import (
    better_on_hosts,
    hosts_notes,
    may_use_hosts,
    named_on_hosts,
    names_on_hosts,
    with_more_on_hosts,
)
from planner.variants.host_memory import BEFORE, may_help, with_host_memory
from planner.variants.lower_bounds import least_of_any_form
from planner.variants.microbatch_search import Counts
from planner.variants.problem_variants import ProblemVariants
from planner.variants.variant_result import FORM_GAP, GAIN, FormBounds, VariantResult, VariantSearch, value_of

MORE = 2
"""How many numbers of microbatches that fit are compared, the least first."""
BEYOND = (1.1, 1.5, 2.5)
"""The limits, as multiples of the one given, of plans that a compiler shall judge where nothing is predicted to fit."""

ALL_SAVED = (
    "recomputation: none, all that backward passes read of layers is saved, whatever the checkpoints of the program"
)
"""What a plan says of a form without checkpoints in which nothing else is chosen."""


def best_variant(
    variants: ProblemVariants,
    meshes: Sequence[Shape],
    options: Options,
    *,
    judged: Callable[[], bool],
    explained: bool = True,
) -> VariantResult:
    """The best plans of a program, in the form that is asked for, or the best one.

    What layers save is chosen for the program without its checkpoints; the program as written is one more candidate. If
    the former has no plan, what is saved is chosen for the latter. Raises: PinError, also where a pattern names no value
    that a backward pass reads; InfeasibleError, which says why if `explained`.
    """
    deadline, bounds = Deadline.after(options.time_limit_s), FormBounds()
    named = named_on_hosts(variants, options)
    # Where hosts may let a plan fit, a compiler has the last word only after them.
    hosts_first = may_use_hosts(named, options)
    first = (lambda: False) if hosts_first else judged
    best: VariantResult | InfeasibleError
    try:
        best = _best_form(
            named, meshes, options, deadline, bounds, judged=first, explained=explained and not hosts_first
        )
    except InfeasibleError as error:
        best = error
    for hosted in with_more_on_hosts(named, best, options):
        with suppress(InfeasibleError, ArgumentError, PinError):
            if isinstance(best, VariantResult):
                bounds = replace(bounds, below=value_of(best) * (1 - GAIN), parts=best.parts)
            found = _best_form(hosted, meshes, options, deadline, bounds, judged=lambda: False, explained=False)
            best = better_on_hosts(best, found)
            break
    if isinstance(best, InfeasibleError):
        if not hosts_first or not judged():
            raise with_reason(best) if explained else best
        best = _best_form(named, meshes, options, deadline, bounds, judged=judged, explained=explained)
    least = least_of_any_form(named, meshes, options, best)
    return replace(best, notes=(*best.notes, *hosts_notes(best)), any_form=least)


def _best_form(
    variants: ProblemVariants,
    meshes: Sequence[Shape],
    options: Options,
    deadline: Deadline,
    bounds: FormBounds,
    *,
    judged: Callable[[], bool],
    explained: bool,
) -> VariantResult:
    """The same of the program with its arguments where they are. Raises: the same, also where no plan is below `bounds`."""
    left_open = options.remat == "auto" or isinstance(options.remat, Mapping)
    lifted = variants.without_checkpoints() if left_open and variants.base_form.saved == () else None
    with suppress(PinError, InfeasibleError):  # of values that only the program as written has
        if lifted is not None:
            best = _best_form(lifted, meshes, options, deadline, bounds, judged=lambda: False, explained=False)
            if not best.problem.program.form.saved:
                best = replace(best, notes=(*best.notes, ALL_SAVED))
            search = VariantSearch(
                variants=variants, meshes=meshes, options=options, pinned={}, deadline=deadline, bounds=bounds
            )
            form = variants.base_form
            # Where parts of the batch are needed or better, the whole batch as written is no match for them.
            if _pins(options) or best.parts > form.microbatches or search.is_slower(variants.forms.program(form), best):
                return best
            return search.search(variants.base, below=value_of(best) * (1 + FORM_GAP)) or best
    written, how = variants.base, options.remat
    given = isinstance(options.offload, Mapping)
    found = () if how == "as written" and not given else variants.forms.crossings(written.program.form)
    pinned = pinned_values(_pins(options), found, written.program)
    parts = written.program.form.microbatches
    front = Front(found, written.request.topology.chip, pinned, parts=parts) if found else None
    search = VariantSearch(
        variants=variants, meshes=meshes, options=options, pinned=pinned, deadline=deadline, bounds=bounds
    )
    counts = Counts(search, front)
    if front is None:
        return counts.roomier(_as_requested(written, meshes, options, judged=judged, explained=explained))
    if how == "auto" or isinstance(how, Mapping):
        compared = _Comparison(search=search, front=front)
        if written.request.objective == "memory":
            best = compared.whole()
        else:
            search.deadline = deadline.within(BEFORE * deadline.left()) if may_help(search) else deadline
            best = counts.of_a_leap()
            if best is None:
                best = counts.gaining_most_on(compared.whole() if counts.may_be_below(parts, math.inf) else None)
            search.deadline = deadline
            best = with_host_memory(search, best, counts)
        if best is not None and best.result.tie_broken is not None:
            return replace(best, result=best.result.tie_broken())
        if best is not None:
            return best
        if math.isfinite(bounds.below):
            raise InfeasibleError(f"no plan with arguments on hosts is below {bounds.below:.6g}")
        if front.keeps_pins:
            return counts.roomier(
                _as_requested(written, meshes, options, judged=judged, explained=explained, room=False)
            )
    choice = {"none": front.everything, "as written": front.written}.get(str(how), front.nothing)
    if choice.host_bytes > search.host_room:
        raise InfeasibleError(
            f"what Options(offload=...) names takes {quantity(choice.host_bytes / search.devices, 'B')} of hosts for each "
            f"device, and the limit is {quantity(search.host_room / search.devices, 'B')}; name fewer values, or raise "
            "Options(host_memory_limit=...)"
        )
    problem = variants.of(choice.of(written.program.form))
    notes = (search.remat_note(front, choice),)
    return _as_requested(problem, meshes, options, judged=judged, explained=explained, notes=notes)


def _pins(options: Options) -> Mapping[str, Pinned]:
    """What the options say of values, by patterns over their names."""
    pins: dict[str, Pinned] = {}
    for given in (options.remat, options.offload):
        pins.update(given if isinstance(given, Mapping) else {})
    return pins


def pinned_values(pins: Mapping[str, Pinned], found: Sequence[Crossing], program: Program) -> dict[str, Pinned]:
    """By the names of values what a user wants of them; patterns may name arguments on hosts instead.

    Raises: PinError for a pattern that matches none of them, ArgumentError where it names arguments that cannot wait there.
    """
    names = list(dict.fromkeys(value.name for crossing in found for value in crossing.values))
    pinned: dict[str, Pinned] = {}
    for pattern, how in pins.items():
        matching = list(filter(naming(pattern), names))
        if not matching and how == "host" and names_on_hosts(program, pattern):
            continue
        if not matching:
            close = close_names(pattern, names) if names else "nothing: the program has no backward pass that reads any"
            raise PinError(
                f"no value that the backward pass reads is named {pattern!r}, as Options(remat=... or offload=...) has "
                f"it; names look like {close}"
            )
        pinned |= dict.fromkeys(matching, how)
    return pinned


def _as_requested(
    problem: PlanningProblem,
    meshes: Sequence[Shape],
    options: Options,
    *,
    judged: Callable[[], bool],
    explained: bool,
    notes: tuple[str, ...] = (),
    room: bool = True,
) -> VariantResult:
    """The best plans of a program in one form; without `room` it is known that none leaves any in the memory.

    Where none is predicted to fit and a compiler has the last word (`judged`), plans that are predicted to need little
    more. Raises: PinError, InfeasibleError, which says why if `explained`.
    """
    none_fits: InfeasibleError | None = None
    try:
        found, limit = search_with_room(problem, meshes, options, explained=explained, room=room)
    except InfeasibleError as error:
        if not judged():
            raise
        none_fits = error
        found, limit = _search_beyond(problem, meshes, options, error)
    return VariantResult(problem=problem, result=found, limit_bytes=limit, none_fits=none_fits, notes=notes)


def search_with_room(
    problem: PlanningProblem, meshes: Sequence[Shape], options: Options, *, explained: bool = True, room: bool = True
) -> tuple[SearchResult, float]:
    """The best plans for these meshes and the bytes that they keep to: less than what was asked for, if any fit that.

    Without `room` it is known that none does. Raises: PinError, InfeasibleError, which says why if `explained`.
    """
    most, limit = problem.request.memory_limit, problem.roomy_limit
    if limit < most and room:
        with suppress(InfeasibleError):  # perhaps with all of it
            return search(meshes, problem, SearchOptions(limit_bytes=limit, options=options, explained=False)), limit
    return search(meshes, problem, SearchOptions(limit_bytes=most, options=options, explained=explained)), most


def _search_beyond(
    problem: PlanningProblem, meshes: Sequence[Shape], options: Options, none_fits: InfeasibleError
) -> tuple[SearchResult, float]:
    """The best plans within the least limit that any keep to, and that limit.

    Raises: none_fits, where the least memory that would do is not known or is far above the limit.
    """
    least = none_fits.least_bytes
    for factor in BEYOND:
        limit = factor * problem.request.memory_limit
        if least is not None and least <= limit:
            how = SearchOptions(limit_bytes=limit, options=options, explained=False)
            with suppress(InfeasibleError):
                return search(meshes, problem, how), limit
    raise none_fits


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
            start = variants.starting(variants.in_microbatches(problem, count))
            best = best_variant(start, meshes, options, judged=lambda: False, explained=False)
            full = problem.request.objective != "memory" and best.problem.takes_all(best.limit_bytes)
            found.append((full, best.result.candidates[0].value, count))
    return min(found)[2] if found else None


@dataclass(kw_only=True)
class _Comparison:
    """Plans of the whole batch at once, in several forms."""

    search: VariantSearch
    front: Front

    def whole(self) -> VariantResult | None:
        """The best plans of the whole batch at once."""
        front, search, written = self.front, self.search, self.search.variants.base
        if not front.keeps_pins:
            return self._of_forms(front.offered(), None, self._with_all_saved())
        if written.request.objective == "memory":
            return self._of_forms(tuple(front.offered())[::-1], search.search(written, below=math.inf))
        if search.hopes_for(front):
            best = self._of_forms(front.offered(), None, self._with_all_saved())
            tried = front.saves_all and self._all_saved is not None
            if best is not None and (tried or search.is_slower(written.program, best)):
                return best
            return search.search(written, below=value_of(best) * (1.0 if front.saves_all else 1 + GAIN)) or best
        as_written = search.search(written, below=math.inf)
        if as_written is not None and not as_written.is_tight:
            return as_written
        less = (choice for choice in front.offered() if choice.bytes < ALIKE * front.written.bytes)
        return self._of_forms(less, as_written)

    @cached_property
    def _all_saved(self) -> Choice | None:
        """All saved, so that nothing is in the compiler's way, where that may gain and fit."""
        choice = self.front.worth_saving(self.search.written_seconds)
        return choice if choice is not None and self.search.may_fit(choice) else None

    def _with_all_saved(self) -> VariantResult | None:
        """The best plans with all saved, if they fit: of the form to begin with, where that saves all."""
        search, short = self.search, self.search.short
        if self._all_saved is None:
            return None
        begin = search.variants.base if self.front.saves_all else None
        found = self._of(self._all_saved, math.inf) if begin is None else search.search(begin, below=math.inf)
        # Of memory this takes more than any other: that it is short for this says nothing.
        search.short = short
        return found

    def _of(self, choice: Choice, below: float) -> VariantResult | None:
        """The best plans with a choice of what is saved of a value below this."""
        search, found = self.search, None
        with suppress(PinError):  # of a value that this form does not have
            form = choice.of(search.variants.base.program.form)
            found = search.search(search.variants.of(form), below=below)
        if found is None:
            return None
        return replace(found, notes=(search.remat_note(self.front, choice),), slower=search.slower(self.front, choice))

    def _of_forms(
        self, offered: Iterable[Choice], as_written: VariantResult | None, best: VariantResult | None = None
    ) -> VariantResult | None:
        """The best plans with one of these choices, or the `best` so far, those as written where no other gains enough."""
        search, taken = self.search, None
        for choice in offered:
            if not search.may_fit(choice):
                search.short = True
                continue
            found = self._of(choice, min(value_of(best), value_of(as_written) * (1 - GAIN)))
            if found is None and best is not None:
                break
            if found is not None:
                best, taken = found, choice
                if search.variants.request.objective != "memory" and not best.is_kept_back:
                    break
        if best is not None and taken is not None and search.short:
            best = self._filled(taken, best)
        return best or as_written

    def _filled(self, taken: Choice, best: VariantResult) -> VariantResult:
        """The best plans with more saved than in the best so far, where they leave room; else those."""
        more = self.search.filling(self.front, taken, best)
        return best if more is None else self._of(more, value_of(best)) or best
