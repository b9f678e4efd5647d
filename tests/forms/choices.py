"""Choices of what is saved, drawn for Hypothesis."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from planner.forms.recompute import savable
from planner.program.jaxpr.crossings import Crossing


def saves(crossing: Crossing, wanted: Sequence[int]) -> tuple[int, ...]:
    """A choice that saves what is wanted, and what cannot be computed again."""
    always = {i for i, value in enumerate(crossing.values) if not value.repeatable}
    can = savable(crossing)
    return tuple(sorted(always | {i for i in wanted if can[i]}))


def drawn_choice(data: st.DataObject, crossing: Crossing) -> tuple[int, ...] | None:
    """Any values of a crossing, saved; None: those that it saves as written."""
    some = st.lists(st.integers(0, max(len(crossing.values) - 1, 0)), unique=True)
    wanted = data.draw(st.one_of(st.none(), some) if crossing.values else st.none(), label="saved")
    return None if wanted is None else saves(crossing, wanted)
