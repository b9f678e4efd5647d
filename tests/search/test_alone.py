"""What one device needs bounds what each of several does, though their parts may stay on their chips."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from benchmarks.problems import least_time
from benchmarks.suite import PROGRAMS
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


CHAINED = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.bfloat16), jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.bfloat16)


def problem(
    topology: str = "v5e:2x4", fn: Callable[..., Any] = chain, args: tuple[Any, ...] = CHAINED
) -> PlanningProblem:
    target = resolve(None, topology)
    request = least_time(target.topology, 16e9)
    return planning_problem(program=trace(fn, args), target=target, request=request)


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


def shares_above(found: PlanningProblem) -> list[str]:
    """The nodes that a mesh of all devices computes in less than their share of what one device takes for all."""
    topology = found.request.topology
    shares = [
        float(values.min()) / topology.num_devices for values in alone(found, topology.num_devices).whole().node_values
    ]
    above = list[str]()
    for shape in factorizations(topology, max_axes=2):
        stated = found.instance(shape)
        if stated.mesh.num_devices == topology.num_devices:
            enough = 1e-4 * floor_of(stated.node_values)
            for node, share, values in zip(found.model.flow.nodes, shares, stated.node_values, strict=True):
                above += [f"{node.name} on {shape}"] if share > float(values.min()) + enough else []
    return above


@pytest.mark.parametrize("name", ["gpt", pytest.param("moe", marks=pytest.mark.slow), "decode"])
def test_no_mesh_computes_in_less_than_its_share(name: str) -> None:
    assert shares_above(small_problem(name)) == []


def test_no_mesh_convolves_in_less_than_its_share() -> None:
    def patches(images: Any, kernel: Any) -> Any:
        return lax.conv_general_dilated(images, kernel, (14, 14), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    # A window of more places than a part of the result has is contracted as well.
    images = jax.ShapeDtypeStruct((1024, 224, 224, 3), jnp.bfloat16)
    kernel = jax.ShapeDtypeStruct((14, 14, 3, 1280), jnp.bfloat16)
    assert shares_above(problem("v6e:4x4", patches, (images, kernel))) == []


def test_no_mesh_of_many_hosts_computes_in_less_than_its_share() -> None:
    # Hosts feed it, scores are moved where a device has several along each dim, and blocks of queries are split.
    model = PROGRAMS["llama 8B"].build(parse_topology("v5p:4x4x4"))
    assert shares_above(problem("v5p:4x4x4", model.fn, model.args)) == []


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
