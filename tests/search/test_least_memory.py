"""The least memory of a mesh: bound and peak beside every choice there is, the rounds it takes, the best plan of it."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.problems import least_time
from pbqp.deadline import Deadline
from pbqp.options import SolveOptions
from pbqp.smaller.quotient import solve_shared
from planner.machine.target import resolve
from planner.pricing.memory.memory_model import MemoryModel
from planner.program.tracing.trace import trace
from planner.search import least_memory as module
from planner.search.best_on_mesh import Outcome, best_of_peak, least_plan
from planner.search.least_memory import GAP, WEIGHT_ROUNDS, Aim, least_memory
from planner.search.problem import PlanningProblem, planning_problem
from planner.search.within_limit import LimitSearch
from tests.problems import small_problem

F32 = jnp.float32


def solving() -> SolveOptions:
    return SolveOptions(deadline=Deadline.after(60.0), gap=1e-3)


def two_layers() -> PlanningProblem:
    def fn(w: jax.Array, v: jax.Array, x: jax.Array) -> Any:
        hidden = jnp.sin(x @ w)
        return hidden @ v, hidden.sum(0), jnp.sort(x, axis=0)

    args = [jax.ShapeDtypeStruct(shape, F32) for shape in ((64, 32), (32, 128), (48, 64))]
    target = resolve(None, "v5e:2x4")
    return planning_problem(program=trace(fn, args), target=target, request=least_time(target.topology, 16e9))


def test_bound_and_peak_hold_the_least_of_all_choices() -> None:
    memory = MemoryModel(instance=two_layers().instance({"x": 2}))
    counts = [len(strategies) for strategies in memory.instance.strategies]
    assert math.prod(counts) < 30_000
    least = min(memory.profile(choice).max() for choice in itertools.product(*map(range, counts)))
    found = least_memory(memory, [0] * len(counts), Aim(good_bytes=math.inf), solving())
    assert found.bound <= least <= found.peak_bytes
    assert found.peak_bytes == memory.profile(found.choice).max()
    assert sum(found.weights.values()) == pytest.approx(1.0)


def test_it_ends_where_no_weights_prove_more(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[float] = []
    solve = module.solve_shared

    def counted(*args: Any, **more: Any) -> Any:
        found = solve(*args, **more)
        rounds.append(found.bound)
        return found

    monkeypatch.setattr(module, "solve_shared", counted)
    memory = MemoryModel(instance=small_problem("gpt").instance({"x": 4, "y": 2}))
    start = [int(sizes.argmin()) for sizes in memory.average_bytes()]
    found = least_memory(memory, start, Aim(good_bytes=math.inf), solving())
    assert found.peak_bytes - found.bound <= GAP * found.peak_bytes
    assert len(rounds) < WEIGHT_ROUNDS / 4


def test_a_mixture_needs_less_than_its_plans_and_says_where() -> None:
    value, weights = module._mixture([np.asarray([4.0, 0.0, 1.0]), np.asarray([0.0, 4.0, 1.0])])
    assert value == pytest.approx(2.0)
    assert weights == pytest.approx({0: 0.5, 1: 0.5})


def test_of_the_plans_of_least_memory_a_better_one_is_taken() -> None:
    instance = small_problem("decode").instance({"x": 8})
    outcome = least_plan(instance, math.inf, solving(), best=math.inf)
    assert isinstance(outcome, Outcome)
    candidate, least = outcome.candidate, outcome.least
    assert candidate is not None
    assert least is not None
    found = best_of_peak(candidate, least, solving().within(5.0))
    value = instance.problem.evaluate
    assert value(found.choice) < value(candidate.choice)
    assert found.value == found.peak_bytes == MemoryModel(instance=instance).profile(found.choice).max()
    assert found.peak_bytes <= candidate.peak_bytes
    # Where prices meet a plan of less memory, that is the least.
    above = 1.02 * least.peak_bytes
    again = best_of_peak(candidate, replace(least, peak_bytes=above), solving().within(5.0))
    assert again.peak_bytes <= candidate.peak_bytes


def test_that_nothing_fits_is_told_by_one_point_of_the_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    def tried(search: LimitSearch) -> None:
        raise AssertionError("prices were sought for a limit that no plan keeps to")

    instance = small_problem("gpt").instance({"x": 4, "y": 2})
    memory, free = MemoryModel(instance=instance), solve_shared(instance.problem, solving())
    start = [int(sizes.argmin()) for sizes in memory.average_bytes()]
    least = least_memory(memory, start, Aim(good_bytes=math.inf), solving())
    monkeypatch.setattr(LimitSearch, "approach", tried)
    found = LimitSearch(memory, free, 0.5 * least.peak_bytes).by_prices(solving(), cutoff=math.inf)
    assert found.choice is None
    assert not found.fits
