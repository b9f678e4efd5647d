"""What every method is told besides the problem: how long it may take, the seed, and whom to tell of progress."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from pbqp.deadline import Deadline
from pbqp.network.table_cache import TableCache

Improvement = Callable[[float, float], None]
"""Called with the best value and the lower bound whenever one of them improves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """A deadline, which starts with the solve, the seed of all randomness, and progress.

    Choices that cost at least `cutoff` are of no interest: a method may end with the proof that there is no other.
    Nor is what is better by less than `gap`, a part of the value: a method ends where that is all that can be left.
    `patience`: how often as long as it would otherwise a search on a gap above a thousandth goes on without progress.
    `compiled`: the problem is part of one so large that its messages and moves are compiled. `table_cache` knows what
    earlier solves made from the same tables.
    """

    deadline: Deadline
    seed: int = 0
    progress: Improvement | None = None
    cutoff: float = math.inf
    gap: float = 0.0
    patience: float = 1.0
    compiled: bool = False
    table_cache: TableCache = field(default_factory=TableCache)

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
