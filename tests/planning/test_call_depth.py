"""From `planner.plan` to the problem of one mesh the way is short: few calls stand between a request and what is solved."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

import planner
from planner.compiler.analysis import Model
from planner.errors import InfeasibleError
from planner.pricing.build_instance import Terms
from planner.pricing.instance import Instance
from planner.search import problem
from tests.problems import small_model

MOST_FRAMES = 17
HERE = planner.Options(check="never", workers=1, gap=0.05)
"""All steps are taken in this process, whose frames can be counted; how near plans are to the best is no matter."""


def _frames_since_plan() -> int:
    """How many calls deep the caller's caller is, that of `planner.plan` being the first."""
    frame, names = sys._getframe(2), list[str]()  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        names.append(frame.f_code.co_qualname)
        frame = frame.f_back
    return names.index("plan") + 1


@pytest.fixture
def depths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """By statement of a problem on a mesh, the number of frames from `planner.plan` to it, both included."""
    found: list[int] = []
    state: Callable[[Model, Terms], Instance] = problem.state

    def noted(model: Model, terms: Terms) -> Instance:
        found.append(_frames_since_plan() + 1)
        return state(model, terms)

    monkeypatch.setattr(problem, "state", noted)
    return found


def _plan(options: planner.Options = HERE, memory_limit: float | None = None) -> planner.Plan:
    model = small_model("mlp")
    return planner.plan(model.fn, model.args, topology="v5e:2x2", memory_limit=memory_limit, options=options)


def test_meshes_are_searched_near_the_call(depths: list[int]) -> None:
    _plan()
    assert 0 < max(depths) <= MOST_FRAMES


def test_microbatches_and_saved_values_are_chosen_near_the_call(depths: list[int]) -> None:
    needed = _plan(options=replace(HERE, microbatches=1, remat="as written")).predicted.peak_bytes
    depths.clear()
    _plan(memory_limit=0.6 * needed)
    assert 0 < max(depths) <= MOST_FRAMES


def test_why_nothing_fits_is_found_near_the_call(depths: list[int]) -> None:
    with pytest.raises(InfeasibleError):
        _plan(memory_limit=1e5)
    assert 0 < max(depths) <= MOST_FRAMES
