"""`planner.plan` takes what `jax.jit` takes and more; a `Plan` runs, places, lowers, differentiates and tells."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections import namedtuple
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import planner
from cost_models import Topology
from planner.decision import Checked
from planner.plans.plan import Plan
from planner.verify.verification import Collectives, Memory, Numerics, Verification
from tests.small import NEVER, assert_same, mlp, mlp_args, planned, shapes, train_args, train_step

Point = namedtuple("Point", "w b")


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    """A pytree of the user's own."""

    w: jax.Array
    b: jax.Array


X = jnp.linspace(0.0, 1.0, 32 * 64).reshape(32, 64)
CLOSED_OVER = jnp.full((64, 128), 0.5)

PROGRAMS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "a constant closed over": (lambda x: x @ CLOSED_OVER, (X,)),
    "a dataclass": (lambda p, x: Layer(x @ p.w, p.b), (Layer(jnp.ones((64, 64)), jnp.ones(64)), X)),
    "a key": (lambda k, x: (jax.random.normal(k, (32, 64)) + x, jax.random.split(k)), (jax.random.key(1), X)),
    "a literal result": (lambda x: (1.0, x, 3), (X,)),
    "a named tuple": (lambda p, x: Point(x @ p.w, p.b), (Point(jnp.ones((64, 64)), jnp.ones(64)), X)),
    "a partial": (functools.partial(lambda x, y, *, scale: x @ y * scale, scale=3.0), (X, X.T)),
    "a zero size": (lambda x, e: (x.sum(), e * 2, jnp.concatenate([e, x[:, :0]], 1)), (X, jnp.zeros((32, 0)))),
    "many keys": (jax.vmap(lambda k: jax.random.normal(k, (8,))), (jax.random.split(jax.random.key(1), 16),)),
    "no arguments": (lambda: jnp.arange(64.0) * 2, ()),
    "no results": (lambda x: None, (X,)),
    "none leaves": (lambda p, x: (x if p["a"] is None else p, None), ({"a": None, "b": X}, X)),
    "nothing at all": (lambda: None, ()),
    "numpy integers": (lambda i: i % 7, (np.arange(64),)),
    "numpy of 64 bits": (lambda x: x * 2, (np.ones((16, 16)),)),
    "outputs that are inputs": (lambda x, y: (x, y, x, x + 1), (X, X)),
    "python scalars": (lambda x, s, n, b: x * s + n + b, (X, 2.0, 3, True)),
    "raw keys": (lambda k: jax.random.uniform(k, (64,)), (jax.random.PRNGKey(3),)),
}


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_it_computes_what_the_function_computes(name: str) -> None:
    fn, args = PROGRAMS[name]
    p = planned(fn, args, mesh={"data": 4, "model": 2})
    assert jax.tree.structure(p.in_shardings) == jax.tree.structure(args)
    assert jax.tree.structure(p.out_shardings) == jax.tree.structure(fn(*args))
    assert jax.tree.structure(p.place(*args)) == jax.tree.structure(args)
    assert str(p)
    assert p.explain()


def test_specs_and_shardings_are_pytrees_like_arguments_and_results() -> None:
    args = mlp_args()
    p = planned(mlp, args, mesh={"data": 4, "model": 2})
    assert isinstance(p.in_specs, tuple)
    assert set(p.in_specs[0]) == {"w0", "b0", "w1"}
    assert isinstance(p.in_specs[0]["w0"], P)
    assert p.in_shardings[1] == NamedSharding(p.mesh, p.in_specs[1])
    assert p.out_shardings == NamedSharding(p.mesh, p.out_specs)
    placed = p.place(*args)
    assert all(a.sharding == s for a, s in zip(jax.tree.leaves(placed), jax.tree.leaves(p.in_shardings), strict=True))
    assert p(*args).sharding == p.out_shardings


def test_the_plan_tells_what_it_predicts_and_how_sure_it_is() -> None:
    p = planner.plan(train_step, shapes(train_args()), mesh={"data": 8}, options=NEVER)
    q = p.predicted
    assert q.seconds == pytest.approx(q.compute_seconds + q.communication_seconds)
    assert q.flops > 0
    assert q.peak_bytes >= q.argument_bytes > 0
    assert q.energy_joules > 0
    for c in q.collectives:
        assert c.kind in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
        assert c.bytes > 0
        assert c.count >= 1
        assert set(c.axes) <= {"data"}
        assert c.source
    c = p.certificate
    assert c.lower_bound <= c.value
    assert c.gap == pytest.approx((c.value - c.lower_bound) / c.value)
    assert c.status == "optimal"
    assert c.solve_seconds >= 0
    assert c.value == pytest.approx(q.seconds, rel=0.02)
    assert p.replicated == ()
    assert all(isinstance(spec, P) for spec in p.constraints.values())
    assert "train_step" in repr(p)
    assert "train_step" in str(p)


