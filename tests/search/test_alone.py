"""What one device needs bounds what each of several does, though their parts may stay on their chips."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from benchmarks.problems import least_time
from cost_models import parse_topology
from pbqp.smaller.smaller import floor_of
from planner.machine.target import resolve
from planner.pricing.instance import Instance
from planner.pricing.mesh import factorizations
from planner.program.tracing.trace import trace
from planner.search.problem import PlanningProblem, planning_problem
from planner.search.shared_layers import SharedInstance
from tests.problems import small_problem

ROWS, WIDTH = 65536, 2048
"""An array of 268 MB: its part takes less than half of the memory on a chip where 8 share it, and more where 2 do."""


def chain(x: Any, w: Any) -> Any:
    for _ in range(4):
        x = jnp.tanh(x @ w)
    return x


def problem(topology: str = "v5e:2x4") -> PlanningProblem:
    target = resolve(None, topology)
    args = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.bfloat16), jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.bfloat16)
    request = least_time(target.topology, 16e9)
    return planning_problem(program=trace(chain, args), target=target, request=request)


def alone(found: PlanningProblem, devices: int) -> Instance | SharedInstance:
    """The problem on one device that stands for so many."""
    return found.state(replace(found.mesh({"x": 1}), pooled_devices=devices))


def traffic(found: PlanningProblem, devices: int) -> float:
    """The bytes that one device moves which stands for so many, at the least."""
    return sum(float(work.traffic_bytes.min()) for work in alone(found, devices).whole().works if work is not None)


def test_fewer_devices_have_less_room_for_their_parts() -> None:
    found = problem()
    on_one, on_two, on_eight = (traffic(found, devices) for devices in (1, 2, 8))
    assert on_eight < 0.5 * on_two
    assert on_two == on_one


@pytest.mark.parametrize("name", ["gpt", pytest.param("moe", marks=pytest.mark.slow), "decode"])
def test_no_mesh_computes_in_less_than_its_share(name: str) -> None:
    found = small_problem(name)
    for shape in factorizations(parse_topology("v5e:2x4"), max_axes=2):
        devices = found.instance(shape).mesh.num_devices
        least = floor_of(alone(found, devices).node_values) / devices
        assert least * (1 - 1e-6) <= floor_of(found.instance(shape).node_values)


def test_what_one_device_takes_at_the_least_is_found_once_for_each_question() -> None:
    found = problem()
    asked = [
        (found, 8),
        (found, 2),
        (found.with_objective("energy", 16e9), 8),
        (found.without("memory-space-assignment"), 8),
    ]
    least = [one.least_pooled(("x",), devices) for one, devices in asked]
    assert least == [floor_of(alone(one, devices).node_values) for one, devices in asked]
    assert least[0] not in least[1:]
    assert len(found.analysis.pooled) == 3
    assert [one.least_pooled(("x",), devices) for one, devices in asked] == least
