"""Programs that say themselves where things run, or that may run on one device only: constraints, `shard_map`,
`vmap(spmd_axis_name=...)`, ordered effects; and what a program closes over."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import planner
from planner.testing import assert_same_as_single_device
from tests.small import notes_of_placing, shapes

NEVER = planner.Options(check="never")


def mesh_of(**axes: int) -> Mesh:
    devices = np.array(jax.devices()[: int(np.prod(list(axes.values())))]).reshape(tuple(axes.values()))
    return Mesh(devices, tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def planned(fn: Any, args: tuple[Any, ...], **more: Any) -> planner.Plan:
    """A plan that splits all it can, checked: right numbers, no collective or byte that was not predicted."""
    plan = assert_same_as_single_device(fn, args, **more)
    found = plan.verify()
    assert found.as_promised, str(found)
    return plan


X, W = jnp.sin(jnp.arange(128.0)).reshape(8, 16), jnp.cos(jnp.arange(256.0)).reshape(16, 16)


# ---------------------------------------------------------------- constraints of the program's own


def test_a_constraint_is_a_pin_and_its_mesh_the_plans() -> None:
    mesh = mesh_of(data=4, model=2)

    def fn(x: Any, w: Any) -> Any:
        y = jax.lax.with_sharding_constraint(jnp.tanh(x @ w), NamedSharding(mesh, P("model", "data")))
        return y * 2

    plan = planned(fn, (X, W))
    assert dict(plan.mesh.shape) == {"data": 4, "model": 2}
    assert P("model", "data") in plan.constraints.values()
    assert any("names itself" in note for note in plan.notes)


def test_a_dim_left_unconstrained_is_the_planners() -> None:
    mesh = mesh_of(data=4, model=2)

    def fn(x: Any, w: Any) -> Any:
        return jax.lax.with_sharding_constraint(x @ w, NamedSharding(mesh, P("data", P.UNCONSTRAINED)))

    spec = planned(fn, (X, W), topology="cpu:8").out_specs
    assert spec[0] in ("data", ("data", "model"))
    assert spec != P("data")


def test_two_constraints_that_differ_are_both_kept() -> None:
    mesh = mesh_of(a=8)

    def fn(x: Any) -> Any:
        x = jax.lax.with_sharding_constraint(x + 1, NamedSharding(mesh, P("a")))
        return jax.lax.with_sharding_constraint(x * 2, NamedSharding(mesh, P(None, "a")))

    plan = planned(fn, (X,))
    assert plan.out_specs == P(None, "a")
    assert [c.kind for c in plan.predicted.collectives] == ["all-to-all"]


def test_an_uneven_constraint_is_told() -> None:
    mesh = mesh_of(a=8)
    plan = planned(lambda x: jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("a"))) + 1, (jnp.ones((9, 8)),))
    assert any("unevenly" in note for note in plan.notes)


def test_meshes_that_differ_are_an_error() -> None:
    one, other = mesh_of(a=8), mesh_of(a=4, b=2)

    def fn(x: Any) -> Any:
        x = jax.lax.with_sharding_constraint(x, NamedSharding(one, P("a")))
        return jax.lax.with_sharding_constraint(x, NamedSharding(other, P("b")))

    with pytest.raises(planner.errors.TraceError, match="several meshes"):
        planner.plan(fn, (X,))
    with pytest.raises(planner.errors.MeshError, match="names the mesh"):
        planner.plan(lambda x: jax.lax.with_sharding_constraint(x, NamedSharding(one, P("a"))), (X,), mesh={"b": 8})


def test_constraints_in_a_loop_and_under_vmap() -> None:
    mesh = mesh_of(data=2, model=4)

    def body(row: Any) -> Any:
        return jax.lax.with_sharding_constraint(jnp.tanh(row), NamedSharding(mesh, P("model")))

    def fn(x: Any, w: Any) -> Any:
        def step(c: Any, _: Any) -> Any:
            return jax.vmap(body, spmd_axis_name="data")(c @ w), None

        return jax.lax.scan(step, x, None, length=3)[0]

    planned(fn, (X, W))
    planned(jax.grad(lambda x, w: fn(x, w).sum(), argnums=(0, 1)), (X, W))


# ---------------------------------------------------------------- shard_map


def summed(mesh: Mesh) -> Any:
    """A product of matrices, split by hand in its inner dim."""
    specs = (P("data", "model"), P("model", None))
    return jax.shard_map(lambda x, w: jax.lax.psum(x @ w, "model"), mesh=mesh, in_specs=specs, out_specs=P("data"))


def test_a_shard_map_runs_as_it_says() -> None:
    mesh = mesh_of(data=4, model=2)
    plan = planned(lambda x, w: jnp.tanh(summed(mesh)(x, w)) + 1, (X, W))
    assert not plan.replicated
    moved = {c.kind: c.bytes for c in plan.predicted.collectives if c.axes == ("model",)}
    assert moved["all-reduce"] == 2 * 16 * 4


def test_the_gradient_of_a_shard_map_in_a_loop() -> None:
    mesh = mesh_of(data=4, model=2)

    def loss(x: Any, w: Any) -> Any:
        step = lambda c, _: (jnp.tanh(summed(mesh)(c, w)), None)  # noqa: E731
        return jax.lax.scan(step, x, None, length=3)[0].sum()

    planned(jax.grad(loss, argnums=(0, 1)), (X, W))


def test_collectives_by_name() -> None:
    mesh = mesh_of(a=4, b=2)

    def inside(x: Any) -> Any:
        moved = jax.lax.ppermute(x, "a", [(i, (i + 1) % 4) for i in range(4)])
        scattered = jax.lax.psum_scatter(jax.lax.all_gather(moved, "b", tiled=True), "b", tiled=True)
        return jax.lax.all_to_all(scattered, "a", 1, 0, tiled=True)

    fn = jax.shard_map(inside, mesh=mesh, in_specs=(P(("a", "b"), None),), out_specs=P(("a", "b"), None))
    plan = planned(lambda x: fn(x) * 2, (jnp.arange(512.0).reshape(32, 16),))
    kinds = {c.kind for c in plan.predicted.collectives}
    assert {"collective-permute", "all-gather", "reduce-scatter", "all-to-all"} - kinds <= {"reduce-scatter"}


def test_named_axes_under_vmap_need_no_mesh() -> None:
    fn = jax.vmap(lambda x: x / jax.lax.psum(x, "batch"), axis_name="batch")
    plan = planned(fn, (jnp.abs(X) + 1,), mesh={"x": 4, "y": 2})
    assert any(entry is not None for entry in plan.out_specs)


# ---------------------------------------------------------------- effects


def test_ordered_effects_get_one_device() -> None:
    def fn(x: Any) -> Any:
        jax.debug.print("{}", x.sum(), ordered=True)
        return x * 2

    plan = planner.plan(fn, (X,), options=NEVER)
    assert plan.mesh.size == 1
    assert any("ordered" in note for note in plan.notes)
    with pytest.raises(planner.errors.MeshError, match="ordered"):
        planner.plan(fn, (X,), mesh={"x": 8})


def test_what_reaches_the_world_is_not_run_to_check_it() -> None:
    calls: list[int] = []

    def fn(x: Any) -> Any:
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return io_callback(lambda v: (calls.append(1), np.asarray(v))[1], shape, x) + 1

    plan = planner.plan(fn, (X,))
    assert not calls
    unchecked = next(check for check in plan.checked if check.what == "numerics")
    assert unchecked.ok is None
    assert "side effects" in unchecked.detail
    np.testing.assert_array_equal(plan(X), X + 1)


def test_where_no_split_helps_the_plan_is_for_one_device_and_says_why() -> None:
    plan = planner.plan(lambda x: jnp.sort(x), (jnp.ones(7),))
    assert plan.mesh.size == 1
    assert any("no split helps" in note for note in plan.notes)


# ---------------------------------------------------------------- what a function closes over


TABLE = np.sin(np.arange(512 * 256, dtype=np.float32)).reshape(512, 256)


def test_large_arrays_that_are_closed_over_are_planned_as_arguments(tmp_path: Path) -> None:
    table = jnp.asarray(TABLE)
    helper = jax.jit(lambda x: jnp.tanh(x @ table))

    def fn(x: Any) -> Any:
        def step(c: Any, _: Any) -> Any:
            return helper(c) @ TABLE.T / 100, None

        return helper(x) + jax.lax.scan(step, x, None, length=2)[0] @ table

    x = jnp.cos(jnp.arange(16 * 512.0)).reshape(16, 512)
    plan = planned(fn, (x,), mesh={"x": 8})
    held = [leaf.name for leaf in plan.decision.arguments if leaf.constant]
    assert held == ["closed_over/0", "closed_over/1"]
    sharded = plan.jit.lower(x).compile().memory_analysis().argument_size_in_bytes
    assert sharded <= (TABLE.nbytes * 2 + x.nbytes) / 8 + 64
    expected = fn(x)
    np.testing.assert_allclose(plan(x), expected, rtol=2e-4, atol=1e-4)
    np.testing.assert_allclose(plan.jit(plan.place(x)[0]), expected, rtol=2e-4, atol=1e-4)
    assert len(plan.in_specs) == 1
    plan.save(tmp_path / "plan.json")
    bound = planner.load(tmp_path / "plan.json").bind(fn)
    np.testing.assert_allclose(bound(x), expected, rtol=2e-4, atol=1e-4)


def test_an_array_closed_over_twice_is_held_once() -> None:
    table = jnp.asarray(TABLE)
    helper = jax.jit(lambda x: x @ table)
    plan = planned(lambda x: helper(x) + helper(x + 1) + x @ table, (jnp.ones((8, 512)),), mesh={"x": 8})
    assert [leaf.name for leaf in plan.decision.arguments if leaf.constant] == ["closed_over/0"]


# ---------------------------------------------------------------- loops of unknown length


def test_the_trip_count_of_a_loop_with_a_counter_is_read() -> None:
    def counted(x: Any) -> Any:
        return jax.lax.while_loop(lambda s: s[0] < 12, lambda s: (s[0] + 3, jnp.tanh(s[1] @ W)), (0, x))[1]

    plan = planned(counted, (X,), mesh={"x": 4, "y": 2})
    assert not notes_of_placing(plan)
    assert {c.count for c in plan.predicted.collectives} <= {1.0, 4.0}


def test_a_loop_of_unknown_length_can_be_hinted() -> None:
    def until(x: Any) -> Any:
        return jax.lax.while_loop(lambda s: s.sum() < 1e6, lambda s: jnp.abs(s @ W) * 2 + 1, x)

    hinted = planner.Options(check="never", while_trips={"*test_parallel_programs.py:*": 7.0})
    assert any("7 is hinted" in note for note in planned(until, (X,), options=hinted).notes)
    other = planner.Options(check="never", while_trips={"nowhere": 7.0})
    assert any("no pattern" in note for note in planned(until, (X,), options=other).notes)
    with pytest.raises(planner.errors.ArgumentError, match="while_trips"):
        planner.Options(while_trips={"a": -1.0})


def test_solves_are_planned_inside() -> None:
    def solve(a: Any, b: Any) -> Any:
        return jax.scipy.sparse.linalg.cg(lambda v: a @ v, b, maxiter=4)[0]

    a, b = jnp.eye(16) * 4 + 0.1, jnp.arange(16.0)
    assert not planned(solve, (a, b), mesh={"x": 8}).replicated
    assert not planned(jax.grad(lambda a, b: solve(a, b).sum()), (a, b), mesh={"x": 4, "y": 2}).replicated


def test_inner_jits_and_device_puts_are_constraints_too() -> None:
    mesh = mesh_of(d=4, m=2)
    rows, columns = NamedSharding(mesh, P("d")), NamedSharding(mesh, P("m"))
    inner = jax.jit(lambda y: y + 1, in_shardings=rows, out_shardings=columns)

    def fn(x: Any) -> Any:
        looped = jax.lax.scan(lambda c, _: (inner(c), None), x, None, length=2)[0]
        return jax.device_put(looped * 2, columns)

    plan = planned(fn, (X,))
    assert dict(plan.mesh.shape) == {"d": 4, "m": 2}
    assert plan.out_specs == P("m")


def test_a_mesh_that_is_set_around_the_planner() -> None:
    with jax.set_mesh(mesh_of(d=4, m=2)):
        planned(lambda x: x * 2 + 1, (X,), mesh={"x": 8})
        plan = planned(lambda x: jax.lax.with_sharding_constraint(x * 2, P("d")), (X,))
        assert plan.out_specs == P("d")


def test_a_pmap_is_placed_like_any_other_program() -> None:
    fn = lambda x: jax.pmap(lambda y: y / jax.lax.psum(y, "i"), axis_name="i")(x) * 2  # noqa: E731
    plan = planned(fn, (jnp.abs(X) + 1,))
    assert math.prod(plan.mesh.shape.values()) == 8
    assert any("pmap" in note for note in plan.notes)


def test_per_device_randomness_of_a_pmap_stays_what_it_is() -> None:
    def noisy(key: Any, x: Any) -> Any:
        mine = jax.random.fold_in(key, jax.lax.axis_index("i"))
        return x + jax.random.normal(mine, x.shape) + jax.lax.pmean(x, "i")

    pmapped = jax.pmap(noisy, axis_name="i", in_axes=(None, 0))
    for mesh in ({"x": 8}, {"x": 2, "y": 4}):
        planned(lambda key, x: pmapped(key, x), (jax.random.key(0), X), mesh=mesh)


def test_a_pmap_over_the_one_device_of_a_laptop_is_planned_for_a_slice() -> None:
    one = jax.devices()[:1]
    step = jax.pmap(lambda w, x: w - jax.lax.pmean(x.T @ (x @ w), "i"), axis_name="i", devices=one)
    plan = planner.plan(step, shapes((jnp.zeros((1, 512, 512)), jnp.zeros((1, 65536, 512)))), topology="v5e:4x4")
    assert math.prod(plan.mesh.shape.values()) == 16


def test_a_mesh_of_one_device_does_not_shrink_a_plan() -> None:
    one = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("data", "model"))

    def step(w: Any, x: Any) -> Any:
        x = jax.lax.with_sharding_constraint(x, NamedSharding(one, P("data")))
        summed = jax.shard_map(
            lambda a, b: jax.lax.psum(a @ b, "model"),
            mesh=one,
            in_specs=(P("data", "model"), P("model")),
            out_specs=P("data"),
        )
        return summed(x, w)

    plan = planner.plan(step, shapes((jnp.zeros((512, 512)), jnp.zeros((65536, 512)))), topology="v5e:4x4")
    assert math.prod(plan.mesh.shape.values()) == 16
    (note,) = [note for note in plan.notes if "one device" in note]
    assert "1 constraint at" in note
    assert "1 shard_map at" in note
    assert not plan.guessed
    planned(step, (jnp.ones((16, 16)), X @ jnp.ones((16, 16))))


def test_axes_of_one_device_may_be_named_in_any_order() -> None:
    mesh = AbstractMesh((4, 1, 1), ("i", "j", "k"), axis_types=(AxisType.Auto,) * 3)

    def fn(x: Any) -> Any:
        return jax.lax.with_sharding_constraint(x * 2, NamedSharding(mesh, P("i", ("k", "j")))) + 1

    plan = planner.plan(fn, (jnp.ones((8, 8)),), topology="cpu:4", options=planner.Options(check="never"))
    assert not [note for note in plan.notes if "left to the compiler" in note]
    assert plan.out_specs[0] == "i"
