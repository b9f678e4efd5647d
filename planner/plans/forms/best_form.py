"""The best form: which values of the forward pass are saved, chosen by planning the program in several forms.

`forms.recompute` offers choices from the fastest to the one that saves the least, priced without regard to placement. Each
is planned, the fastest first, and only for plans better than the best so far, until one is none: what saves less computes
more again, and what fits sooner is placed better. The program as written is kept unless another form gains enough.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice

from planner.errors import ArgumentError, InfeasibleError, PinError
from planner.explain.saved_values import naming
from planner.forms.batch import Refused
from planner.forms.recompute import ALIKE, Choice, Front, Pinned, program_seconds, words
from planner.one_mesh.mesh import Shape
from planner.one_mesh.pins import close_names
from planner.options import GAP, Options
from planner.plans.forms.memory_limits import roomy_limit, search_judged, takes_all
from planner.plans.forms.on_chips import gains_on_chips
from planner.plans.forms.sessions import Sessions
from planner.program.jaxpr.crossings import Crossing
from planner.program.jaxpr.recomputed import crossings, program_steps
from planner.search.best_on_mesh import WORTHWHILE
from planner.search.meshes import Found
from planner.session import Session
from planner.units import quantity

GAIN = 0.02
"""What another form must gain to be taken in the place of the program as written."""
HOPE = 0.01
"""Where the prices promise less than this part of the program's time, other forms are tried only if it does not fit."""
FORM_GAP = 5e-3
"""What may be left between the best plan under a memory limit and the bound, where no other gap is asked for: forms differ
by more."""
STRIDE = 2
"""How many numbers of microbatches further the next one is that is tried: four times as many, mostly."""
MISSES = 2
"""How many of these that fit and gain nothing end it."""
MOST_FOR_CHIPS = 16
"""Up to so many are tried where memory is not short: what weights cost in more, nothing on the chips makes up for."""
MOST_CHOICES = 2
"""How many choices of what is saved are tried with one number of microbatches."""
PARTS_GAP = 0.05
"""And what may be left for forms in microbatches: there are several, and what they gain where memory is short is more."""
TIGHT = 0.8
"""From this part of the limit on, what is saved may be what keeps plans from being faster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """The session of a program in the form that is best, the best plans of it, and what is to be told of the form.

    `limit_bytes` is what the plans keep to; `none_fits` says why none is predicted to fit, where a compiler judges.
    """

    session: Session
    found: Found
    limit_bytes: float
    none_fits: InfeasibleError | None = None
    notes: tuple[str, ...] = ()


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
    comparison = _Comparison(sessions=sessions, meshes=meshes, options=options, pinned=pinned)
    if front is None:
        return comparison.roomier(_as_asked(written, meshes, options, judged=judged, explained=explained))
    if how == "auto" or isinstance(how, Mapping):
        best = comparison.hastened(front)
        if best is not None:
            return best
        if front.keeps_pins:
            whole = _as_asked(written, meshes, options, judged=judged, explained=explained, room=False)
            return comparison.roomier(whole)
    choice = front.everything if how == "none" else front.nothing
    session = sessions.of(replace(written.program.form, saved=choice.saved))
    told = (_told(front, choice, meshes),)
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


@dataclass(kw_only=True)
class _Comparison:
    """Plans of a program in several forms, each of which is searched in the time that is left.

    `pinned` says by name what a user wants of values.
    """

    sessions: Sessions
    meshes: Sequence[Shape]
    options: Options
    pinned: Mapping[str, Pinned]
    start: float = field(default_factory=time.monotonic)
    short: bool = False
    """Whether memory was too short for a form that was tried."""
    over: bool = False
    """Whether what would be better is over the limit in the form that was searched last."""

    def hastened(self, front: Front) -> Searched | None:
        """The best plans in the best form; None where none fits in any. Of those of the least peak it is the best."""
        best = self.best(front)
        if best is None or best.found.faster is None:
            return best
        return replace(best, found=best.found.faster())

    def roomier(self, whole: Searched) -> Searched:
        """The plan of parts of the batch that leaves room, if any does, where the whole batch takes all of the memory."""
        full = whole.none_fits is None and takes_all(whole.session, whole.limit_bytes)
        if not full or whole.session.request.objective == "memory":
            return whole
        return self._in_least_microbatches() or whole

    def best(self, front: Front) -> Searched | None:
        """The same, but any plan of the least peak."""
        written = self.sessions.base
        if not front.keeps_pins:
            return self._in_microbatches(front, self._of_forms(front, front.offered(), None))
        if written.request.objective == "memory":
            return self._of_forms(front, tuple(front.offered())[::-1], self._search(written, below=math.inf))
        hoped = front.written.seconds - front.fastest.seconds >= HOPE * self._seconds()
        if hoped:
            best = self._of_forms(front, front.offered(), None)
            best = self._search(written, below=_value(best) * (1 + GAIN)) or best
            return self._in_microbatches(front, best)
        as_written = self._search(written, below=math.inf)
        if as_written is not None and not _is_tight(as_written):
            return self._in_microbatches(front, as_written)
        less = (choice for choice in front.offered() if choice.bytes < ALIKE * front.written.bytes)
        return self._in_microbatches(front, self._of_forms(front, less, as_written))

    def _of_forms(self, front: Front, offered: Iterable[Choice], as_written: Searched | None) -> Searched | None:
        """The best plans with one of these choices, those as written where no other gains enough."""
        best: Searched | None = None
        for choice in offered:
            if not self._may_fit(choice):
                self.short = True
                continue
            below = min(_value(best), _value(as_written) * (1 - GAIN))
            found = None
            with suppress(PinError):  # of a value that this form does not have
                found = self._search(
                    self.sessions.of(replace(self.sessions.base.program.form, saved=choice.saved)), below=below
                )
            if found is None and best is not None:
                break
            if found is not None:
                best = replace(found, notes=(_told(front, choice, self.meshes),))
                if self.sessions.request.objective != "memory" and not _is_kept_back(best):
                    break
        return best or as_written

    def _in_microbatches(self, front: Front, best: Searched | None) -> Searched | None:
        """The best plans in microbatches where memory is short, or the room on the chips; those given where they gain less.

        Where memory is short, what is tried first is as many as let the fastest choice fit.
        """
        if best is not None and not self.short and not _is_kept_back(best):
            return self._on_chips(best)
        counts = self._counts
        if not counts:
            return best
        fitting = (at for at, count in enumerate(counts) if self._may_fit(front.fastest, count))
        more = self._best_count(counts, next(fitting, len(counts) - 1), best, misses=MISSES)
        if more is not None and best is None:
            return _told_why(more, f"fits {quantity(roomy_limit(self.sessions.base), 'B')} per device")
        return more or best

    def _on_chips(self, best: Searched) -> Searched:
        """The best plans in microbatches of which enough more stays on the chips; those given where they gain less."""
        plan = best.found.candidates[0]
        if not gains_on_chips(best.session, plan, MOST_FOR_CHIPS):
            return best
        counts = [count for count in self._counts if count <= MOST_FOR_CHIPS]
        first = next((at for at, count in enumerate(counts) if gains_on_chips(best.session, plan, count)), None)
        return best if first is None else self._best_count(counts, first, best, misses=1) or best

    @property
    def _counts(self) -> list[int]:
        """The numbers of microbatches that may be chosen."""
        if not self._may_take_parts() or isinstance(self.sessions.batch, Refused):
            return []
        return part_counts(self.sessions.batch.extent)

    def _best_count(self, counts: Sequence[int], first: int, best: Searched | None, *, misses: int) -> Searched | None:
        """The plans in the number of microbatches that gains most on those given, if any gains enough.

        More parts leave room to save more of each, let more of it stay on the chips, and read the weights more often. So
        more than the first are tried in large steps, as long as that gains or so many `misses` are not met, and last the
        neighbours of the best.
        """
        more, found, missed = None, first, 0
        for at in range(first, len(counts), STRIDE):
            other = self._gaining(counts[at], more or best)
            if other is not None:
                more, found = other, at
            elif not self.over:
                missed += 1
            if self._late or missed == misses or (more is not None and other is None):
                break
        for at in (found - 1, found + 1):
            if at in range(len(counts)) and (more or misses > 1) and not self._late:
                more = self._gaining(counts[at], more or best) or more
        return None if more is None else self._proven(more)

    def _in_least_microbatches(self) -> Searched | None:
        """The better of the plans in the two least numbers of microbatches with which any fits and leaves room.

        What takes all of the memory in one pass does not fit by the compiler, as a rule.
        """
        best = None
        for count in self._counts:
            if self._late:
                break
            before, other = best, None
            with suppress(ArgumentError, PinError):  # of an op that is not known by parts
                other = self._of_microbatches(count, below=_value(before))
            best = other or before
            if before is not None:
                break
        if best is None:
            return None
        return self._proven(_told_why(best, "leaves room in the memory, without which it may not fit"))

    def _may_take_parts(self) -> bool:
        """Whether the number of microbatches is left to the planner, and the program is not in several."""
        return self.sessions.base.program.form.microbatches == 1 and self.options.microbatches == "auto"

    def _proven(self, rough: Searched) -> Searched:
        """Which form is best is told by rough plans: of that form the best plan, and proven.

        Meshes whose bounds are above the rough plan's value are not searched again.
        """
        if rough.found.bound >= _value(rough) * (1 - self._gap(rough=False)):
            return rough
        below = _value(rough) * (1 + 2 * WORTHWHILE)
        open_meshes = [
            mesh
            for mesh, tried in zip(self.meshes, rough.found.tried, strict=True)
            if tried.bound is not None and tried.bound < below
        ]
        proven = replace(self, meshes=open_meshes)._search(rough.session, below=below, rough=False)
        if proven is None:
            return rough
        again = {tuple(tried.mesh.items()): tried for tried in proven.found.tried}
        found = replace(
            proven.found,
            tried=tuple(again.get(tuple(tried.mesh.items()), tried) for tried in rough.found.tried),
            seconds=rough.found.seconds + proven.found.seconds,
        )
        return replace(proven, found=found, notes=rough.notes)

    @property
    def _late(self) -> bool:
        return time.monotonic() - self.start > self.options.time_limit_s

    def _gaining(self, count: int, best: Searched | None) -> Searched | None:
        """The best plans in so many microbatches, if they are better than those in more, or gain enough on others."""
        gain = GAIN if best is not None and best.session.program.form.microbatches < count else 0.0
        with suppress(ArgumentError, PinError):  # of an op that is not known by parts
            return self._of_microbatches(count, below=_value(best) * (1 - gain))
        return None

    def _of_microbatches(self, count: int, *, below: float) -> Searched | None:
        """The best plans below a value in so many microbatches, with what saves the most of what fits, or as written.

        Where none is and memory is not why, none that computes more again is either.
        """
        form = replace(self.sessions.base.program.form, microbatches=count)
        program = self.sessions.program_in(form)
        told, crossed = self.sessions.words(count), () if self.options.recompute == "as written" else crossings(program)
        chip = self.sessions.request.topology.chip
        front = Front(crossed, chip, self.pinned, parts=count) if crossed else None
        for choice in () if front is None else islice(filter(self._may_fit, front.offered()), MOST_CHOICES):
            found = self._search(self.sessions.of(replace(form, saved=choice.saved)), below=below)
            if front is not None and found is not None:
                return replace(found, notes=(told, _told(front, choice, self.meshes)))
            if not self.over:
                return None
        found = self._search(self.sessions.of(form), below=below) if front is None or front.keeps_pins else None
        return None if found is None else replace(found, notes=(told,))

    def _search(self, session: Session, *, below: float, rough: bool = True) -> Searched | None:
        """The best plans of a program in one form, None where there is none below a value within the limit.

        Under a limit the search ends at a wider gap than that of a single form, of one in microbatches at a `rough` one;
        the certificate says at which.
        """
        limit = roomy_limit(session)
        left = max(self.options.time_limit_s - (time.monotonic() - self.start), 1.0)
        in_parts = rough and session.program.form.microbatches > self.sessions.base.program.form.microbatches
        options = replace(self.options, time_limit_s=left, gap=self._gap(rough=in_parts))
        try:
            found = session.search(
                self.meshes,
                limit_bytes=limit,
                options=options,
                explained=False,
                below=below,
                worth=GAIN if in_parts else WORTHWHILE,
                hastened=False,
                since=self.start,
            )
        except InfeasibleError:
            self.short = self.over = True
            return None
        self.over = found.short
        return Searched(session=session, found=found, limit_bytes=limit) if found.candidates else None

    def _gap(self, *, rough: bool) -> float:
        """What may be left between the best plan of a form and the bound."""
        if self.options.gap != GAP:
            return self.options.gap
        return PARTS_GAP if rough else FORM_GAP

    def _may_fit(self, choice: Choice, parts: int = 1) -> bool:
        """Whether the arguments and what is saved, of one of these parts of the batch, fit, were all of it split evenly."""
        written = self.sessions.base
        devices = max(_size(mesh) for mesh in self.meshes)
        arguments = sum(leaf.aval.bytes for leaf in written.program.arguments)
        return (arguments + choice.bytes / parts) / devices <= roomy_limit(written)

    def _seconds(self) -> float:
        written = self.sessions.base
        return program_seconds(program_steps(written.program), written.request.topology.chip)


def part_counts(extent: int) -> list[int]:
    """In how many parts a batch is taken where that is chosen: for each power of two the next number that divides it."""
    divisors = [count for count in range(2, extent + 1) if extent % count == 0]
    powers = [1 << i for i in range(1, extent.bit_length())]
    return sorted({divisors[bisect_left(divisors, power)] for power in powers})


def _told_why(best: Searched, missing: str) -> Searched:
    """Plans in microbatches that say what no plan of the whole batch does."""
    first, *others = best.notes
    return replace(best, notes=(f"{first}: no plan of the whole batch at once {missing}", *others))


def _is_tight(searched: Searched) -> bool:
    """Whether what is saved may be what keeps plans from being faster."""
    return searched.found.candidates[0].peak_bytes >= TIGHT * searched.limit_bytes


def _is_kept_back(searched: Searched) -> bool:
    """Whether it is: where without a limit hardly any plan would be better, it is not."""
    return _is_tight(searched) and _value(searched) * (1 - GAIN) > searched.found.unlimited


def _value(searched: Searched | None) -> float:
    return math.inf if searched is None else searched.found.candidates[0].value


def _size(mesh: Shape) -> int:
    return math.prod(mesh.values())


def _told(front: Front, choice: Choice, meshes: Sequence[Shape]) -> str:
    """What a plan says of the values that are computed again."""
    return words(front.crossings, choice, front.written, max(map(_size, meshes)))
