"""The best form: which values of the forward pass are saved, chosen by planning the program in several forms.

`forms.recompute` offers choices from the fastest to the one that saves the least, priced without regard to placement. Each
is planned, the fastest first, and only for plans better than the best so far, until one is none: what saves less computes
more again, and what fits sooner is placed better. The program as written is kept unless another form gains enough. In how
many microbatches the batch is taken is chosen with that (`best_count`): first, where much stays on the chips in some number
of them; else where memory is short.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from pbqp.deadline import Deadline
from planner.errors import PinError
from planner.explain.saved_values import naming
from planner.options import Options
from planner.pricing.candidates.pins import close_names
from planner.pricing.mesh import Shape
from planner.problem import Session
from planner.program.jaxpr.remat.residuals import Crossing
from planner.program.jaxpr.remat.rewrite_saved import crossings
from planner.transforms.remat_choice import ALIKE, Choice, Front, Pinned
from planner.variants.memory_limits import search_judged
from planner.variants.microbatch_search import Counts
from planner.variants.problem_variants import Sessions
from planner.variants.variant_result import GAIN, FormSearch, Searched, value_of


def searched(
    sessions: Sessions,
    meshes: Sequence[Shape],
    options: Options,
    *,
    judged: Callable[[], bool],
    explained: bool = True,
) -> Searched:
    """The best plans of a program, in the form that is asked for, or the best one.

    Raises: PinError, also where a pattern names no value that a backward pass reads; InfeasibleError, which says why if
    `explained`.
    """
    written, how = sessions.base, options.recompute
    found = () if how == "as written" else crossings(written.program)
    pinned = pinned_values(how, found) if isinstance(how, Mapping) else {}
    parts = written.program.form.microbatches
    front = Front(found, written.request.topology.chip, pinned, parts=parts) if found else None
    deadline = Deadline.after(options.time_limit_s)
    search = FormSearch(sessions=sessions, meshes=meshes, options=options, pinned=pinned, deadline=deadline)
    counts = Counts(search, front)
    if front is None:
        return counts.roomier(_as_asked(written, meshes, options, judged=judged, explained=explained))
    if how == "auto" or isinstance(how, Mapping):
        best = _Comparison(search=search, front=front, counts=counts).hastened()
        if best is not None:
            return best
        if front.keeps_pins:
            return counts.roomier(_as_asked(written, meshes, options, judged=judged, explained=explained, room=False))
    choice = front.everything if how == "none" else front.nothing
    session = sessions.of(replace(written.program.form, saved=choice.saved))
    told = (search.told(front, choice),)
    return _as_asked(session, meshes, options, judged=judged, explained=explained, notes=told)


def pinned_values(pins: Mapping[str, Pinned], found: Sequence[Crossing]) -> dict[str, Pinned]:
    """By the names of values what a user wants of them. Raises: PinError for a pattern that matches none of them."""
    names = list(dict.fromkeys(value.name for crossing in found for value in crossing.values))
    pinned: dict[str, Pinned] = {}
    for pattern, how in pins.items():
        matching = list(filter(naming(pattern), names))
        if not matching:
            close = close_names(pattern, names) if names else "nothing: the program has no backward pass that reads any"
            raise PinError(
                f"no value that the backward pass reads is named {pattern!r}, as Options(recompute=...) has it; names look "
                f"like {close}"
            )
        pinned |= dict.fromkeys(matching, how)
    return pinned


def _as_asked(
    session: Session,
    meshes: Sequence[Shape],
    options: Options,
    *,
    judged: Callable[[], bool],
    explained: bool,
    notes: tuple[str, ...] = (),
    room: bool = True,
) -> Searched:
    """The best plans of a program in one form; without `room` it is known that none leaves any in the memory."""
    found, limit, none_fits = search_judged(session, meshes, options, judged=judged, explained=explained, room=room)
    return Searched(session=session, found=found, limit_bytes=limit, none_fits=none_fits, notes=notes)


@dataclass(frozen=True, kw_only=True)
class _Comparison:
    """Plans of a program in several forms."""

    search: FormSearch
    front: Front
    counts: Counts

    def hastened(self) -> Searched | None:
        """The best plans in the best form; None where none fits in any. Of those of the least peak it is the best."""
        best = self.best()
        if best is None or best.found.faster is None:
            return best
        return replace(best, found=best.found.faster())

    def best(self) -> Searched | None:
        """The same, but any plan of the least peak."""
        if self.search.sessions.request.objective == "memory":
            return self._whole()
        return self.counts.of_a_leap() or self.counts.gaining_most_on(self._whole())

    def _whole(self) -> Searched | None:
        """The best plans of the whole batch at once."""
        front, search, written = self.front, self.search, self.search.sessions.base
        if not front.keeps_pins:
            return self._of_forms(front.offered(), None, self._unbarred())
        if written.request.objective == "memory":
            return self._of_forms(tuple(front.offered())[::-1], search.search(written, below=math.inf))
        if search.hopes_for(front):
            best = self._of_forms(front.offered(), None, self._unbarred())
            if best is not None and self._written_is_slower(best):
                return best
            return search.search(written, below=value_of(best) * (1 + GAIN)) or best
        as_written = search.search(written, below=math.inf)
        if as_written is not None and not as_written.is_tight:
            return as_written
        less = (choice for choice in front.offered() if choice.bytes < ALIKE * front.written.bytes)
        return self._of_forms(less, as_written)

    def _unbarred(self) -> Searched | None:
        """The best plans with all saved of layers written out, so that nothing is in the compiler's way, if they fit."""
        choice, short = self.front.unbarred, self.search.short
        if choice is None or not self.search.may_fit(choice):
            return None
        found = self._of(choice, math.inf)
        # Of memory this takes more than any other: that it is short for this says nothing.
        self.search.short = short
        return found

    def _of(self, choice: Choice, below: float) -> Searched | None:
        """The best plans with a choice of what is saved of a value below this."""
        search, found = self.search, None
        with suppress(PinError):  # of a value that this form does not have
            form = replace(search.sessions.base.program.form, saved=choice.saved)
            found = search.search(search.sessions.of(form), below=below)
        if found is None:
            return None
        return replace(found, notes=(search.told(self.front, choice),), slower=search.slower(self.front, choice))

    def _of_forms(
        self, offered: Iterable[Choice], as_written: Searched | None, best: Searched | None = None
    ) -> Searched | None:
        """The best plans with one of these choices, or the `best` so far, those as written where no other gains enough."""
        search = self.search
        for choice in offered:
            if not search.may_fit(choice):
                search.short = True
                continue
            found = self._of(choice, min(value_of(best), value_of(as_written) * (1 - GAIN)))
            if found is None and best is not None:
                break
            if found is not None:
                best = found
                if search.sessions.request.objective != "memory" and not best.is_kept_back:
                    break
        return best or as_written

    def _written_is_slower(self, best: Searched) -> bool:
        """Whether the operations that only the program as written repeats keep it from being as good as these plans."""
        front, request = self.front, self.search.sessions.request
        again = front.written.flops - front.settled(best.session.program.form.saved).flops
        chip = request.topology.chip
        more = again / self.search.devices / max([chip.vector_flops_per_s, *chip.peak_flops_per_s.values()])
        return request.objective == "time" and best.found.unlimited + more > value_of(best) * (1 + GAIN)
