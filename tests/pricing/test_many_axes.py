"""Meshes of many axes: those of size 1 cost nothing, and up to six larger ones are planned as well as three."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import planner
from benchmarks.problems import least_time
from cost_models import parse_topology
from planner.errors import MeshError
from planner.machine.target import resolve
from planner.pricing.candidates.strategies import MAX_OF_MANY_AXES
from planner.program.tracing.trace import trace
from planner.search.problem import PlanningProblem, planning_problem
from planner.testing import assert_same_as_single_device
from tests.small import shapes, train_args, train_step

QUICK = planner.Options(check="never", remat="as written", microbatches=1)
W, X = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16), jax.ShapeDtypeStruct((65536, 4096), jnp.bfloat16)
SIX = dict.fromkeys("abcdef", 2)


def abstract(shape: dict[str, int]) -> AbstractMesh:
    return AbstractMesh(tuple(shape.values()), tuple(shape), axis_types=(AxisType.Auto,) * len(shape))


def product(mesh: Any, spec: P) -> Any:
    """A product of matrices whose result the program places on its own mesh."""

    def fn(w: Any, x: Any) -> Any:
        return jax.lax.with_sharding_constraint(x @ w, NamedSharding(mesh, spec))

    return fn


def problem_of(fn: Any, args: Any, topology: str) -> PlanningProblem:
    target = resolve(None, topology)
    return planning_problem(program=trace(fn, args), target=target, request=least_time(target.topology, 16e9))


@pytest.mark.parametrize("extra", [2, 11])
def test_axes_of_size_1_change_nothing_but_the_names(extra: int) -> None:
    sizes = {"data": 4, **{f"none{i}": 1 for i in range(extra)}, "model": 4}
    few, many = (
        planner.plan(product(abstract(of), spec), (W, X), topology="v5e:4x4", options=QUICK)
        for of, spec in (
            ({"data": 4, "model": 4}, P("data", "model")),
            (sizes, P(("data", "none0"), ("none1", "model"))),
        )
    )
    assert dict(many.mesh.shape) == sizes
    assert many.predicted == few.predicted
    assert (many.in_specs, many.out_specs) == (few.in_specs, few.out_specs)


def test_a_mesh_of_nothing_but_axes_of_size_1_is_one_device() -> None:
    sizes = {f"a{i}": 1 for i in range(12)}
    plan = planner.plan(lambda w, x: x @ w, (W, X), topology="v5e:4x4", mesh=sizes, options=QUICK)
    assert dict(plan.mesh.shape) == sizes
    assert plan.predicted.collectives == ()
    assert plan.out_specs == P()


def test_planning_knows_the_large_axes_alone() -> None:
    shape = {"one": 1, "data": 8, "two": 1, "model": 2, "three": 1}
    instance = problem_of(lambda w, x: x @ w, (W, X), "v5e:4x4").instance(shape)
    assert instance.mesh.shape == shape
    assert instance.mesh.names == ("data", "model")
    assert {strategies.assignment.shape[1] for strategies in instance.strategies} == {2}


def test_a_plan_on_a_mesh_with_axes_of_size_1_runs() -> None:
    names = ("a", "b", "c", "d", "e")
    mesh = Mesh(np.array(jax.devices()).reshape(2, 1, 2, 1, 2), names, axis_types=(AxisType.Auto,) * 5)

    def fn(state: Any, x: Any) -> Any:
        x = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(("a", "b"), ("d", "e"))))
        summed = jax.shard_map(
            lambda x: jax.lax.psum(jax.lax.psum(x, ("d", "e")), "b"),
            mesh=mesh,
            in_specs=P(("b", "c"), ("d", "e")),
            out_specs=P("c", None),
        )
        return train_step(state, jnp.tile(summed(x), (1, 2)))

    plan = assert_same_as_single_device(fn, train_args(), pins={"state/params/w0": P("d", ("b", "c"))})
    assert dict(plan.mesh.shape) == dict(mesh.shape)
    assert plan.verify().ok
    assert not any(c.axes == () for c in plan.predicted.collectives)


def test_the_links_of_a_mesh_do_not_depend_on_axes_of_size_1() -> None:
    for name, sizes in (("v5e:4x4", (8, 2)), ("v5p:4x4x4", (4, 4, 4)), ("h100:4x8", (4, 8)), ("v5e:4x1", (4,))):
        links = parse_topology(name).links(sizes)
        assert links is not None
        for place in itertools.product(range(len(sizes) + 1), repeat=2):
            longer = list(sizes)
            for at in sorted(place, reverse=True):
                longer.insert(at, 1)
            found = parse_topology(name).links(longer)
            assert found is not None
            assert tuple(link for link in found if link.size > 1) == links
            assert all(not link.dims for link in found if link.size == 1)


def test_six_axes_are_planned_no_worse_than_the_three_that_they_make() -> None:
    args = shapes(train_args(width=1024, batch=4096))
    three = planner.plan(train_step, args, topology="v5p:4x4x4", mesh={"x": 4, "y": 4, "z": 4}, options=QUICK)
    six = planner.plan(train_step, args, topology="v5p:4x4x4", mesh=SIX, options=QUICK)
    assert six.predicted.seconds <= three.predicted.seconds * (1 + 1e-9)
    (note,) = [note for note in six.notes if "axes larger than 1" in note]
    assert "not all splits of an op are looked at" in note
    assert not any("axes larger than 1" in note for note in three.notes)


def test_what_six_axes_take_is_bounded() -> None:
    problem = problem_of(train_step, shapes(train_args(width=1024, batch=4096)), "v5p:4x4x4")
    instance = problem.instance(SIX)
    assert instance.problem.node_costs
    assert max(map(len, instance.strategies)) <= MAX_OF_MANY_AXES
    assert sum(met.table.nbytes for met in instance.patterns.met.values()) < 64e6


def test_any_spec_that_is_demanded_is_offered_to_those_that_read_it() -> None:
    mesh = abstract(SIX)
    odd = P(("a", "c", "e"), ("b", "d", "f"))

    def fn(x: Any) -> Any:
        x = jax.lax.with_sharding_constraint(jnp.tanh(x), NamedSharding(mesh, odd))
        return jnp.sort(x[:, None, :] + jnp.ones((1, 4, 1)), axis=1).sum(axis=1) * x

    plan = planner.plan(fn, (jax.ShapeDtypeStruct((4096, 4096), jnp.float32),), topology="v5p:4x4x4", options=QUICK)
    assert plan.predicted.collectives == ()
    assert plan.in_specs == (odd,)
    assert plan.out_specs == odd


def test_more_axes_than_are_planned_are_an_error() -> None:
    mesh = dict.fromkeys("abcdefg", 2)
    with pytest.raises(MeshError, match="has 7 axes larger than 1, but at most 6 are planned; make one axis of those"):
        planner.plan(lambda w, x: x @ w, (W, X), topology="v5e:16x16", mesh=mesh, options=QUICK)
