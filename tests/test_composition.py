"""A plan under JAX's transformations: what `p(...)` and `p.jit` give there is what the function itself gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import planner
from planner.testing import free_wires

X = jax.random.normal(jax.random.key(0), (16, 32))
W = jax.random.normal(jax.random.key(1), (32, 32)) / 6
TABLE = jax.random.normal(jax.random.key(2), (32, 1024))
"""Large enough to be planned like an argument."""


@jax.custom_vjp
def squared(x: jax.Array) -> jax.Array:
    return x * x


squared.defvjp(lambda x: (x * x, x), lambda x, g: (2 * x * g,))


@jax.custom_jvp
def soft(x: jax.Array) -> jax.Array:
    return jnp.tanh(x)


soft.defjvp(lambda primals, tangents: (jnp.tanh(primals[0]), tangents[0] * (1 - jnp.tanh(primals[0]) ** 2)))


def layers(w: jax.Array, x: jax.Array) -> jax.Array:
    """A loop, a remat, a rule of its own for the derivative, and a large constant."""
    layer = jax.checkpoint(lambda c, w: soft(c @ w) + c)
    return jax.lax.scan(lambda c, _: (layer(c, w), None), x, None, length=2)[0] @ TABLE


def reversed_rule(w: jax.Array, x: jax.Array) -> jax.Array:
    """A rule for the reverse mode only."""
    return squared(x @ w).sum(1)


def plan_of(fn: Callable[..., Any], *args: Any, **more: Any) -> planner.Plan:
    options = planner.Options(check="never")
    mesh = {"x": 4, "y": 2}
    return planner.plan(fn, args, devices=jax.devices(), topology=free_wires(8), mesh=mesh, options=options, **more)


@pytest.fixture(scope="module")
def plan() -> planner.Plan:
    return plan_of(layers, W, X)


Function = Callable[..., Any]
MANY = jnp.stack([X, X + 1])


def total(f: Function) -> Function:
    return lambda w, x: (f(w, x) ** 2).sum()


TRANSFORMED: dict[str, Callable[[Function], Any]] = {
    "call": lambda f: f(W, X),
    "jit": lambda f: jax.jit(lambda w, x: f(w, x + 1) * 2)(W, X),
    "grad": lambda f: jax.grad(total(f), argnums=(0, 1))(W, X),
    "jit of value_and_grad": lambda f: jax.jit(jax.value_and_grad(total(f)))(W, X),
    "jvp": lambda f: jax.jvp(f, (W, X), (W, X)),
    "vjp": lambda f: jax.vjp(f, W, X)[1](jnp.ones((16, 1024))),
    "linearize": lambda f: jax.linearize(f, W, X)[1](W, X),
    "vmap": lambda f: jax.vmap(f, (None, 0))(W, MANY),
    "checkpoint": lambda f: jax.grad(lambda w: total(jax.checkpoint(f))(w, X))(W),
    "Hessian times vector": lambda f: jax.jvp(jax.grad(total(f)), (W, X), (W, X)),
    "scan": lambda f: jax.lax.scan(lambda c, _: (c + 1, f(W, c)), X, None, length=2),
    "cond": lambda f: jax.jit(lambda x: jax.lax.cond(x[0, 0] > 0, lambda x: f(W, x), lambda x: f(W, -x), x))(X),
}


SIMPLE = ("call", "jit", "grad", "jvp", "vmap", "checkpoint")
"""Those that `p` itself is tried under, too: it calls the same program as `p.jit`."""


@pytest.mark.parametrize(
    ("name", "called"), [*((name, "p.jit") for name in TRANSFORMED), *((name, "p") for name in SIMPLE)]
)
def test_transformations(plan: planner.Plan, name: str, called: str) -> None:
    got, wanted = TRANSFORMED[name](plan if called == "p" else plan.jit), TRANSFORMED[name](layers)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-2), got, wanted)


@pytest.mark.parametrize("called", ["p", "p.jit"])
def test_a_plan_whose_first_use_is_within_a_trace_runs_outside_of_it(called: str) -> None:
    plan = plan_of(layers, W, X)
    run = plan if called == "p" else plan.jit
    within = jax.jit(lambda w, x: run(w, x))(W, X)
    np.testing.assert_allclose(run(W, X), within, rtol=1e-4, atol=1e-4)


def test_shapes_can_be_asked_for(plan: planner.Plan) -> None:
    shape = jax.eval_shape(plan.jit, W, X)
    assert (shape.shape, shape.dtype) == ((16, 1024), jnp.float32)
    assert jax.make_jaxpr(plan)(W, X).out_avals[0].shape == (16, 1024)


@pytest.mark.parametrize("called", ["p", "p.jit"])
def test_a_rule_for_the_reverse_mode_is_kept(called: str) -> None:
    plan = plan_of(reversed_rule, W, X)
    run = plan if called == "p" else plan.jit
    got = jax.grad(lambda w: run(w, X).sum())(W)
    np.testing.assert_allclose(got, jax.grad(lambda w: reversed_rule(w, X).sum())(W), rtol=1e-3, atol=1e-3)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(run, (W, X), (W, X))


def test_one_plan_within_another() -> None:
    inner = plan_of(lambda w, x: jnp.tanh(x @ w), W, X)
    outer = plan_of(lambda w, x: inner.jit(w, x) * 2 + inner(w, x + 1), W, X)
    wanted = jnp.tanh(X @ W) * 2 + jnp.tanh((X + 1) @ W)
    np.testing.assert_allclose(outer(W, X), wanted, rtol=1e-4, atol=1e-4)


def test_two_plans_one_after_the_other() -> None:
    first = plan_of(lambda w, x: jnp.tanh(x @ w), W, X)
    second = plan_of(lambda h: h.T @ h, X)
    wanted = jnp.tanh(X @ W).T @ jnp.tanh(X @ W)
    np.testing.assert_allclose(second(first(W, X)), wanted, rtol=1e-4, atol=1e-4)
    both = jax.jit(lambda w, x: second(first(w, x)))
    np.testing.assert_allclose(both(W, X), wanted, rtol=1e-4, atol=1e-4)


def test_donated_arguments_under_transformations() -> None:
    plan = plan_of(lambda x, w: x @ w, X, W, donate_argnums=(0,))
    gradient = jax.grad(lambda w: plan(X, w).sum())(W)
    np.testing.assert_allclose(gradient, jax.grad(lambda w: (X @ w).sum())(W), rtol=1e-4, atol=1e-4)
    assert not X.is_deleted()


def test_a_step_can_be_looped_over() -> None:
    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        return w - 0.1 * jax.grad(lambda w: ((x @ w) ** 2).mean())(w)

    plan = plan_of(step, W, X, donate_argnums=(0,))
    w, wanted = jnp.array(W), W
    for _ in range(3):
        w, wanted = plan(w, X), step(wanted, X)
    np.testing.assert_allclose(w, wanted, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(jax.lax.fori_loop(0, 3, lambda _, w: plan.jit(w, X), W), wanted, rtol=1e-4, atol=1e-4)
