"""The best number of microbatches, chosen together with what each of them saves for its backward pass.

More parts leave room to save more of each, let more of it stay on the chips, and read the weights more often. So they are
tried where much stays on the chips in some number of them, where memory is short, and where a plan of the whole batch takes
all of the memory. Which number may gain is told first by what plans take at the least in it (`lower_bounds.Floors`) and by
what memory costs the best plan so far: a form that is made ready and searched takes as long as the program itself.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice

from planner.errors import ArgumentError, PinError
from planner.options import UNITS
from planner.search.mesh_search import SearchResult
from planner.search.problem import PlanningProblem
from planner.transforms.batch import Refused, part_counts
from planner.transforms.remat_choice import Choice, Front
from planner.units import quantity
from planner.variants.lower_bounds import Floors
from planner.variants.variant_result import FORM_GAP, GAIN, VariantResult, VariantSearch, value_of

STRIDE = 2
"""How many numbers of microbatches further the next one is that is tried: four times as many, mostly."""
MISSES = 2
"""How many of these that fit and gain nothing end it."""
MOST_FOR_CHIPS = 64
"""Up to so many are tried where memory is not short: every one more reads the weights once more."""
LEAP = 0.35
"""The part of what the whole batch takes at the least that parts of it spare at the most, where these come first."""
WORTH_A_LOOK = 0.1
"""The part of a plan's value to be gained on the chips for which microbatches are searched: much of it is lost again."""
PER_PART = 0.5
"""The part of what plans in microbatches take beyond their floor that grows with their number, at the least."""
MOST_CHOICES = 2
"""How many choices of what is saved are tried with one number of microbatches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offer:
    """A program in microbatches with a choice of what is saved, of a front; `slower` than its fastest choice by so many
    seconds."""

    problem: PlanningProblem
    notes: tuple[str, ...]
    slower: float
    front: Front | None = None
    choice: Choice | None = None

    def of(self, found: VariantResult) -> VariantResult:
        """Plans of its problem, with what is told of them."""
        return replace(found, notes=self.notes, slower=self.slower)


class Counts:
    """The numbers of microbatches of a program, as far as they are left to the planner, and the best plans in them.

    `front` are the choices of what the whole batch at once saves, None where there is no choice.
    """

    def __init__(self, search: VariantSearch, front: Front | None) -> None:
        self._search, self._front = search, front
        self._missed: list[tuple[int, float]] = []
        self._gains: dict[tuple[int, int], tuple[SearchResult, float]] = {}

    @cached_property
    def _floors(self) -> Floors:
        """What plans take at the least, read off the form with the fastest choice, where that gains enough."""
        search, front = self._search, self._front
        axes, devices, variants = search.meshes[0], search.devices, search.variants
        if front is not None and search.hopes_for(front):
            with suppress(PinError):  # of a value that this form does not have
                return Floors(variants.of(front.fastest.of(variants.base_form)), axes, devices, spared=0.0)
        return Floors(variants.base, axes, devices, spared=0.0)

    @property
    def _left_open(self) -> bool:
        """Whether the number of microbatches is left to the planner."""
        search = self._search
        return search.variants.base.program.form.microbatches == 1 and search.options.microbatches == "auto"

    @cached_property
    def possible(self) -> list[int]:
        """The numbers of microbatches that may be chosen."""
        batch = self._search.variants.batch if self._left_open else None
        counts = [] if batch is None or isinstance(batch, Refused) else part_counts(batch.extent)
        return [count for count in counts if count <= self._search.bounds.parts]

    def may_be_below(self, count: int, value: float) -> bool:
        """Whether plans in so many microbatches may be below a value, and below what any plan must be below of."""
        value, given = min(value, self._search.bounds.below), self._search.variants.base.program.form.microbatches
        return math.isinf(value) or self._floors.of(count // given) < value

    # ------------------------------------------------------------ which numbers are tried

    def of_a_leap(self) -> VariantResult | None:
        """The best plans in as many microbatches as let much more stay on the chips, better than any of the whole batch.

        None where none is.
        """
        if not self._left_open or not self._search.variants.request.topology.chip.on_chip_bytes:
            return None
        whole = self._floors.of(1)
        if self._floors.of(MOST_FOR_CHIPS) > (1 - LEAP) * whole or not self.possible:
            return None
        first = self._floors.least_parts(self.possible, self._fitting, self._last)
        if self._floors.of(self.possible[first]) > (1 - LEAP) * whole:
            return None
        found = self._best_count(first, None, misses=1, below=whole)
        if found is None:
            return None
        return _with_reason(found, f"takes less than {quantity(whole, UNITS[found.problem.request.objective])}")

    def gaining_most_on(self, whole: VariantResult | None) -> VariantResult | None:
        """The best plans in microbatches where memory or the room on chips is short; those given where they gain less."""
        if whole is not None and not self._search.short and not whole.is_kept_back:
            return self._on_chips(whole)
        if not self.possible:
            return whole
        first = self._floors.least_parts(self.possible, self._fitting, self._last)
        more = self._best_count(first, whole, misses=MISSES)
        if more is not None and whole is None:
            return _with_reason(more, f"fits {quantity(self._search.variants.base.roomy_limit, 'B')} per device")
        return more or whole

    def roomier(self, whole: VariantResult) -> VariantResult:
        """The plan of parts of the batch that leaves room, if any does, where the whole batch takes all of the memory."""
        full = whole.none_fits is None and whole.problem.takes_all(whole.limit_bytes)
        if not full or whole.problem.request.objective == "memory":
            return whole
        return self._in_least_microbatches() or whole

    @property
    def _fitting(self) -> int:
        """The position of the least number in which the fastest choice fits, were all of it split evenly."""
        front = self._front
        fitting = (at for at, count in enumerate(self.possible) if front and self._search.may_fit(front.fastest, count))
        return next(fitting, len(self.possible) - 1)

    @property
    def _last(self) -> int:
        """The position of the largest number that is tried for what stays on the chips."""
        few = sum(count <= MOST_FOR_CHIPS for count in self.possible) - 1
        return min(max(few, self._fitting + STRIDE), len(self.possible) - 1)

    def _on_chips(self, best: VariantResult) -> VariantResult:
        """The best plans in microbatches of which enough more stays on the chips; those given where they gain less."""
        enough = WORTH_A_LOOK * value_of(best)
        if self._gain_on_chips(best, MOST_FOR_CHIPS) < enough or not self.possible:
            return best
        few = range(sum(count <= MOST_FOR_CHIPS for count in self.possible))
        first = bisect_left(few, True, key=lambda at: self._gain_on_chips(best, self.possible[at]) >= enough)
        return best if first == len(few) else self._best_count(first, best, misses=1) or best

    def _gain_on_chips(self, best: VariantResult, count: int) -> float:
        """What is gained on the best plan in so many microbatches, as more stays on the chips.

        By another choice of what is saved more may be: what is saved stays on no chip.
        """
        form = best.problem.program.form
        others = (one for one in self._search.found if one.parts == best.parts and one.problem.program.form != form)
        return max(value_of(best) - value_of(one) + self._gain_of(one, count // best.parts) for one in (best, *others))

    def _gain_of(self, one: VariantResult, times: int) -> float:
        """See `VariantResult.gain_on_chips`: it states a problem, and is asked of one number again and again."""
        key = id(one.result), times
        if key not in self._gains:
            self._gains[key] = one.result, one.gain_on_chips(times)
        return self._gains[key][1]

    # ------------------------------------------------------------ the best of these numbers

    def _best_count(
        self, first: int, best: VariantResult | None, *, misses: int, below: float = math.inf
    ) -> VariantResult | None:
        """The plans in the number of microbatches that gains most on those given, if any gains enough and is `below`.

        More than the first are tried as long as that gains or so many `misses` are not met, in large steps where more could
        be saved in more, then fewer until one is worse than what was found or memory is short, and last the next number.
        """
        counts, more, found, missed, at, tried = self.possible, None, first, 0, first, set[int]()
        while at < len(counts):
            tried.add(at)
            other = self._of_microbatches(counts[at], below=self._cutoff(counts[at], more or best, below))
            if other is not None:
                more, found = other, at
            elif not self._search.over:
                missed += 1
            if self._search.late or missed == misses or (more is not None and other is None):
                break
            at += STRIDE if more is None or more.slower > 0 else 1
        if more is None and misses == 1:
            return None
        for at in range(found - 1, -1, -1):
            if at in tried or self._search.late:
                break
            other = self._of_microbatches(counts[at], below=self._cutoff(counts[at], more or best, below))
            ended = self._search.over or (more is not None and other is None)
            more = other or more
            if ended:
                break
        following = found + 1
        if following < len(counts) and following not in tried and not self._search.late:
            cutoff = self._cutoff(counts[following], more or best, below)
            more = self._of_microbatches(counts[following], below=cutoff) or more
        return more

    def _in_least_microbatches(self) -> VariantResult | None:
        """The better of the plans in the two least numbers of microbatches with which any fits and leaves room.

        What takes all of the memory in one pass does not fit by the compiler, as a rule.
        """
        best = None
        for count in self.possible:
            if self._search.late:
                break
            before = best
            best = self._of_microbatches(count, below=value_of(before)) or before
            if before is not None:
                break
        if best is None:
            return None
        return _with_reason(best, "leaves room in the memory, without which it may not fit")

    def _cutoff(self, count: int, best: VariantResult | None, below: float) -> float:
        """What plans in so many microbatches must be below: by enough where others have fewer; 0 where none may be."""
        gain = GAIN if best is not None and best.parts < count else 0.0
        below = min(below, value_of(best) * (1 - gain))
        may_gain = self.may_be_below(count, below) if best is None else self._may_gain(count, best, below)
        return below if may_gain else 0.0

    def _may_gain(self, count: int, best: VariantResult, below: float) -> bool:
        """Whether plans in so many microbatches may be below a value.

        More parts than those of the best plan gain what the memory costs it, what saving more would spare, and what more
        stays on the chips, at the most. Of what plans in another number take beyond its floor a part grows with the number,
        as they read the weights for every part; the rest those in more parts take as well.
        """
        floor = self._floors.of(count)
        beyond = [
            (bound - self._floors.of(parts)) * (PER_PART * count / parts + (1 - PER_PART) * (count >= parts))
            for parts, bound in self._missed
        ]
        if floor + max([0.0, *beyond]) >= below:
            return False
        if count < best.parts or math.isinf(below):
            return True
        floor = best.result.unlimited - best.slower
        return floor < below or floor - self._gain_on_chips(best, count) < below

    def _of_microbatches(self, count: int, *, below: float) -> VariantResult | None:
        """The best plans below a value in so many microbatches; None where there are none, or the program has no such form.

        Where none is and memory is not why, none that computes more again is either.
        """
        search = self._search
        if below <= 0:
            search.over = False
            return None
        with suppress(ArgumentError, PinError):  # of an op that is not known by parts
            for offer in self._offered_in(count):
                found = search.search(offer.problem, below=below, worth=FORM_GAP)
                if found is None and not search.over:
                    break
                if found is None:
                    continue
                found, front, choice = offer.of(found), offer.front, offer.choice
                more = None if front is None or choice is None else search.filling(front, choice, found)
                if front is None or more is None:
                    return found
                fuller = self._offer(count, front, more)
                filled = search.search(fuller.problem, below=value_of(found), worth=FORM_GAP)
                search.over = False
                return found if filled is None else fuller.of(filled)
            if not search.over:
                self._missed.append((count, below))
        return None

    def _offered_in(self, count: int) -> Iterator[_Offer]:
        """The problems in so many microbatches, first with what saves the most of what fits, last the least, or as written.

        Raises: ArgumentError, PinError.
        """
        search, variants = self._search, self._search.variants
        form = replace(variants.base.program.form, microbatches=count)
        crossed = () if search.options.remat == "as written" else variants.forms.crossings(form)
        if not crossed:
            yield _Offer(problem=variants.of(form), notes=(variants.describe(count),), slower=0.0)
            return
        front = Front(crossed, variants.request.topology.chip, search.pinned, parts=count)
        offered = list(islice(filter(search.may_fit, front.offered()), MOST_CHOICES))
        for choice in offered:
            yield self._offer(count, front, choice)
        if front.saves_all and front.nothing not in offered:
            yield self._offer(count, front, front.nothing)
        elif front.keeps_pins and not front.saves_all:
            as_written = self._offer(count, front, front.written)
            yield replace(as_written, problem=variants.of(form), notes=as_written.notes[:1])

    def _offer(self, count: int, front: Front, choice: Choice) -> _Offer:
        search, variants = self._search, self._search.variants
        form = choice.of(replace(variants.base.program.form, microbatches=count))
        notes = variants.describe(count), search.remat_note(front, choice)
        return _Offer(
            problem=variants.of(form), notes=notes, slower=search.slower(front, choice), front=front, choice=choice
        )


def _with_reason(best: VariantResult, missing: str) -> VariantResult:
    """Plans in microbatches that say what no plan of the whole batch does."""
    first, *others = best.notes
    return replace(best, notes=(f"{first}: no plan of the whole batch at once {missing}", *others))
