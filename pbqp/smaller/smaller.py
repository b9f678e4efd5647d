"""Smaller forms of a problem, and the way back: reduce, solve, lift (`apply` and `invert` in CVXPY's words).

What is solved is mostly not what was asked: strategies that no good plan chooses are left out (`narrow`), layers that are
alike share a decision (`quotient`), nodes are eliminated (`prepared`) or folded into others (`folding`), and what is
left is written as flat arrays (`arrays`). Each of these is a `Smaller`, and so is a chain of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from pbqp.identity import numbered
from pbqp.memory_rows import Indices
from pbqp.problem import Array

Choice = Sequence[int] | Indices
"""One choice per node."""


class Smaller(Protocol):
    """A smaller form of a problem.

    Whatever it lacks costs at least `bound` (inf: nothing is lost). So the least of that and of a bound of the smaller
    form bounds the larger.
    """

    @property
    def bound(self) -> float:
        """What a choice costs at the least that no choice of this form stands for."""
        ...

    def lift(self, choice: Choice) -> Indices:
        """The choice of the larger form that a choice of this one stands for, at the same cost."""
        ...


@dataclass(frozen=True, slots=True)
class Chain:
    """Smaller forms of smaller forms, the first step first."""

    steps: tuple[Smaller, ...]

    @property
    def bound(self) -> float:
        """What a choice costs at the least that was left out on the way."""
        return min((step.bound for step in self.steps), default=math.inf)

    def lift(self, choice: Choice) -> Indices:
        """The choice of the first form, step by step back."""
        found = np.asarray(choice, np.intp)
        for step in reversed(self.steps):
            found = step.lift(found)
        return found


def floor_of(costs: Sequence[Array]) -> float:
    """What every choice costs at the least where no edge costs less than nothing: every node at its cheapest."""
    distinct, number_of = numbered(costs)
    least = [float(of.min()) for of in distinct]
    return sum(map(least.__getitem__, number_of))