def test_intermediates_are_named_by_checkpoint_name() -> None:
    def fn(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(checkpoint_name(jnp.tanh(x @ w), "hidden") @ w)

    p = planned(fn, (jnp.ones((64, 64)), X), pins={"hidden": P(None, "model")}, mesh={"data": 4, "model": 2})
    assert p.constraints["hidden"] == P(None, "model")


# ---------------------------------------------------------------- where it runs


def test_a_subset_of_the_devices() -> None:
    p = planned(mlp, mlp_args(), devices=jax.devices()[4:])
    assert set(p.mesh.devices.flat) <= set(jax.devices()[4:])


def test_a_topology_is_emitted_for_the_devices_given() -> None:
    p = planned(mlp, mlp_args(), devices=jax.devices()[:4], topology="h100:4", mesh={"data": 4})
    assert isinstance(p.mesh, Mesh)
    assert "h100:4" in str(p)
    assert p.predicted.seconds < planner.plan(mlp, mlp_args(), mesh={"data": 4}, options=NEVER).predicted.seconds


def test_a_topology_alone_lowers_and_does_not_run() -> None:
    args = mlp_args()
    p = planner.plan(mlp, args, topology="v5e:4x4", options=NEVER)
    assert isinstance(p.mesh, AbstractMesh)
    assert p.mesh_is_abstract
    assert p.jit.trace(*shapes(args)).lower(lowering_platforms=("tpu",)).as_text()
    for refused in (p, p.place):
        with pytest.raises(planner.errors.MeshError, match=r"v5e:4x4 without devices.*devices=.*bind of a saved plan"):
            refused(*args)


def test_a_topology_of_ones_own() -> None:
    fast = Topology.custom(
        name="two islands",
        shape=(2, 4),
        link_bytes_per_s=(1e9, 1e11),
        flops_per_s=1e12,
        hbm_bytes=1e9,
        hbm_bytes_per_s=1e11,
    )
    p = planned(mlp, mlp_args(), topology=fast, devices=jax.devices(), mesh={"slow": 2, "fast": 4})
    assert dict(p.mesh.shape) == {"slow": 2, "fast": 4}


def test_fewer_devices_than_there_are() -> None:
    assert planned(mlp, mlp_args(), mesh={"data": 2}).mesh.size == 2


def test_all_axes_of_the_mesh_are_automatic() -> None:
    p = planned(mlp, mlp_args(), mesh={"data": 4, "model": 2})
    assert {kind.name for kind in p.mesh.axis_types} == {"Auto"}


# ---------------------------------------------------------------- what is asked for


def test_each_objective_is_best_at_what_it_minimises() -> None:
    args, mesh = shapes(train_args()), {"data": 8}
    plans = {
        name: planner.plan(train_step, args, objective=name, mesh=mesh, options=NEVER)
        for name in ("time", "energy", "memory")
    }
    assert min(plans, key=lambda name: plans[name].predicted.seconds) == "time"
    assert min(plans, key=lambda name: plans[name].predicted.energy_joules) == "energy"
    assert plans["memory"].predicted.peak_bytes <= plans["time"].predicted.peak_bytes
    assert {name: p.certificate.unit for name, p in plans.items()} == {
        "time": "seconds",
        "energy": "joules",
        "memory": "bytes",
    }
    assert plans["memory"].certificate.value == pytest.approx(plans["memory"].predicted.peak_bytes)


@pytest.mark.parametrize("objective", ["time", "energy", "memory"])
@pytest.mark.parametrize("mesh", [None, {"data": 8}], ids=["searched", "fixed"])
def test_a_program_without_bytes_is_planned(objective: str, mesh: dict[str, int] | None) -> None:
    empty = jnp.zeros((0, 0))
    p = planner.plan(jnp.linalg.eig, (empty,), mesh=mesh, objective=objective, options=NEVER)
    assert p.verify(empty).numerics.ok
    assert p.certificate.status == "optimal"
    assert p.certificate.value == 0
    assert "no plan is below 0" in str(p)


def test_donated_arguments_are_consumed_and_their_memory_reused() -> None:
    state, x = train_args()
    p = planner.plan(train_step, (state, x), mesh={"data": 8}, donate_argnums=0, options=NEVER)
    assert p.predicted.alias_bytes > 0
    compiled = p.jit.lower(state, x).compile()
    assert compiled.memory_analysis().alias_size_in_bytes == p.predicted.alias_bytes
    expected = train_step(state, x)
    placed, batch = p.place(*jax.tree.map(jnp.copy, (state, x)))
    new, value = p(placed, batch)
    assert_same((new, value), expected)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(placed))
    assert not batch.is_deleted()
    again, _ = p(state, x)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state)), "wherever a donated argument lies, it is gone"
    assert not x.is_deleted()
    p(again, x)
    told = p.verify(state, x)
    assert told.numerics.ok is None
    assert "donated" in told.numerics.reason


