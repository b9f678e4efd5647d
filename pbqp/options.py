"""How a problem is solved: one record from the search over many problems down to every method."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from pbqp.deadline import Deadline
from pbqp.network.table_cache import TableCache

Improvement = Callable[[float, float], None]
"""Called with the best value and the lower bound whenever one of them improves."""
Share = Literal["auto"] | bool
"""Whether repeated layers share their decisions."""
GAP = 1e-3
"""The part of the value that no cost model tells apart."""
LARGE_GAP = 0.5
"""Which part of the gap a large problem without rows may leave."""
LEAST_SECONDS = 0.5
"""What a solve gets even where no time is left."""
PATIENCE = 6.0
"""Of a solve that is to find the optimum: it would rather use its time than leave a gap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveOptions:
    """By when to be done, the seed of all randomness, and what may be left unsolved.

    `deadline` starts when solving starts. Choices that cost at least `cutoff` are of no interest: a method may end with the
    proof that there is no other. Nor is what is better by less than `gap`, a part of the value: a method ends where that is
    all that can be left. `share` says whether repeated layers share their decisions. `patience`: how often as long as it
    would otherwise a search on a gap above a thousandth goes on without progress. `compiled`: the problem is part of one so
    large that its messages and moves are compiled. `table_cache` knows what earlier solves made from the same tables.
    """

    deadline: Deadline
    seed: int = 0
    gap: float = 0.0
    share: Share = "auto"
    cutoff: float = math.inf
    patience: float = 1.0
    compiled: bool = False
    progress: Improvement | None = None
    table_cache: TableCache = field(default_factory=TableCache)

    def within(self, seconds: float) -> SolveOptions:
        """The same for so many seconds only."""
        return replace(self, deadline=self.deadline.within(seconds))

    def until(self, deadline: Deadline) -> SolveOptions:
        """The same up to another deadline."""
        return replace(self, deadline=deadline)

    def afresh(self) -> SolveOptions:
        """The same for problems that have no tables in common with others."""
        return replace(self, table_cache=TableCache())

    def of_solve(self, seconds: float, *, cutoff: float, gap: float, compiled: bool) -> SolveOptions:
        """The same for one solve that begins now, patient where it may leave no gap."""
        return replace(
            self,
            deadline=Deadline.after(seconds),
            cutoff=cutoff,
            gap=gap,
            patience=1.0 if gap > 0 else PATIENCE,
            compiled=compiled,
        )

    @property
    def large_gap(self) -> float:
        """The gap of a large problem without rows, whose optimum takes long to prove; see `compiled.is_large`."""
        return LARGE_GAP * self.gap

    @property
    def seconds(self) -> float:
        """Seconds that a solve begun now may take."""
        return self.deadline.left(LEAST_SECONDS)

    def left(self) -> float:
        """Seconds left, never below zero."""
        return self.deadline.left()

    def elapsed(self) -> float:
        """Seconds since the start."""
        return self.deadline.elapsed

    def tell(self, value: float, bound: float) -> None:
        """Reports an improved value or bound."""
        if self.progress is not None:
            self.progress(value, bound)
