"""The best choice and the best bound known so far, checked against the whole problem whatever method proposes them."""

from __future__ import annotations

import math
from typing import final

import numpy as np

from pbqp.network.network import Indices
from pbqp.options import SolveOptions
from pbqp.problem import Problem
from pbqp.row_table import RowTable
from pbqp.solution import RELATIVE_TOLERANCE, Detail, Solution, Status

FORGIVEN = 4
"""What a bound and what it was made from may lack, in errors of a bound."""


@final
class Incumbent:
    """Keeps the cheapest choice that violates no row, and the highest bound. A bound of `inf` says: infeasible.

    Without a choice, `value` is the cutoff: what is sought must cost less. `tolerance` is the part of its value by which
    an optimum may be above the bound: nothing where floats represent all costs.
    """

    def __init__(self, problem: Problem, rows: RowTable, options: SolveOptions) -> None:
        self.problem = problem
        self.rows = rows
        self.options = options
        self.choice: tuple[int, ...] | None = None
        self.value = options.cutoff
        self.rounding = problem.rounding
        self.bound = self.rounding.reached(-math.inf)
        self.tolerance = 0.0 if self.rounding.whole else RELATIVE_TOLERANCE

    def offer(self, choice: Indices) -> bool:
        """Takes over a choice of all nodes if it is feasible and cheaper; True if it violates no row."""
        plain = tuple(choice.tolist())
        if self.over(choice).size:
            return False
        value = self.problem.evaluate(plain)
        if value < self.value:
            self.choice, self.value = plain, value
            self.options.tell(self.value, self.bound)
        return True

    def over(self, choice: Indices) -> Indices:
        """The rows (of `rows`) that a choice violates; those near their limit are summed exactly."""
        used, limits = self.rows.used(choice), self.rows.limits
        margin = 1e-9 * np.abs(limits)
        plain = choice.tolist()
        over = used > limits
        for row in np.flatnonzero(np.abs(used - limits) <= margin).tolist():
            over[row] = self.problem.rows[int(self.rows.origin[row])].usage(plain) > limits[row]
        return np.flatnonzero(over)

    def raise_bound(self, bound: float) -> None:
        """Takes over a bound if it is higher."""
        bound = self.rounding.reached(bound)
        if bound > self.bound:
            self.bound = bound
            self.options.tell(self.value, min(self.bound, self.value))

    @property
    def proven(self) -> bool:
        """Whether nothing better can exist: the value is optimal, or there is none below the cutoff."""
        return self.bound == math.inf or self._leaves(self.value, self.bound, self.tolerance)

    @property
    def settled(self) -> bool:
        """Whether nothing can exist that is better by as much as is asked for."""
        return self.proven or self.settles(self.value, self.bound)

    def settles(self, value: float, bound: float) -> bool:
        """Whether a bound leaves no more below a value than is of no interest."""
        return self._leaves(value, bound, max(self.options.gap, self.tolerance))

    def _leaves(self, value: float, bound: float, gap: float) -> bool:
        """Whether a bound leaves no more than this part of a value below it, rounding forgiven."""
        rounding = 0.0 if self.rounding.whole else FORGIVEN * self.rounding.error(value)
        return math.isfinite(value) and value - self.rounding.reached(bound) <= gap * abs(value) + rounding

    def solution(self, method: str, detail: Detail) -> Solution:
        """The record of what is known."""
        status: Status
        if self.choice is None:
            status = "infeasible" if self.bound == math.inf else "unknown"
        else:
            status = "optimal" if self.proven else "feasible"
        return Solution(
            choice=self.choice,
            value=math.inf if self.choice is None else self.value,
            bound=self.bound if self.choice is None else min(self.bound, self.problem.evaluate_down(self.choice)),
            status=status,
            seconds=self.options.elapsed(),
            method=method,
            detail=detail,
        )
