"""Programs without the placements that they name themselves: the same results, and `shard_map`s on global arrays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import planner
from planner.program.tracing.trace import trace
from planner.testing import assert_same_as_single_device

FREE = planner.Options(check="never", annotations="free")
X = jnp.sin(jnp.arange(64 * 8.0)).reshape(64, 8)
RING = [(k, (k + 1) % 4) for k in range(4)]
BOTH = ("i", "j")
ROWS, TURNED = (P(BOTH), P(BOTH)), (P("j"), P(("j", "i")))


def mesh() -> Mesh:
    return Mesh(np.array(jax.devices()[:8]).reshape(4, 2), BOTH, axis_types=(AxisType.Auto,) * 2)


def drawn(x: Any) -> Any:
    return x + jax.random.uniform(jax.random.fold_in(jax.random.key(0), lax.axis_index("i")), x.shape)


def routed(x: Any) -> Any:
    """Half of the rows of every device, to the device that comes next along each axis, and back from the one before."""
    there = lax.all_to_all(x.reshape(4, -1, x.shape[-1]), "i", 0, 0)
    return lax.all_to_all(jnp.tanh(there), "i", 0, 0).reshape(x.shape)


CASES: dict[str, Callable[[Any], Any]] = {
    "a sum": lambda x: lax.psum(x, "i"),
    "a sum over both axes": lambda x: lax.psum(x, BOTH),
    "a mean": lambda x: lax.pmean(x, "j"),
    "the greatest": lambda x: lax.pmax(x, BOTH),
    "a gather": lambda x: lax.all_gather(x, "i", tiled=True)[:8],
    "a gather along a new dim": lambda x: lax.all_gather(x, "i").sum(0),
    "a gather over both axes": lambda x: lax.all_gather(x, BOTH, tiled=True)[:8],
    "a scattered sum": lambda x: jnp.tile(lax.psum_scatter(x, "i", tiled=True), (4, 1)),
    "a scattered sum over both axes": lambda x: jnp.tile(lax.psum_scatter(x, BOTH, tiled=True), (8, 1)),
    "an exchange": lambda x: lax.all_to_all(x, "i", 0, 0, tiled=True),
    "an exchange of dims": lambda x: lax.all_to_all(x, "i", 0, 1, tiled=True).reshape(x.shape),
    "an exchange over both axes": lambda x: lax.all_to_all(x.reshape(8, -1), BOTH, 0, 1, tiled=True).reshape(x.shape),
    "an exchange there and back": routed,
    "a ring": lambda x: lax.ppermute(x, "i", RING),
    "a ring over both axes": lambda x: lax.ppermute(x, BOTH, [(k, (k + 3) % 8) for k in range(7)]),
    "its own number": lambda x: x + lax.axis_index("i") * 10 + lax.axis_index(BOTH),
    "a ring in a loop": lambda x: lax.fori_loop(0, 3, lambda k, c: lax.ppermute(c * k, "i", RING), x),
    "a loop that all end at once": lambda x: lax.while_loop(
        lambda c: lax.psum(jnp.abs(c).sum(), BOTH) < 1e4, lambda c: c * 2 + 1, x
    ),
    "a branch by device": lambda x: lax.cond(lax.axis_index("i") > 1, lambda x: x * 2, lambda x: x - 1, x),
    "a gradient": lambda x: jax.grad(lambda y: lax.psum((y**3).sum(), "i"))(x),
    "a checkpointed gradient": lambda x: jax.grad(
        jax.checkpoint(lambda y: (jnp.sin(y) * lax.psum(y.sum(), "i")).sum())
    )(x),
    "random bits of its own": drawn,
}


@pytest.mark.parametrize("what", CASES)
@pytest.mark.parametrize("specs", [ROWS, TURNED], ids=["rows", "turned"])
def test_an_opened_shard_map_computes_what_devices_do(what: str, specs: tuple[P, P]) -> None:
    mapped = jax.shard_map(CASES[what], mesh=mesh(), in_specs=specs[0], out_specs=specs[1], check_vma=False)
    program = trace(mapped, (X,), annotations="free")
    assert program.parallelism is None, program.notes
    found = jax.jit(jex_core.jaxpr_as_fun(program.jaxpr))(X)[0]
    np.testing.assert_allclose(found, jax.jit(mapped)(X), rtol=2e-5, atol=1e-5)


def test_a_shard_map_in_another_is_opened_with_it() -> None:
    def outer(x: Any) -> Any:
        inner = jax.shard_map(lambda y: y * 2 + lax.psum(y, BOTH), in_specs=P("j"), out_specs=P("j"), axis_names={"j"})
        return lax.psum(inner(x), "i")

    mapped = jax.shard_map(outer, mesh=mesh(), in_specs=P("i"), out_specs=P(), axis_names={"i"})
    program = trace(mapped, (X,), annotations="free")
    assert program.parallelism is None, program.notes
    np.testing.assert_allclose(
        jax.jit(jex_core.jaxpr_as_fun(program.jaxpr))(X)[0], jax.jit(mapped)(X), rtol=1e-5, atol=1e-5
    )


def test_types_that_vary_over_devices_are_plain_ones_once_opened() -> None:
    def step(w: Any, x: Any) -> Any:
        carried = lax.scan(lambda c, y: (c + lax.psum(y.sum(), BOTH), None), lax.pcast(0.0, BOTH, to="varying"), x)[0]
        gradient = jax.grad(lambda w: lax.pmean(jnp.sum((x @ w) ** 2), BOTH))(w)
        return w - 0.1 * gradient, carried[None]

    mapped = jax.shard_map(step, mesh=mesh(), in_specs=(P(), P(BOTH)), out_specs=(P(), P(BOTH)))
    program = trace(mapped, (jnp.eye(8), X), annotations="free")
    assert program.parallelism is None, program.notes
    found = jax.jit(jex_core.jaxpr_as_fun(program.jaxpr))(jnp.eye(8), X)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5), tuple(found), jax.jit(mapped)(jnp.eye(8), X))


def test_a_ragged_exchange_moves_the_rows_that_it_says() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 5, (4, 4))
    starts = np.cumsum(lengths, 1) - lengths
    targets = np.cumsum(lengths, 0) - lengths
    rows = rng.normal(size=(4, 20, 3)).astype(np.float32)
    wanted = np.zeros((4, 24, 3), np.float32)
    for s in range(4):
        for d in range(4):
            wanted[d, targets[s, d] : targets[s, d] + lengths[s, d]] = rows[
                s, starts[s, d] : starts[s, d] + lengths[s, d]
            ]

    def exchange(x: Any, starts: Any, lengths: Any, targets: Any, received: Any) -> Any:
        out = jnp.zeros((1, 24, 3), jnp.float32)[0]
        return lax.ragged_all_to_all(x[0], out, starts[0], lengths[0], targets[0], received[0], axis_name="i")[None]

    abstract = AbstractMesh((4,), ("i",), axis_types=(AxisType.Auto,))
    mapped = jax.shard_map(exchange, mesh=abstract, in_specs=P("i"), out_specs=P("i"), check_vma=False)
    args = (rows, *(a.astype(np.int32) for a in (starts, lengths, targets, lengths.T.copy())))
    program = trace(mapped, args, annotations="free")
    assert program.parallelism is None, program.notes
    np.testing.assert_array_equal(jax.jit(jex_core.jaxpr_as_fun(program.jaxpr))(*args)[0], wanted)


def test_what_cannot_be_opened_stays_on_its_axes_and_is_told() -> None:
    groups = [[0, 1], [2, 3]]
    mapped = jax.shard_map(
        lambda x: lax.psum(x, "i", axis_index_groups=groups),
        mesh=mesh(),
        in_specs=P("i"),
        out_specs=P("i"),
        check_vma=False,
    )
    plan = planner.plan(lambda x: mapped(x) * 2, (X,), options=FREE)
    assert dict(plan.mesh.shape) == {"i": 4, "j": 2}
    assert any("stay on the axes of their mesh" in note and "axis_index_groups" in note for note in plan.notes)


# ---------------------------------------------------------------- plans


def constrained(x: Any, w: Any) -> Any:
    x = lax.with_sharding_constraint(x, NamedSharding(mesh(), P("j", "i")))
    inner = jax.jit(lambda y: jnp.tanh(y @ w), in_shardings=NamedSharding(mesh(), P(None, "j")))
    summed = jax.shard_map(lambda y: lax.psum(y, "i"), mesh=mesh(), in_specs=P("i"), out_specs=P())
    return inner(x), summed(x)


def test_a_kernel_in_a_shard_map_is_opened_under_the_mesh_that_is_set() -> None:
    def double(x: Any) -> Any:
        return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    def kernel(x: Any, y: Any) -> None:
        y[...] = x[...] * 2

    with jax.set_mesh(mesh()):
        mapped = jax.shard_map(double, in_specs=P("i"), out_specs=P("i"), check_vma=False)
        program = trace(lambda x: mapped(x) + 1, (X,), annotations="free")
    assert program.parallelism is None, program.notes


def test_free_annotations_leave_mesh_and_specs_to_the_planner() -> None:
    args = (jnp.ones((64, 8)), jnp.ones((8, 8)))
    kept = planner.plan(constrained, args, options=planner.Options(check="never"))
    assert dict(kept.mesh.shape) == {"i": 4, "j": 2}
    assert any("names itself" in note for note in kept.notes)
    free = planner.plan(constrained, args, mesh={"x": 8}, options=FREE)
    assert dict(free.mesh.shape) == {"x": 8}
    (note,) = [note for note in free.notes if "places freely" in note]
    assert "2 constraints" in note
    assert "1 shard_map" in note
    assert "test_free_annotations.py:" in note
    assert_same_as_single_device(constrained, args, options=FREE)


@pytest.mark.parametrize(("case", "kept"), [("a branch by device", True), ("a ring", False)])
def test_the_better_plan_is_handed_over_with_what_is_named_or_without(case: str, kept: bool) -> None:
    # Opened, a branch is both of its sides; a ring along dims of which each device has some needs no other device.
    fn = jax.shard_map(CASES[case], mesh=mesh(), in_specs=ROWS[0], out_specs=ROWS[1], check_vma=False)
    args = (jax.ShapeDtypeStruct((8192, 2048), jnp.float32),)
    plan = planner.plan(fn, args, topology="v5e:2x4", options=FREE)
    assert plan.decision.request.annotations == ("keep" if kept else "free")
    assert (dict(plan.decision.mesh_shape) == {"i": 4, "j": 2}) is kept
    (note,) = [note for note in plan.notes if "leaves to the planner" in note]
    assert (" are kept: " if kept else " are not kept: ") in note
    own = planner.plan(fn, args, topology="v5e:2x4", options=planner.Options(check="never"))
    assert plan.predicted.seconds <= own.predicted.seconds


def test_a_saved_plan_of_a_free_program_is_bound_to_it_again(tmp_path: Path) -> None:
    args = (jnp.ones((64, 8)), jnp.ones((8, 8)))
    free = planner.plan(constrained, args, mesh={"x": 8}, options=FREE)
    free.save(tmp_path / "plan.json")
    again = planner.load(tmp_path / "plan.json").bind(constrained, args)
    jax.tree.map(np.testing.assert_array_equal, again(*args), free(*args))


def test_an_audit_prices_what_a_program_names_beside_the_free_plan() -> None:
    audit = planner.audit(
        constrained, (jnp.ones((4096, 512)), jnp.ones((512, 512))), options=planner.Options(check="never")
    )
    assert dict(audit.own.mesh_shape) == {"i": 4, "j": 2}
    assert audit.free.predicted.seconds <= audit.own.predicted.seconds
    assert audit.own.request.annotations == "keep"
    assert audit.free.request.annotations == "free"
    assert str(audit)


def test_a_mesh_set_around_the_planner_does_not_bind_a_free_program() -> None:
    with jax.set_mesh(mesh()):
        plan = planner.plan(
            lambda x: lax.with_sharding_constraint(x * 2, P("i")) + 1, (X,), mesh={"x": 8}, options=FREE
        )
        np.testing.assert_array_equal(plan(X), X * 2 + 1)
    assert dict(plan.mesh.shape) == {"x": 8}


def test_what_lies_on_a_manual_mesh_lies_nowhere_once_opened() -> None:
    def body(x: Any) -> Any:
        return lax.psum(x, "i") + jax.nn.one_hot(jnp.argmax(x, -1), x.shape[-1])

    with jax.set_mesh(mesh()):
        mapped = jax.shard_map(body, in_specs=P("i"), out_specs=P("i"), check_vma=False)
        program = trace(mapped, (X,), annotations="free")
        assert program.parallelism is None, program.notes
        found = jax.jit(jex_core.jaxpr_as_fun(program.jaxpr))(X)[0]
        np.testing.assert_allclose(found, jax.jit(mapped)(X), rtol=1e-5)
