"""Every primitive with a body: expanded in place, counted as one op, or listed with the reason why not."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.scheduling_groups import xla_metadata_call
from jax.interpreters import mlir

import planner
from planner.program.jaxpr.bodies import UNOPENED, is_known
from planner.rules.primitives import PRIMITIVES
from planner.testing import assert_same_as_single_device

NEVER = planner.Options(check="never")
X, W = jnp.sin(jnp.arange(128.0)).reshape(8, 16), jnp.cos(jnp.arange(256.0)).reshape(16, 16)


# ---------------------------------------------------------------- the list, held against JAX's own


@pytest.fixture(scope="module")
def found() -> dict[str, list[str]]:
    """JAX's primitives with the params that hold bodies, by name, as a child process finds them."""
    script = Path(__file__).with_name("primitives_with_bodies.py")
    child = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    return json.loads(child.stdout)


def test_it_is_decided_what_becomes_of_every_body_that_jax_has(found: dict[str, list[str]]) -> None:
    unknown = {name: params for name, params in found.items() if not is_known(name)}
    assert unknown == {}, "bodies.py does not say whether these are expanded, counted or left closed, and why"


def test_the_search_for_bodies_finds_them(found: dict[str, list[str]]) -> None:
    for name, param in {
        "jit": "jaxpr",
        "scan": "jaxpr",
        "while": "body_jaxpr",
        "cond": "branches",
        "custom_vmap_call": "call",
        "custom_partitioning": "call",
        "linear_call": "callee",
        "shard_map": "jaxpr",
        "pallas_call": "jaxpr",
        "run_state": "jaxpr",
        "scatter": "update_jaxpr",
    }.items():
        assert param in found[name]
    assert "dot_general" not in found
    assert "mul" not in found


def test_what_is_left_closed_says_why() -> None:
    assert all(len(why.split()) > 5 for why in UNOPENED.values())


# ---------------------------------------------------------------- what is expanded


def dense(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w)


def custom_vmapped(x: Any, w: Any) -> Any:
    op = jax.custom_batching.custom_vmap(dense)

    @op.def_vmap
    def rule(size: int, batched: Any, x: Any, w: Any) -> Any:
        return jax.vmap(dense, in_axes=tuple(0 if b else None for b in batched))(x, w), True

    return op(x, w)


def linear(x: Any, w: Any) -> Any:
    call = jax.custom_derivatives.linear_call(lambda w, x: x @ w, lambda w, y: y @ w.T, w, x)
    return jnp.tanh(call)


def with_state(x: Any, w: Any) -> Any:
    from jax._src.state.discharge import run_state

    def body(refs: Any) -> None:
        y, x, w = refs
        y[...] = jnp.tanh(x[...] @ w[...])

    return run_state(body)((jnp.zeros((x.shape[0], w.shape[1]), x.dtype), x, w))[0]


EXPANDED: dict[str, Callable[..., Any]] = {
    "composite": lambda x, w: jax.lax.composite(dense, name="my.dense")(x, w),
    "custom_vmap_call": custom_vmapped,
    "jit": jax.jit(dense),
    "linear_call": linear,
    "remat2": jax.checkpoint(dense),
    "run_state": with_state,
}


def planned(fn: Any, args: Any, **more: Any) -> planner.Plan:
    return planner.plan(fn, args, topology="cpu:8", mesh={"a": 4, "b": 2}, options=NEVER, **more)


def on_host(x: Any, w: Any) -> Any:
    places = {"compute_type": "device_host", "out_memory_spaces": jax.memory.Space.Device}
    module = importlib.import_module("jax.experimental.compute_on")
    return getattr(module, "compute_on2", module.compute_on)(**places)(dense)(x, w)


def in_program_order(x: Any, w: Any) -> Any:
    return importlib.import_module("jax._src.program_order").program_order(dense, enforce=True)(x, w)


ANNOTATED: dict[str, Callable[..., Any]] = {
    "compute_on": on_host,
    "program_order": in_program_order,
    "xla_metadata_call": lambda x, w: xla_metadata_call(dense, scheduling_group="a")(x, w),
}
"""Calls that tell the compiler something of their body."""


