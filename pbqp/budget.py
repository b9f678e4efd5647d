"""What the solves of a search may take and leave, and how they go about it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from pbqp.deadline import Deadline
from pbqp.network.table_cache import TableCache

Share = Literal["auto"] | bool
"""Whether repeated layers share their decisions."""
GAP = 1e-3
"""The part of the value that no cost model tells apart."""
LARGE_GAP = 0.5
"""Which part of the gap a large problem without rows may leave."""
LEAST_SECONDS = 0.5
"""What a solve gets even where no time is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A deadline, the seed of all randomness, whether layers share decisions, and the tables that solves have in common.

    `gap` is the part of the value that may be left between the best plan within a memory limit and the bound.
    """

    deadline: Deadline
    seed: int = 0
    gap: float = GAP
    share: Share = "auto"
    table_cache: TableCache = field(default_factory=TableCache)

    def within(self, seconds: float) -> Budget:
        """This for so many seconds only."""
        return replace(self, deadline=self.deadline.within(seconds))

    def until(self, deadline: Deadline) -> Budget:
        """This up to another deadline."""
        return replace(self, deadline=deadline)

    def afresh(self) -> Budget:
        """This for problems that have no tables in common with others."""
        return replace(self, table_cache=TableCache())

    @property
    def large_gap(self) -> float:
        """The gap of a large problem without rows, whose optimum takes long to prove; see `compiled.is_large`."""
        return LARGE_GAP * self.gap

    @property
    def seconds(self) -> float:
        """Seconds that a solve begun now may take."""
        return self.deadline.left(LEAST_SECONDS)
