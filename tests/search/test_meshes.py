"""Under a memory limit: what prices leave of the gap is closed as far as was asked for, over all meshes."""

from __future__ import annotations

import math

import pytest

from planner.search.meshes import Asked, Found, search
from planner.session import Session
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
