"""Under a limit: the best plan of one mesh that keeps every point of the schedule within the memory limit.

For prices p >= 0 of a byte at points t of the schedule, the least of

    value(x) + sum_t p_t (usage_t(x) - limit)

over choices x is a lower bound, and its x is a plan, which may fit.

1. First prices. From the plan without a limit on, a price is added at the fullest points of the last plan, in parts as they
   are over the limit, each time a larger one and for more points, until a plan fits: mostly one of the first, and a good
   one. Where none does, the plan of least memory says whether anything fits (`least_memory`).
2. Best prices: the duals of the program that mixes the plans met so far, in shares that sum to 1, so that every point of
   the mixture is within the limit at the least value (Dantzig & Wolfe 1960). It ends where bound and mixture meet.
3. The mixture made whole. The best plan within the limit of those that take at every node what some plan met takes there,
   where nodes that are joined and changed alike from plan to plan change at once: an integer program so small that it takes
   a second, and mostly what closes the gap.
4. Rows. What is left of the gap is no convex combination's to close: rows for the points of the schedule that count, and
   for every point that a solution then violates, limit it, and only what is better than the best plan so far is sought.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pbqp.compiled import is_compiled, is_large
from pbqp.exact.exact import solve_ilp
from pbqp.options import SolveOptions
from pbqp.problem import Problem
from pbqp.smaller.contraction import blocks, contracted
from pbqp.smaller.quotient import solve_shared
from pbqp.solution import Solution
from pbqp.vectors import Floats, Indices
from planner.pricing.memory.memory_model import LEFT_OUT, MemoryModel
from planner.search.least_memory import Aim, Least, best_mixture, least_memory, peaks

FIRST_PRICE = 0.01
"""What the whole limit costs at the first prices, as a part of the value without a limit."""
PRICE_GROWTH = 3.0
"""Every price added is larger by this factor."""
FIRST_ROUNDS = 10
"""Most prices added: the last makes memory two hundred times dearer than all else."""
LOST = 2.0
"""Where every plan within the limit must cost so much more than those met, mostly nothing fits."""
NEAR_LEAST = 0.99
"""Limits of which the least memory takes so much are tight."""
DEAR = 30.0
"""What the whole limit costs at the first prices where it is tight, as a part of the value of the plan of least memory."""
PRICE_ROUNDS = 12
"""Most prices tried."""
PRICE_SECONDS = 30.0
"""Time for the problem at one price: more than large ones take, so that what comes of it does not depend on the machine."""
PRICE_LEFT = 0.1
"""The part of the gap that may be left of the problem at one price, and of the best combination: proving the last of it
can take most of the time."""
LARGE_LEFT = 5.0
"""How many times the gap a large problem's best plan may miss: neither prices nor rows would raise its bound by much."""
PRICE_GAP = 1e-3
"""Prices have converged where what they could still gain is this part of the value."""
PRICE_PAYS = 1e-4
"""Prices have also converged where mixture, bound and best plan all changed by less than this part of them."""
ROW_ROUNDS = 8
"""Most times that rows are added for points that a solution violates."""
ROW_POINTS = 8
"""Points of the schedule that get a row at first: those most used by the plans met."""
ROW_SECONDS = 30.0
"""Time for the problem with rows."""
COMBINE_SECONDS = 10.0
"""Time for the best combination of the plans met."""
OVER = 1 + 1e-9
"""What of the limit still counts as within it: the rounding of sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Within:
    """The best plan found within the limit (None if none is below the cutoff), its value, and a bound of any.

    `fits` says whether any plan within the limit is known, or was not sought to the end; `finished` whether nothing is left
    that could be better by more than the gap. `per_byte` is what mixtures of the plans met gain of one more byte of memory.
    """

    choice: tuple[int, ...] | None
    value: float
    bound: float
    fits: bool = True
    finished: bool = True
    per_byte: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Plan:
    """A plan met on the way: its choice, value and bytes at every point of the schedule, where nothing is held for long."""

    choice: tuple[int, ...]
    value: float
    profile: Floats


class LimitSearch:
    """The search for the best plan whose peak is at most `limit_bytes`: by prices first, then by rows.

    `free` is the optimum without a limit.
    """

    def __init__(self, memory: MemoryModel, free: Solution, limit_bytes: float) -> None:
        self.memory = memory
        self.problem = memory.instance.problem
        self.limit = limit_bytes
        self.met: list[_Plan] = []
        self.best: _Plan | None = None
        self.bound = free.bound
        self.meet(free.choice or ())

    def by_prices(self, solving: SolveOptions, *, cutoff: float, least: Least | None = None) -> Within:
        """The best plan that prices lead to of those below the cutoff.

        `least` is a plan of least memory that is within the limit, where one is known.
        """
        self.solving, self.cutoff = solving, cutoff
        if least is None:
            # What one point of the schedule needs in every plan tells mostly that nothing fits, at little cost.
            first = least_memory(self.memory, self.met[0].choice, Aim(good_bytes=self.limit, rounds=1), solving)
            if first.bound > self.limit * OVER:
                return Within(choice=None, value=math.inf, bound=math.inf, fits=False)
            prices = self.approach()
            if self.best is None and not self.finished:
                lowest = min(self.met, key=lambda plan: float(plan.profile.max())).choice
                aim = Aim(good_bytes=self.limit, enough_bytes=self.limit, weights=prices)
                least = least_memory(self.memory, lowest, aim, solving)
                if least.peak_bytes > self.limit:
                    bound = math.inf if least.bound > self.limit else self.bound
                    return Within(choice=None, value=math.inf, bound=bound, fits=False)
        known: dict[int, float] | None = None
        if least is not None:
            met = self.meet(least.choice)
            # Hardly anything but the least memory fits where that is the limit, so it counts for more than all else.
            tight = met.profile.max() >= NEAR_LEAST * self.limit
            scale = (DEAR * abs(met.value) if tight else abs(self.met[0].value)) / self.limit
            known = {point: scale * weight for point, weight in least.weights.items()}
        if not self.finished:
            self.price(known)
        if not self.finished:
            self.combine()
        return self.found()

    def by_rows(self, solving: SolveOptions, *, cutoff: float) -> Within:
        """The best plan below the cutoff after `by_prices`, if that left more than the gap."""
        self.solving, self.cutoff = solving, cutoff
        if not self.finished:
            self.rows()
        return self.found()

    def found(self) -> Within:
        """The best plan met, if it is below the cutoff."""
        if self.best is None or self.best.value >= self.cutoff:
            return Within(choice=None, value=math.inf, bound=self.bound, finished=self.finished)
        bound = min(self.bound, self.best.value)
        per_byte = math.fsum(_mixture(self.met, self.limit)[1].values())
        return Within(
            choice=self.best.choice, value=self.best.value, bound=bound, finished=self.finished, per_byte=per_byte
        )

    def meet(self, choice: Sequence[int]) -> _Plan:
        """Takes a plan into account; returns it with its value and profile."""
        own = tuple(map(int, choice[: len(self.problem.node_costs)]))
        plan = _Plan(choice=own, value=self.problem.evaluate(own), profile=self.memory.profile(own, apart_above=0.0))
        self.met.append(plan)
        if plan.profile.max() <= self.limit * OVER and (self.best is None or plan.value < self.best.value):
            self.best = plan
        return plan

    def raise_bound(self, bound: float) -> None:
        """Takes over a bound if it is higher."""
        self.bound = max(self.bound, bound)

    @property
    def upper(self) -> float:
        """What is sought must cost less."""
        return min(self.cutoff, math.inf if self.best is None else self.best.value)

    @property
    def gap(self) -> float:
        """What the best plan may miss, as a part of its value."""
        return self.solving.gap * (LARGE_LEFT if is_large(self.problem.node_costs) else 1.0)

    @property
    def finished(self) -> bool:
        """Whether nothing is left that could be better by more than the gap."""
        return math.isfinite(self.upper) and self.upper - self.bound <= self.gap * abs(self.upper)

    def approach(self) -> Mapping[int, float]:
        """The prices at which a plan fits, nothing is below the cutoff, or hardly anything fits; see the module.

        They are added at the fullest points of the last plan.
        """
        prices: Counter[int] = Counter()
        step = FIRST_PRICE * abs(self.met[0].value) / self.limit
        for turn in range(FIRST_ROUNDS):
            dear = self.bound > LOST * max(abs(plan.value) for plan in self.met)
            if self.best is not None or dear or self.solving.deadline.passed:
                break
            over = self.met[-1].profile - self.limit
            # Few points at first: layers whose points have prices of their own are no longer alike.
            points = [point for point in peaks(over, 2**turn) if over[point] > 0]
            total = math.fsum(over[points].tolist())
            prices.update({point: step * float(over[point]) / total for point in points})
            if not self.at(prices):
                break
            step *= PRICE_GROWTH
        return prices

    def price(self, prices: Mapping[int, float] | None) -> None:
        """Prices the points of the schedule, from `prices` on or from those of the plans met; see the module."""
        before = (math.inf, math.inf, math.inf)
        for _ in range(PRICE_ROUNDS):
            known = {plan.choice for plan in self.met}
            count = len(self.met)
            if prices is not None and not self.at(prices):
                break
            again = len(self.met) > count and self.met[-1].choice in known
            mixture, prices = _mixture(self.met, self.limit)
            now = (mixture, -self.bound, self.upper)
            stalls = all(after >= last - PRICE_PAYS * abs(last) for after, last in zip(now, before, strict=True))
            if again or stalls or mixture - self.bound <= PRICE_GAP * abs(mixture) or self.finished:
                break
            before = now

    def at(self, prices: Mapping[int, float]) -> bool:
        """Meets the best plan at these prices; whether there is one below the cutoff, and time."""
        values = {point: price for point, price in prices.items() if price > 0}
        if self.solving.deadline.passed or not values:
            return False
        rent = self.limit * math.fsum(values.values())
        priced = self.memory.priced(self.problem, values)
        solving = self.solving.within(PRICE_SECONDS)
        large = is_large(priced.node_costs)
        gap = solving.large_gap if large else PRICE_LEFT * solving.gap
        solution = solve_shared(priced, solving, self.upper + rent, gap, compiled=is_compiled(priced.node_costs))
        self.raise_bound(min(solution.bound - rent, self.upper))
        if solution.choice is None:
            return False
        self.meet(solution.choice)
        return True

    def combine(self) -> None:
        """Meets the best plan that takes at every node what a plan met takes there; see the module."""
        kept: list[Indices] = []
        patterns: list[int] = []
        seen: dict[tuple[int, ...], int] = {}
        for picks in zip(*(plan.choice for plan in self.met), strict=True):
            place = {pick: i for i, pick in enumerate(dict.fromkeys(picks))}
            kept.append(np.asarray(list(place), np.intp))
            patterns.append(seen.setdefault(tuple(place[pick] for pick in picks), len(seen)))
        memory = MemoryModel(instance=self.memory.instance.restricted(kept))
        solving = self.solving.within(COMBINE_SECONDS)
        # What changed alike from plan to plan changes at once, which makes the program small.
        block = blocks(memory.instance.problem, patterns)

        def solve(limited: Problem) -> Solution:
            more = np.arange(len(limited.node_costs) - len(block)) + block.max() + 1
            small = contracted(limited, np.concatenate((block, more)))
            within = solving.of_solve(solving.seconds, cutoff=self.upper, gap=PRICE_LEFT * self.gap, compiled=False)
            found = solve_ilp(small.problem, within)
            return found if found.choice is None else replace(found, choice=tuple(small.lift(found.choice).tolist()))

        for picks in self.limited(memory, solving, solve):
            self.meet([int(of[pick]) for of, pick in zip(kept, picks, strict=False)])

    def rows(self) -> None:
        """The best plan of all under rows; see the module."""
        solving, compiled = self.solving.within(ROW_SECONDS), is_compiled(self.problem.node_costs)

        def solve(limited: Problem) -> Solution:
            solution = solve_shared(limited, solving, self.upper, solving.gap, compiled=compiled)
            if all(row.limit == self.limit for row in limited.rows):
                self.raise_bound(min(solution.bound, self.upper))
            return solution

        for picks in self.limited(self.memory, solving, solve):
            self.meet(picks)

    def limited(
        self, memory: MemoryModel, solving: SolveOptions, solve: Callable[[Problem], Solution]
    ) -> Iterator[Sequence[int]]:
        """Choices that `solve` finds under rows for the points of the schedule that count, each to be met by the caller.

        Rows are added for the points that a choice violates, until it violates none.
        """
        use = np.max([plan.profile for plan in self.met], axis=0)
        points, limit = peaks(use, ROW_POINTS), self.limit
        for _ in range(ROW_ROUNDS):
            if solving.deadline.passed:
                break
            choice = solve(memory.limited(memory.instance.problem, points, limit)).choice
            if choice is None:
                break
            yield choice
            use = self.met[-1].profile
            over = use > self.limit * OVER
            if not over.any():
                break
            new = [point for point in peaks(np.where(over, use, 0.0), ROW_POINTS) if point not in points]
            points += new
            if not new:
                # What rows leave out, small copies and what equal ones hold between them, is what it is over.
                limit *= min(1 - LEFT_OUT, self.limit / float(use.max()))


def _mixture(met: Sequence[_Plan], limit: float) -> tuple[float, dict[int, float]]:
    """The least value of a mixture of plans within the limit at every point, and the prices of the points."""
    scale = max(max(abs(plan.value) for plan in met), 1e-300)
    costs = np.asarray([plan.value / scale for plan in met])
    value, duals = best_mixture(costs, np.stack([plan.profile for plan in met]) / limit - 1.0)
    return value * scale, {point: dual * scale / limit for point, dual in duals.items()}