def test_static_arguments() -> None:
    def fn(x: jax.Array, n: int, scale: float, mode: str) -> jax.Array:
        return x[:n] * scale if mode == "scaled" else x

    args = (X, 16, 2.0, "scaled")
    p = planned(fn, args, mesh={"data": 8}, static_argnums=(1, -1))
    assert p.in_specs[1] is None
    assert p.in_specs[3] is None
    assert p.place(*args)[1] == 16
    assert p.place(*args)[3] == "scaled"
    assert p.jit(*args).shape == (16, 64)
    with pytest.raises(planner.errors.ArgumentError, match="static argument 1 was planned as 16, got 8"):
        p(X, 8, 2.0, "scaled")


def test_python_scalars_may_change_and_widen() -> None:
    p = planner.plan(lambda x, s: x * s, (X, 2.0), mesh={"data": 8}, options=NEVER)
    assert_same(p(X, 3.5), X * 3.5)
    assert_same(p(X, 3), X * 3)
    with pytest.raises(planner.errors.ArgumentError, match="argument s was planned as float32"):
        p(X, 1j)


def test_shapes_alone_plan_and_then_run() -> None:
    args = mlp_args()
    p = planner.plan(mlp, shapes(args), mesh={"data": 8}, options=NEVER)
    assert_same(p(*args), mlp(*args))


# ---------------------------------------------------------------- the sharded function among other transformations


@pytest.fixture(scope="module")
def plan_of_mlp() -> planner.Plan:
    return planner.plan(mlp, mlp_args(), mesh={"data": 4, "model": 2}, options=NEVER)


def test_it_lowers_and_compiles(plan_of_mlp: planner.Plan) -> None:
    args = mlp_args()
    compiled = plan_of_mlp.jit.lower(*args).compile()
    assert_same(compiled(*plan_of_mlp.place(*args)), mlp(*args))


@pytest.mark.parametrize("through", ["call", "jit"])
def test_it_is_differentiated_and_jitted(plan_of_mlp: planner.Plan, through: str) -> None:
    params, x = mlp_args()
    run = plan_of_mlp if through == "call" else plan_of_mlp.jit
    assert_same(jax.grad(lambda p: run(p, x).sum())(params), jax.grad(lambda p: mlp(p, x).sum())(params))
    assert_same(jax.jit(lambda p, x: run(p, x) + 1)(params, x), mlp(params, x) + 1)


def test_it_is_mapped(plan_of_mlp: planner.Plan) -> None:
    params, x = mlp_args()
    many = jnp.stack([x, x + 1])
    assert_same(jax.vmap(plan_of_mlp.jit, in_axes=(None, 0))(params, many), jax.vmap(mlp, (None, 0))(params, many))


# ---------------------------------------------------------------- checks before a plan is handed over


def test_a_checked_plan_says_what_was_checked() -> None:
    p = planner.plan(mlp, mlp_args(), mesh={"data": 4, "model": 2})
    assert {c.what: c.ok for c in p.checked} == {
        "compiling": True,
        "numerics": True,
        "collectives": True,
        "memory": True,
    }
    assert p.verify(*mlp_args()).ok
    assert "numerics" in str(p)


def _checks(p: planner.Plan) -> dict[str, Checked]:
    return {c.what: c for c in p.checked}


