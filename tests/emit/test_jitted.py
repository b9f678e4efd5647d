"""Compiler options of a plan: given where it is called or lowered by itself, left out under transformations."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import planner
from cost_models import parse_topology
from planner.compiler.emission import options
from planner.compiler.emission.options import (
    ASYNC_COLLECTIVES,
    CONTINUATION_FUSION,
    LEFT_OUT,
    NO_SPACE_TO_BATCH,
    NO_WINDOWED_EINSUM,
    SPARSE_CORE_COLLECTIVES,
    accepted,
    plan_options,
)
from planner.compiler.targets.table import compiler_of
from planner.emit.alternatives import variants
from planner.emit.jitted import Jitted, jitted
from planner.errors import ArgumentError
from planner.verify.aot import lower_request
from tests.small import NEVER, mlp, mlp_args, shapes

X = jnp.linspace(0.0, 1.0, 8)
TPUS = {
    name.split(":")[0]: parse_topology(name) for name in ("v4:2x2x2", "v5e:2x4", "v5p:2x2x2", "v6e:2x2", "tpu7x:2x2x2")
}
OPTIONS = {"xla_cpu_enable_fast_math": "False"}

CALLS: dict[str, Callable[[Any], Any]] = {
    "call": lambda f: f(X),
    "jit": lambda f: jax.jit(f)(X),
    "jit that closes over the argument": lambda f: jax.jit(lambda: f(X))(),
    "grad": lambda f: jax.grad(f)(X),
    "jit of grad": lambda f: jax.jit(jax.grad(f))(X),
    "vmap": lambda f: jax.vmap(f)(jnp.stack([X, X])),
    "scan": lambda f: jax.lax.fori_loop(0, 3, lambda _, c: c + f(X), 0.0),
    "shape": lambda f: jax.eval_shape(f, X).shape,
}


def total(x: jax.Array) -> jax.Array:
    return jnp.sin(x).sum()


@pytest.mark.parametrize("name", CALLS)
def test_a_function_with_options_can_be_transformed(name: str) -> None:
    np.testing.assert_allclose(CALLS[name](jitted(total, compiler_options=OPTIONS)), CALLS[name](total), rtol=1e-6)


def test_options_reach_the_compiler() -> None:
    unknown = jitted(total, compiler_options={"no_such_option": "1"})
    with pytest.raises(Exception, match="no_such_option"):
        unknown(X)
    with pytest.raises(Exception, match="no_such_option"):
        unknown.lower(X).compile()
    assert unknown.eval_shape(X).shape == ()
    assert not isinstance(jitted(total, compiler_options={}), Jitted)


@pytest.fixture(scope="module")
def for_tpu() -> planner.Plan:
    return planner.plan(mlp, shapes(mlp_args()), topology="v5e:2x4", options=NEVER)


def test_a_plan_for_tpus_turns_windowed_einsum_off_and_async_collectives_on(
    for_tpu: planner.Plan, tmp_path: Path
) -> None:
    off = plan_options(TPUS["v5e"])
    assert for_tpu.decision.compiler_options == off
    assert "xla_jf_spmd_threshold_for_windowed_einsum_mib=1000000" in str(for_tpu)
    made = lower_request(
        for_tpu.jit, shapes(mlp_args()), mesh_shape=for_tpu.decision.mesh_shape, topology="v5e:2x4"
    ).compiler_options
    assert made == off
    for_tpu.save(tmp_path / "plan.json")
    assert planner.load(tmp_path / "plan.json").decision == for_tpu.decision
    record = json.loads((tmp_path / "plan.json").read_text())
    del record["compiler_options"]
    (tmp_path / "plan.json").write_text(json.dumps(record))
    assert planner.load(tmp_path / "plan.json").decision.compiler_options == {}, "a file of an earlier planner"


def test_other_compilers_are_not_given_the_options(for_tpu: planner.Plan, tmp_path: Path) -> None:
    for_tpu.save(tmp_path / "plan.json")
    bound = planner.load(tmp_path / "plan.json").bind(mlp, mlp_args(), devices=jax.devices())
    np.testing.assert_allclose(bound.jit(*mlp_args()), mlp(*mlp_args()), rtol=1e-4, atol=1e-5)
    assert planner.plan(mlp, mlp_args(), mesh={"x": 8}, options=NEVER).decision.compiler_options == {}


def test_windowed_einsum_is_a_variant(for_tpu: planner.Plan) -> None:
    (windows,) = variants(for_tpu.decision)
    kept = {name: on for name, on in for_tpu.decision.compiler_options.items() if name not in NO_WINDOWED_EINSUM["tpu"]}
    assert windows == replace(for_tpu.decision, compiler_options=kept)
    assert variants(windows) == ()


def test_convolutions_keep_their_space_whole_unless_the_compiler_is_asked() -> None:
    def fn(x: jax.Array, window: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(x, window, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    args = jax.ShapeDtypeStruct((8, 32, 32, 128), jnp.float32), jax.ShapeDtypeStruct((3, 3, 128, 128), jnp.float32)
    decision = planner.plan(fn, args, topology="v5e:2x4", options=NEVER).decision
    own = plan_options(TPUS["v5e"])
    assert decision.compiler_options == {**own, **NO_SPACE_TO_BATCH}
    assert own in [variant.compiler_options for variant in variants(decision)]
    on_gpus = planner.plan(fn, args, topology="h100:8", options=NEVER).decision
    assert on_gpus.compiler_options == plan_options(parse_topology("h100:8"))


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    """Says which libtpu is installed."""
    return lambda release: monkeypatch.setattr(options, "installed_release", lambda _: release)


def test_collectives_by_sparse_cores_are_on_where_runs_are_published_and_a_variant_on_v5p(
    installed: Callable[[str | None], None],
) -> None:
    installed("libtpu 0.0.42.1")
    assert SPARSE_CORE_COLLECTIVES.items() <= plan_options(TPUS["v6e"]).items()
    assert not SPARSE_CORE_COLLECTIVES.keys() & plan_options(TPUS["v5p"]).keys()
    made = planner.plan(mlp, shapes(mlp_args()), topology="v5p:2x2x2", options=NEVER)
    _, sparse = variants(made.decision)
    assert sparse.compiler_options == {**plan_options(TPUS["v5p"]), **SPARSE_CORE_COLLECTIVES}


@pytest.mark.parametrize("release", ["libtpu 0.0.43", "libtpu 0.0.52", None])
def test_where_the_compiler_refuses_to_fuse_collectives_sparse_cores_do_them(
    installed: Callable[[str | None], None], release: str | None
) -> None:
    installed("libtpu 0.0.42.1")
    before = {chip: plan_options(TPUS[chip]) for chip in TPUS}
    assert all(CONTINUATION_FUSION & before[chip].keys() for chip in TPUS)
    installed(release)
    for chip in TPUS:
        now = plan_options(TPUS[chip])
        assert bool(CONTINUATION_FUSION & now.keys()) == (chip == "v5e")
        assert (SPARSE_CORE_COLLECTIVES.items() <= now.items()) == (chip in ("v5p", "v6e", "tpu7x"))
        # A plan that was made beside another compiler is compiled by this one.
        assert accepted(before[chip], chip) == now
    assert compiler_of(parse_topology("v5p:2x2x2").chip).runs("sparse-core-collectives")


def test_options_that_end_in_errors_are_left_out(installed: Callable[[str | None], None]) -> None:
    installed("libtpu 0.0.42.1")
    for chip in TPUS:
        assert ASYNC_COLLECTIVES.keys() - plan_options(TPUS[chip]).keys() == LEFT_OUT.get(chip, set())


def test_only_plans_for_v6e_have_the_option_that_fuses_broadcasts() -> None:
    name = "xla_tpu_enable_aggressive_broadcast_priority_update"
    assert plan_options(TPUS["v6e"])[name] == "true"
    assert all(name not in plan_options(TPUS[chip]) for chip in TPUS if chip != "v6e")
    made = planner.plan(mlp, shapes(mlp_args()), topology="v6e:2x2", options=NEVER)
    assert made.decision.compiler_options == plan_options(TPUS["v6e"])


def test_plans_for_cpus_have_no_variants() -> None:
    assert variants(planner.plan(mlp, mlp_args(), mesh={"x": 8}, options=NEVER).decision) == ()


# ---------------------------------------------------------------- arguments that lie otherwise

TABLE = jnp.arange(2.0**16).reshape(256, 256)
ROWS = jnp.ones((8, 256))


def otherwise(plan: planner.Plan) -> dict[str, Any]:
    reverse = jax.sharding.Mesh(np.array(jax.devices()[::-1]), ("a",))
    return {
        r"lies as SingleDeviceSharding on the device 3, and": jax.device_put(ROWS, jax.devices()[3]),
        r"lies as P\(\) on the mesh x=8 of": jax.device_put(ROWS, NamedSharding(plan.mesh, PartitionSpec())),
        r"lies as P\(None, 'a'\) on the mesh a=8 of the devices 7, 6, 5, \.\.\., and": jax.device_put(
            ROWS, NamedSharding(reverse, PartitionSpec(None, "a"))
        ),
        r"lies as P\('a'\) on the mesh a=2 of the devices 0, 1, and": jax.device_put(
            ROWS, NamedSharding(jax.make_mesh((2,), ("a",)), PartitionSpec("a"))
        ),
    }


def test_what_lies_otherwise_is_told_by_name() -> None:
    plan = planner.plan(
        lambda rows: rows @ TABLE, (ROWS,), mesh={"x": 8}, pins={"rows": PartitionSpec("x")}, options=NEVER
    )
    assert isinstance(plan.jit, Jitted)
    for _ in range(2):
        for words, rows in otherwise(plan).items():
            taken = r".* the plan takes it as P\('x'\) on the mesh x=8 of the devices 0, 1, 2, \.\.\.; .*plan\.place"
            with pytest.raises(ArgumentError, match=f"^argument rows {words}{taken}"):
                plan.jit(rows)
        np.testing.assert_allclose(plan.jit(*plan.place(ROWS)), ROWS @ TABLE)
        np.testing.assert_allclose(plan.jit(ROWS), ROWS @ TABLE)
    with pytest.raises(ArgumentError, match=r"argument rows was planned as float32\[8, 256\], got float32\[4, 256\]"):
        plan.jit(ROWS[:4])


def test_options_of_the_compiler_tell_it_as_well() -> None:
    seen: list[Any] = []
    sharding = NamedSharding(jax.make_mesh((8,), ("x",)), PartitionSpec("x"))
    function = jitted(total, compiler_options=OPTIONS, refused=seen.append, in_shardings=sharding)
    function(X)
    assert not seen
    here = jax.device_put(X, jax.devices()[1])
    with pytest.raises(ValueError, match="Sharding passed to jit does not match"):
        function(here)
    assert seen == [(here,)]


def test_nothing_is_around_a_function_that_needs_nothing() -> None:
    plan = planner.plan(mlp, mlp_args(), mesh={"x": 8}, options=NEVER)
    assert type(plan.jit) is type(jax.jit(mlp))
