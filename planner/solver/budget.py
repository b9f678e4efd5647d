"""What the solves of a search may take and leave, and how they go about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from planner.options import GAP, Share
from planner.solver.deadline import Deadline
from planner.solver.network.table_cache import TableCache
from planner.solver.problem import Array

LARGE = 50_000
"""Choices of a problem without rows from which on it takes long to prove an optimum."""
LARGE_GAP = 0.5
"""Which part of the gap such a problem may leave."""
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

    def gap_of(self, node_costs: Sequence[Array]) -> float:
        """The gap of a solve without rows: none where that takes no time, else a part of what may be left in the end."""
        return LARGE_GAP * self.gap if sum(costs.size for costs in node_costs) > LARGE else 0.0

    @property
    def seconds(self) -> float:
        """Seconds that a solve begun now may take."""
        return self.deadline.left(LEAST_SECONDS)
