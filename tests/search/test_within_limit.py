"""Plans that prices lead to are combined: the best within the limit of what they choose node by node."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from pbqp.deadline import Deadline
from pbqp.options import SolveOptions
from pbqp.smaller.quotient import solve_shared
from planner.pricing.memory.memory_model import MemoryModel
from planner.search.within_limit import OVER, LimitSearch
from tests.problems import small_problem

MOST = 8
"""In how many nodes the plans that are combined differ."""


@pytest.mark.parametrize("part", [0.999, 0.9, 0.7])
def test_the_best_combination_of_plans_within_the_limit_is_met(part: float) -> None:
    instance = small_problem("mlp").instance({"x": 4, "y": 2})
    memory = MemoryModel(instance=instance)
    solving = SolveOptions(deadline=Deadline.after(60.0), gap=1e-3)
    free = solve_shared(instance.problem, solving)
    assert free.choice is not None
    # A plan of less memory: of the nodes that take more than their least, those that take the most more.
    average = memory.average_bytes()
    sizes = [int(of.argmin()) for of in average]
    more = [float(of[pick] - of.min()) for of, pick in zip(average, free.choice, strict=True)]
    differ = [int(node) for node in np.argsort(more)[-MOST:]]
    other = [sizes[node] if node in differ else pick for node, pick in enumerate(free.choice)]
    plans = [
        [other[node] if node in taken else pick for node, pick in enumerate(free.choice)]
        for count in range(len(differ) + 1)
        for taken in itertools.combinations(differ, count)
    ]
    peaks = [float(memory.profile(plan).max()) for plan in plans]
    limit = part * peaks[0]
    fitting = [instance.problem.evaluate(plan) for plan, peak in zip(plans, peaks, strict=True) if peak <= limit]
    search = LimitSearch(memory, free, limit)
    search.meet(other)
    search.solving, search.cutoff = solving, math.inf
    search.combine()
    assert search.best is not None
    assert search.best.value == pytest.approx(min(fitting))
    assert search.best.value < 0.9 * instance.problem.evaluate(other)
    assert np.max(memory.profile(search.best.choice)) <= limit * OVER
