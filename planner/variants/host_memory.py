"""The best plans whose saved values wait in the memory of hosts, where memory is short.

As much of what a loop saves goes there as travels beside its computing (`remat_choice.Front.offloading`). That leaves room
to save more of each part of the batch, and to take it in fewer parts: both are tried, from the whole batch at once on.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace

from planner.errors import ArgumentError, PinError
from planner.transforms.remat_choice import can_wait
from planner.variants.microbatch_search import Counts
from planner.variants.variant_result import GAIN, VariantResult, VariantSearch, value_of

ABOUT, HALF, LITTLE = (2.0, 1.25), 0.5, 0.1
"""Parts of the room in the memory of devices: of what is told by the best plan, which may hold more than others must, of
all where there is none, and little."""
BEFORE = 0.6
"""The part of the time left that may pass before values on hosts are tried."""
MISSES = 2
"""How many numbers of microbatches that gain nothing end it."""


def with_host_memory(search: VariantSearch, best: VariantResult | None, counts: Counts) -> VariantResult | None:
    """The best plans with values on hosts, or those given where none gains enough."""
    if not (best is None or search.short or best.is_kept_back) or not may_help(search):
        return best
    most = math.inf if best is None else best.parts
    gained, missed = False, 0
    for count in (search.variants.base.program.form.microbatches, *counts.possible):
        if count > most or missed == MISSES or search.late:
            break
        search.over, found = False, None
        if counts.may_be_below(count, value_of(best) * (1 - GAIN)):
            found = _in_parts(search, count, best)
        if found is None and gained:
            break
        missed += found is None and not search.over
        best, gained = found or best, gained or found is not None
    return best


def may_help(search: VariantSearch) -> bool:
    """Whether values may wait on hosts without being named: in plans of least time for TPUs."""
    request = search.variants.request
    left_open = search.options.offload == "auto" and request.objective == "time"
    if not left_open or request.topology.chip.platform != "tpu" or search.room <= 0:
        return False
    whole = search.variants.forms.crossings(search.variants.base_form)
    return any(can_wait(crossing, value) for crossing in whole for value in crossing.values)


def _in_parts(search: VariantSearch, count: int, best: VariantResult | None) -> VariantResult | None:
    """The best plans in so many microbatches that gain enough on the best so far; None where none do."""
    with suppress(ArgumentError, PinError):  # of an op that is not known by parts
        variants = search.variants
        form = replace(variants.base.program.form, microbatches=count)
        front = search.front(form)
        if front is None:
            return None
        for choice in front.offloading(_budgets(search, count, best), search.host_room):
            below = value_of(best) * (1 - GAIN)
            found = search.search(variants.of(choice.of(form)), below=below)
            if found is not None:
                return search.with_choice(found, front, choice)
            if not search.over:  # What saves less is slower yet.
                break
    return None


def _budgets(search: VariantSearch, count: int, best: VariantResult | None) -> list[float]:
    """The bytes of all devices that saved values may take in so many microbatches, the most first, as sums to be tried.

    What the best plan holds beside arguments and saved values grows with the part of the batch that is computed at a time,
    or does not: so the last one is little.
    """
    little = LITTLE * search.room
    if best is None:
        return [HALF * search.room, little]
    form = best.problem.program.form
    front = search.front(form)
    saved = front.settled(form.saved, form.offloaded).bytes if front else 0.0
    arguments = search.devices * best.problem.roomy_limit - search.room
    working = search.devices * best.result.candidates[0].peak_bytes - arguments - saved
    room = search.room - max(working, 0.0) * best.parts / count
    return [*(part * room for part in ABOUT if part * room > little), little]
