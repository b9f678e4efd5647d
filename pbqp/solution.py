"""What a solver hands back: a choice, its value, a proven bound, and why that is all it can say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Status = Literal["optimal", "feasible", "infeasible", "unknown"]
Detail = Mapping[str, int | float | str | tuple[str, ...]]

RELATIVE_TOLERANCE = 1e-6
"""A choice counts as optimal when its value is within this part of the bound; of whole costs it must be the bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """The best choice found, None if none; no choice whatever costs less than `bound`.

    `value` is the choice's exact cost (`inf` without one), `seconds` the wall time, `method` what ran. `detail` holds
    counts of the reductions, of some methods what `ended` them ("gap": it is small enough, "time", or "stall": nothing more
    was to be hoped for), and, for an infeasible problem, `conflict` (names of rows that cannot all hold), `least_limit`
    (bytes) and `least_limit_is` ("proven" or "found", see `pbqp.auto`).
    """

    choice: tuple[int, ...] | None
    value: float
    bound: float
    status: Status
    seconds: float
    method: str
    detail: Detail = field(default_factory=dict[str, int | float | str | tuple[str, ...]])

    @property
    def gap(self) -> float:
        """`(value - bound) / abs(value)`: 0 when proven optimal, `inf` without a choice or without a bound."""
        if self.choice is None or math.isinf(self.bound):
            return math.inf
        return max(0.0, self.value - self.bound) / max(abs(self.value), 1e-300)