def test_what_was_not_checked_is_told_with_the_reason() -> None:
    args, mesh = mlp_args(), {"data": 8}
    never = _checks(planner.plan(mlp, args, mesh=mesh, options=NEVER))
    assert {c.ok for c in never.values()} == {None}
    assert all("never" in c.detail for c in never.values())
    abstract = _checks(planner.plan(mlp, args, topology="v5e:2x4", mesh=mesh))
    assert {c.ok for c in abstract.values()} == {None}
    assert all("v5e:2x4 has no devices" in c.detail for c in abstract.values())
    of_shapes = _checks(planner.plan(mlp, shapes(args), mesh=mesh))
    assert of_shapes["compiling"].ok
    assert of_shapes["numerics"] == Checked(what="numerics", ok=None, detail="the arguments are shapes only")
    dear = planner.Options(affordable_flops=0)
    unaffordable = _checks(planner.plan(mlp, args, mesh=mesh, options=dear))
    assert unaffordable["numerics"].ok is None
    assert "always" in unaffordable["numerics"].detail
    insisted = _checks(planner.plan(mlp, args, mesh=mesh, options=dataclasses.replace(dear, check="always")))
    assert insisted["numerics"].ok


def _failing(monkeypatch: pytest.MonkeyPatch, fails: Any) -> list[dict[str, int]]:
    """Makes the numerics of the plans that `fails` picks wrong; returns the meshes that were verified."""
    # The name planner.plan is the function; the module of that name is only in the table of modules.
    module = sys.modules["planner.plans.plan"]
    real, seen = module.verify, list[dict[str, int]]()

    def verify(decision: Any, *args: Any, **more: Any) -> Verification:
        seen.append(dict(decision.mesh_shape))
        found = real(decision, *args, **more)
        wrong = Numerics(ok=False, reason="1 of 1 results differ; out by 3 where 0.1 is allowed")
        return dataclasses.replace(found, numerics=wrong) if fails(decision, len(seen)) else found

    monkeypatch.setattr(module, "verify", verify)
    return seen


def test_a_plan_that_fails_its_check_is_dropped_for_the_next_best(monkeypatch: pytest.MonkeyPatch) -> None:
    best = planner.plan(mlp, mlp_args(), options=NEVER)
    seen = _failing(monkeypatch, lambda decision, tries: tries == 1)
    p = planner.plan(mlp, mlp_args())
    assert seen[0] == dict(best.mesh.shape)
    assert seen[1] == dict(p.mesh.shape) != seen[0]
    assert _checks(p)["numerics"].ok
    assert any(str(seen[0]) in note and "differ" in note for note in p.notes)
    assert p.certificate.lower_bound <= best.certificate.value <= p.certificate.value


def test_a_fixed_mesh_falls_back_on_fewer_constraints(monkeypatch: pytest.MonkeyPatch) -> None:
    _failing(monkeypatch, lambda decision, tries: bool(decision.constraints))
    p = planner.plan(mlp, mlp_args(), mesh={"data": 8})
    assert not p.decision.constraints
    assert any("without constraints" in note for note in p.notes)
    assert_same(p(*mlp_args()), mlp(*mlp_args()))


def test_no_plan_is_handed_over_when_every_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = _failing(monkeypatch, lambda decision, tries: True)
    with pytest.raises(planner.errors.CompileError, match=r"every plan.*results differ.*another mesh"):
        planner.plan(mlp, mlp_args())
    assert 1 < len(seen) <= 6


def test_a_plan_that_does_not_compile_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Plan.verify

    def verify(self: Plan, *args: Any, **asked: Any) -> Verification:
        if dict(self.mesh.shape) != {"x": 8}:
            return real(self, *args, **asked)
        reason = "the plan does not compile: INTERNAL: partitioner"
        return Verification(
            numerics=Numerics(ok=None, reason=reason),
            collectives=Collectives(ok=False, reason=reason),
            memory=Memory(ok=None, reason=reason),
        )

    monkeypatch.setattr(Plan, "verify", verify)
    p = planner.plan(mlp, mlp_args())
    assert dict(p.mesh.shape) != {"x": 8}
    assert any("compiling: the plan does not compile: INTERNAL" in note for note in p.notes)
    with pytest.raises(planner.errors.CompileError, match="INTERNAL"):
        planner.plan(mlp, mlp_args(), mesh={"x": 8})


def test_progress_is_told() -> None:
    told: list[Any] = []
    planner.plan(mlp, mlp_args(), options=planner.Options(check="never", progress=told.append))
    assert told
    assert told[-1].tried <= told[-1].total
