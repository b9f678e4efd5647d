"""A limit that nothing fits: which points of the schedule conflict, in the user's names, and what would do."""

from __future__ import annotations

import ast
import math
import re
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import pytest

import planner
from pbqp.deadline import Deadline
from pbqp.options import GAP, SolveOptions
from pbqp.problem import Problem, Row
from planner.errors import InfeasibleError
from planner.search.infeasible import conflict
from planner.search.least_memory import Least
from tests.small import shapes, train_args, train_step

AS_WRITTEN = planner.Options(check="never", microbatches=1)


@dataclass
class Points:
    """A stand-in for a memory model: bytes of every node's choices at every point of the schedule."""

    usages: dict[int, list[np.ndarray]]
    instance: Any = field(init=False)

    def __post_init__(self) -> None:
        first = next(iter(self.usages.values()))

        class Flow:
            nodes = tuple(type("Node", (), {"name": f"node {n}"})() for n in range(len(first)))

        class Instance:
            strategies = tuple(first)
            model = type("Model", (), {"flow": Flow})()

        self.instance = Instance()

    def limited(self, problem: Problem, times: list[int], limit: float) -> Problem:
        rows = tuple(
            Row(name=str(t), limit=limit, nodes=tuple(range(len(self.usages[t]))), usages=tuple(self.usages[t]))
            for t in times
        )
        return Problem(name="points", node_costs=problem.node_costs, edges=(), rows=rows)


def found(usages: dict[int, list[list[float]]], limit: float) -> tuple[int, ...]:
    memory: Any = Points({time: [np.asarray(u, float) for u in of] for time, of in usages.items()})
    weights = dict.fromkeys(usages, 1 / len(usages))
    least = Least(choice=(0,), peak_bytes=1.0, bound=1.0, weights=weights)
    return conflict(memory, least, limit, SolveOptions(deadline=Deadline.never(), gap=GAP))


def test_a_point_that_is_above_the_limit_in_every_plan_conflicts_alone() -> None:
    assert found({1: [[1.0, 2.0]], 2: [[9.0, 8.0]], 3: [[3.0, 1.0]]}, 5.0) == (2,)


def test_points_that_conflict_only_together_are_the_fewest() -> None:
    # One choice fills the first point, the other the second; the third is always within the limit.
    assert found({1: [[9.0, 1.0]], 2: [[1.0, 9.0]], 3: [[2.0, 2.0]]}, 5.0) == (1, 2)


def test_a_conflict_that_no_weights_prove_is_found_by_rows() -> None:
    # Two nodes of 4 or 0 bytes: at 3 bytes each point forbids one of the pairs, though half of each would do.
    usages = {1: [[4.0, 0.0], [4.0, 0.0]], 2: [[0.0, 4.0], [0.0, 4.0]], 3: [[1.0, 1.0], [1.0, 1.0]]}
    assert found(usages, 3.0) == (1, 2)


def test_nothing_is_named_where_nothing_conflicts() -> None:
    assert found({1: [[9.0, 1.0]], 2: [[9.0, 1.0]]}, 5.0) == ()


def test_the_error_names_points_of_the_users_program_and_what_would_do() -> None:
    args = train_args(width=128, batch=512)
    with pytest.raises(InfeasibleError, match="is above it in every plan") as caught:
        planner.plan(train_step, shapes(args), mesh={"data": 8}, memory_limit=1e4, options=AS_WRITTEN)
    error = caught.value
    assert len(error.conflict) == 1
    assert "small.py:" in error.conflict[0]
    assert error.conflict[0] in str(error)
    assert error.least_bytes is not None
    assert "needs less than" in str(error)
    with pytest.raises(InfeasibleError) as tighter:
        planner.plan(
            train_step, shapes(args), mesh={"data": 8}, memory_limit=0.95 * error.least_bytes, options=AS_WRITTEN
        )
    assert tighter.value.least_bytes == pytest.approx(error.least_bytes, rel=0.02)


def refused(limit: float, **more: Any) -> InfeasibleError:
    args = shapes(train_args(width=128, batch=512))
    with pytest.raises(InfeasibleError) as caught:
        planner.plan(more.pop("fn", train_step), args, memory_limit=limit, options=AS_WRITTEN, **more)
    return caught.value


def test_more_devices_are_offered_on_which_a_plan_fits() -> None:
    limit = 1.2e5
    error = refused(limit, topology="v5e:2x4", mesh={"data": 4, "model": 2})
    more, donation = error.offers
    found = re.match(r"use (\d+) devices: a plan on the mesh (\{.*\}) needs", more.text)
    assert found is not None
    assert all(offer.text in str(error) for offer in error.offers)
    assert donation.text.startswith("donate state")
    assert donation.saves_bytes is not None
    mesh = ast.literal_eval(found[2])
    assert list(mesh) == ["data", "model"]
    assert math.prod(mesh.values()) == int(found[1]) > 8
    args = shapes(train_args(width=128, batch=512))
    asked: dict[str, Any] = {"topology": "v5e:16x16", "options": AS_WRITTEN}
    plan = planner.plan(train_step, args, mesh=mesh, memory_limit=limit, **asked)
    assert more.needs_bytes is not None
    assert more.needs_bytes <= limit
    assert plan.predicted.peak_bytes <= limit
    half = {**mesh, "model": mesh["model"] // 2}
    with pytest.raises(InfeasibleError):
        planner.plan(train_step, args, mesh=half, memory_limit=limit, **asked)


def test_where_very_many_devices_would_be_needed_the_fewest_that_could_do_are_told() -> None:
    error = refused(100.0, topology="cpu:8", mesh={"data": 8})
    found = re.match(r"use at least (\d+) devices$", error.offers[0].text)
    assert found is not None
    state, x = train_args(width=128, batch=512)
    assert int(found[1]) >= sum(leaf.nbytes for leaf in jax.tree.leaves((state, x))) / 100.0


def test_no_more_devices_are_offered_to_a_program_that_runs_on_one() -> None:
    def told(state: Any, x: jax.Array) -> Any:
        jax.debug.print("{}", x.sum(), ordered=True)
        return train_step(state, x)

    error = refused(1e4, fn=told, topology="v5e:2x4")
    assert not [offer for offer in error.offers if "devices" in offer.text]
    assert "devices" not in str(error)
