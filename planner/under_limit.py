"""Under a limit: the best plan of one mesh that keeps every point of the schedule within the memory limit.

1. Prices. For prices p >= 0 of a byte at points t of the schedule, the least of

       value(x) + sum_t p_t (usage_t(x) - limit)

   over choices x is a lower bound, and its x is a plan, which may fit. The prices are the duals of the program that mixes
   the plans met so far, in shares that sum to 1, so that every point of the mixture is within the limit at the least value
   (Dantzig & Wolfe 1960); they start from those of the plan of least memory. It ends where bound and mixture meet.
2. Rows. What is left of the gap is no convex combination's to close: rows for the points of the schedule that count, and
   for every point that a solution then violates, limit it, and only what is better than the best plan so far is sought.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog

from planner.least_memory import Least, peaks
from planner.memory import MemoryModel
from planner.shared_layers import Share, solve_shared
from planner.solve import Solution
from planner.solve.sharing import Sharing

Floats = npt.NDArray[np.float64]

PRICE_ROUNDS = 12
"""Most prices tried."""
PRICE_SECONDS = 5.0
"""Time for the problem at one price."""
PRICE_GAP = 1e-3
"""Prices have converged where what they could still gain is this part of the value."""
ROW_ROUNDS = 8
"""Most times that rows are added for points that a solution violates."""
ROW_POINTS = 8
"""Points of the schedule that get a row at first: those most used by the plans met."""
ROW_SECONDS = 8.0
"""Time for the problem with rows."""
GOOD_GAP = 1e-3
"""Rows are not tried where the gap is this small already."""
OVER = 1 + 1e-9
"""What of the limit still counts as within it: the rounding of sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Within:
    """The best plan found within the limit (None if none is below the cutoff), its value, and a bound of any."""

    choice: tuple[int, ...] | None
    value: float
    bound: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Plan:
    """A plan met on the way: its choice, value and bytes at every point of the schedule."""

    choice: tuple[int, ...]
    value: float
    profile: Floats


def within(
    memory: MemoryModel,
    free: Solution,
    least: Least,
    limit_bytes: float,
    *,
    cutoff: float,
    end: float,
    seed: int,
    sharing: Sharing,
    share: Share = "auto",
) -> Within:
    """The best plan found whose peak is at most `limit_bytes` and whose value is below `cutoff`.

    `free` is the optimum without a limit, `least` a plan of least memory that is within it; `end` a time of
    `time.monotonic`. `sharing` is that of the mesh's solves.
    """
    search = _Search(memory, limit_bytes, cutoff, seed, sharing, share)
    search.raise_bound(free.bound)
    search.meet(free.choice or ())
    search.meet(least.choice)
    search.price(least.weights, end)
    if not search.finished(GOOD_GAP):
        search.rows(min(end, time.monotonic() + ROW_SECONDS))
    best = search.best
    if best is None or best.value >= cutoff:
        return Within(choice=None, value=math.inf, bound=search.bound)
    return Within(choice=best.choice, value=best.value, bound=min(search.bound, best.value))


class _Search:
    def __init__(
        self, memory: MemoryModel, limit_bytes: float, cutoff: float, seed: int, sharing: Sharing, share: Share
    ) -> None:
        self.memory = memory
        self.problem = memory.instance.problem
        self.limit, self.cutoff, self.seed = limit_bytes, cutoff, seed
        self.met: list[_Plan] = []
        self.best: _Plan | None = None
        self.bound = -math.inf
        self.sharing = sharing
        self.share: Share = share

    def meet(self, choice: Sequence[int]) -> _Plan:
        """Takes a plan into account; returns it with its value and profile."""
        own = tuple(map(int, choice[: len(self.problem.node_costs)]))
        plan = _Plan(choice=own, value=self.problem.evaluate(own), profile=self.memory.profile(own))
        self.met.append(plan)
        if plan.profile.max() <= self.limit * OVER and (self.best is None or plan.value < self.best.value):
            self.best = plan
        return plan

    def raise_bound(self, bound: float) -> None:
        self.bound = max(self.bound, bound)

    @property
    def upper(self) -> float:
        """What is sought must cost less."""
        return min(self.cutoff, math.inf if self.best is None else self.best.value)

    def finished(self, gap: float) -> bool:
        """Whether nothing is left that could be better by this part."""
        return self.upper - self.bound <= gap * abs(self.upper)

    def price(self, weights: Mapping[int, float], end: float) -> None:
        """Prices the points of the schedule, from those of `weights` on; see the module."""
        scale = abs(self.met[0].value) / self.limit
        prices = {point: scale * weight for point, weight in weights.items()}
        for _ in range(PRICE_ROUNDS):
            points = [point for point, price in prices.items() if price > 0]
            if time.monotonic() > end or not points:
                break
            values = {point: prices[point] for point in points}
            rent = self.limit * math.fsum(values.values())
            seconds = max(min(PRICE_SECONDS, end - time.monotonic()), 0.5)
            solution = solve_shared(
                self.memory.priced(self.problem, values, self.limit),
                share=self.share,
                time_limit=seconds,
                seed=self.seed,
                cutoff=self.upper + rent,
                sharing=self.sharing,
            )
            self.raise_bound(min(solution.bound - rent, self.upper))
            if solution.choice is None:
                break
            self.meet(solution.choice)
            mixture, prices = _mixture(self.met, self.limit)
            if mixture - self.bound <= PRICE_GAP * abs(mixture) or self.finished(GOOD_GAP):
                break

    def rows(self, end: float) -> None:
        """Limits points of the schedule by rows, until a solution violates none; see the module."""
        use = np.max([plan.profile for plan in self.met], axis=0)
        points = peaks(use, ROW_POINTS)
        for _ in range(ROW_ROUNDS):
            left = end - time.monotonic()
            if left <= 0:
                break
            limited = self.memory.limited(self.problem, points, self.limit)
            solution = solve_shared(
                limited,
                share=self.share,
                time_limit=left,
                seed=self.seed,
                cutoff=self.upper,
                sharing=self.sharing,
            )
            self.raise_bound(min(solution.bound, self.upper))
            if solution.choice is None:
                break
            plan = self.meet(solution.choice)
            top = int(plan.profile.argmax())
            if plan.profile[top] <= self.limit * OVER or top in points:
                break
            points = [*points, top]


def _mixture(met: Sequence[_Plan], limit: float) -> tuple[float, dict[int, float]]:
    """The least value of a mixture of plans within the limit at every point, and the prices of the points.

    The points are those where a mixture was found to be over the limit, one after the other.
    """
    use = np.stack([plan.profile for plan in met]) / limit - 1.0
    scale = max(max(abs(plan.value) for plan in met), 1e-300)
    costs = np.asarray([plan.value / scale for plan in met])
    points: list[int] = sorted({int(line.argmax()) for line in use})
    while True:
        answer: Any = linprog(
            costs,
            A_ub=use[:, points].T,
            b_ub=np.zeros(len(points)),
            A_eq=np.ones((1, len(met))),
            b_eq=[1.0],
            bounds=(0.0, None),
        )
        if answer.x is None:
            return math.inf, {}
        over = np.asarray(answer.x) @ use
        worst = int(over.argmax())
        if over[worst] <= 1e-9 or worst in points:
            break
        points.append(worst)
    prices = np.maximum(-np.asarray(answer.ineqlin.marginals), 0.0) * scale / limit
    return float(answer.fun) * scale, dict(zip(points, prices.tolist(), strict=True))
