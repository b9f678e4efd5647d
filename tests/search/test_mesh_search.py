"""Under a memory limit: what prices leave of the gap is closed as far as was asked for, over all meshes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from planner.problem import Session
from planner.search.mesh_search import Asked, Found, search
from tests.sessions import small_session

MESHES = ({"x": 8}, {"x": 4, "y": 2})
LESS = 0.8
"""Of the memory of the best plan without a limit."""


@pytest.fixture(scope="module")
def session() -> Session:
    return small_session("mlp")


def _found(session: Session, limit_bytes: float, gap: float) -> Found:
    return search(MESHES, session, Asked(limit_bytes=limit_bytes, time_limit_s=60.0, gap=gap))


@pytest.mark.parametrize("gap", [0.0, 0.3])
def test_no_more_than_the_gap_is_left(session: Session, gap: float) -> None:
    limit = LESS * _found(session, math.inf, 0.0).candidates[0].peak_bytes
    best = _found(session, limit, 0.0)
    found = _found(session, limit, gap)
    value = found.candidates[0].value
    assert found.candidates[0].peak_bytes <= limit
    assert found.bound <= best.candidates[0].value * (1 + 1e-9)
    assert value - found.bound <= max(gap, 2e-6) * value


def test_of_many_plans_of_the_least_peak_the_fastest_is_sought_when_it_is_asked_for(session: Session) -> None:
    asked = Asked(limit_bytes=math.inf, time_limit_s=60.0, minimise_memory=True)
    at_once = search(MESHES, session, asked)
    found = search(MESHES, session, replace(asked, hastened=False))
    assert at_once.faster is None
    assert found.faster is not None
    slow, *fast = (of.candidates[0] for of in (found, found.faster(), at_once))
    # How far each is sought is a matter of time: they need not be the same plan.
    for one in fast:
        assert one.peak_bytes <= slow.peak_bytes
        assert one.instance.problem.evaluate(one.choice) < slow.instance.problem.evaluate(slow.choice)


@pytest.mark.parametrize(("part", "short"), [(1.0, False), (LESS, True)])
def test_it_is_told_whether_memory_keeps_plans_from_being_better(session: Session, part: float, short: bool) -> None:
    free = _found(session, math.inf, 0.0).candidates[0]
    assert _found(session, part * free.peak_bytes, 0.0).short is short
    # Nothing is below half of the least value: memory is not why.
    nothing = search(MESHES, session, Asked(limit_bytes=free.peak_bytes, time_limit_s=60.0, below=0.5 * free.value))
    assert not nothing.candidates
    assert not nothing.short