@pytest.mark.parametrize("name", [*EXPANDED, *ANNOTATED])
def test_the_body_of_a_call_is_planned_as_if_it_stood_there(name: str) -> None:
    fn = {**EXPANDED, **ANNOTATED}[name]
    try:
        kinds = {eqn.primitive.name for eqn in jax.make_jaxpr(fn)(X, W).eqns}
    except ModuleNotFoundError:
        pytest.skip(f"this JAX has no {name}")
    assert name in kinds
    plain, call = planned(dense, (X, W)), planned(fn, (X, W))
    assert call.predicted.flops == plain.predicted.flops
    assert call.predicted.seconds == pytest.approx(plain.predicted.seconds)
    assert call.in_specs == plain.in_specs
    assert not call.guessed
    assert not call.replicated
    assert_same_as_single_device(fn, (X, W), mesh={"a": 4, "b": 2})


def test_what_is_left_to_the_host_is_told() -> None:
    assert any("leaves to the host" in note for note in planned(on_host, (X, W)).notes)


def test_the_forward_pass_of_an_optimised_remat_is_expanded() -> None:
    op = jax.custom_vjp(dense)
    forward = lambda x, w: (dense(x, w), (x, w))  # noqa: E731
    op.defvjp(forward, lambda kept, g: jax.vjp(dense, *kept)[1](g), optimize_remat=True)
    gradient = jax.grad(lambda x, w: op(x, w).sum())
    assert "remat_opt" in {eqn.primitive.name for eqn in jax.make_jaxpr(gradient)(X, W).eqns}
    plan = planned(gradient, (X, W))
    assert not plan.guessed
    assert plan.predicted.flops >= 3 * 2 * 8 * 16 * 16 / 8
    assert_same_as_single_device(gradient, (X, W), mesh={"a": 4, "b": 2})


TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "grad": lambda f: jax.grad(lambda x: f(x, W).sum())(X),
    "jvp": lambda f: jax.jvp(lambda x: f(x, W), (X,), (X,)),
    "vmap": lambda f: jax.vmap(f, (0, None))(jnp.stack([X, 2 * X]), W),
}
NOT_BY_JAX = {("composite", "grad"), ("composite", "jvp"), ("composite", "vmap")} | {
    ("custom_vmap_call", "grad"),
    ("linear_call", "vmap"),
}
"""What JAX itself cannot do with these calls."""


@pytest.mark.parametrize(("name", "transform"), sorted({(n, t) for n in EXPANDED for t in TRANSFORMS} - NOT_BY_JAX))
def test_a_plan_of_a_call_can_be_transformed_as_the_call_can(name: str, transform: str) -> None:
    plan = planner.plan(EXPANDED[name], (X, W), mesh={"a": 4, "b": 2}, options=NEVER)
    mine, own = (jax.tree.leaves(TRANSFORMS[transform](f)) for f in (plan, dense))
    for ours, theirs in zip(mine, own, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_a_custom_vmap_under_vmap_follows_its_rule() -> None:
    op = jax.custom_batching.custom_vmap(lambda x: x + 1)
    op.def_vmap(lambda size, batched, x: (x + 100, True))
    plan = planner.plan(op, (X,), mesh={"a": 8}, options=NEVER)
    np.testing.assert_allclose(jax.vmap(plan)(jnp.stack([X, X])), jnp.stack([X, X]) + 100)


# ---------------------------------------------------------------- what nobody knows


def test_a_primitive_that_nobody_knows_works_what_the_body_in_its_params_does() -> None:
    mystery = jex_core.Primitive("mystery_call")
    mystery.multiple_results = True
    mystery.def_impl(lambda *args, jaxpr: jex_core.jaxpr_as_fun(jaxpr)(*args))
    mystery.def_abstract_eval(lambda *args, jaxpr: jaxpr.out_avals)
    mlir.register_lowering(mystery, mlir.lower_fun(partial(mystery.impl), multiple_results=True))
    plan = planned(lambda x, w: mystery.bind(x, w, jaxpr=jax.make_jaxpr(dense)(X, W))[0], (X, W))
    assert plan.predicted.flops >= 2 * 8 * 16 * 16 / 8
    assert not plan.guessed


def test_no_primitive_with_a_rule_of_its_own_is_expanded_too() -> None:
    from planner.program.jaxpr.bodies import _STRUCTURES

    assert not _STRUCTURES.keys() & PRIMITIVES.keys()
