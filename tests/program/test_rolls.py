"""Rolls: what programs write as slices put together is one op that can be split, with the same results and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import planner
from planner.program.graph import Aval
from planner.program.jaxpr.flatten import build_graph
from planner.program.trace import trace
from planner.rules.primitives import rule_of
from planner.testing import assert_same_as_single_device

X = np.random.default_rng(0).standard_normal((16, 8, 24)).astype(np.float32)


def _heat(u: jax.Array) -> jax.Array:
    def step(_: int, u: jax.Array) -> jax.Array:
        return u + 0.1 * (sum(jnp.roll(u, by, dim) for dim in range(3) for by in (1, -1)) - 6 * u)

    return lax.fori_loop(0, 3, step, u)


def _squared(u: jax.Array) -> jax.Array:
    return jnp.sum(jnp.roll(u, (1, -2), (0, 2)) ** 2 * jnp.roll(u, 2, 0))


FOUND: dict[str, tuple[Callable[..., Any], list[tuple[int, int]]]] = {
    "up": (lambda x: jnp.roll(x, 3, 0), [(0, 3)]),
    "down": (lambda x: jnp.roll(x, -3, 2), [(2, -3)]),
    "the short way around": (lambda x: jnp.roll(x, 15, 0), [(0, -1)]),
    "two dims": (lambda x: jnp.roll(x, (1, -2), (0, 2)), [(0, 1), (2, -2)]),
    "by hand": (lambda x: jnp.concatenate([x[:, -2:], x[:, :-2]], axis=1), [(1, 2)]),
    "of a batch": (jax.vmap(lambda x: jnp.roll(x, 1, 0)), [(1, 1)]),
    "gradient": (lambda x: jax.vjp(lambda x: jnp.roll(x, 1, 0), x)[1](x)[0], [(0, -1)]),
    "an end left out": (lambda x: jnp.concatenate([x[:, -2:], x[:, 1:-2]], axis=1), []),
    "the parts in order": (lambda x: jnp.concatenate([x[:, :2], x[:, 2:]], axis=1), []),
    "of two arrays": (lambda x: jnp.concatenate([x[:, -2:], (2 * x)[:, :-2]], axis=1), []),
    "every second": (lambda x: jnp.concatenate([x[:, 4::2], x[:, :4]], axis=1), []),
}


@pytest.mark.parametrize("name", FOUND)
def test_a_roll_is_one_op(name: str) -> None:
    fn, shifts = FOUND[name]
    program = trace(fn, (X,))
    made = build_graph(program).of_kinds(("roll",))
    assert [(op.params["dimension"], op.params["shift"]) for op in made] == shifts
    np.testing.assert_array_equal(planner.plan(fn, (X,), mesh={"x": 1})(X), fn(X))


@pytest.mark.parametrize("fn", [_heat, _squared, jax.grad(_squared)], ids=["steps", "forward", "gradient"])
@pytest.mark.parametrize("mesh", [{"x": 8}, {"x": 4, "y": 2}, {"x": 2, "y": 2, "z": 2}], ids=str)
def test_split_rolls_are_those_of_one_device(fn: Callable[..., Any], mesh: dict[str, int]) -> None:
    spec = jax.sharding.PartitionSpec(*mesh)
    plan = assert_same_as_single_device(fn, (X,), mesh=mesh, pins={"u": spec})
    assert plan.in_specs[0] == spec
    assert plan.verify(X).collectives.ok
    if fn is _heat:
        assert "collective-permute" in {collective.kind for collective in plan.predicted.collectives}


def test_split_rolls_are_differentiable() -> None:
    plan = planner.plan(_heat, (X,), mesh={"x": 4, "y": 2}, pins={"u": jax.sharding.PartitionSpec("x", None, "y")})

    def energy(step: Callable[..., Any], x: Any) -> Any:
        return jnp.sum(step(x) ** 2)

    expected = jax.grad(lambda x: energy(_heat, x))(X)
    np.testing.assert_allclose(jax.grad(lambda x: energy(plan.jit, x))(X), expected, rtol=1e-4, atol=1e-5)


def test_a_part_holds_what_its_neighbour_needs() -> None:
    """Shifted by five elements, sixteen can be split in two: parts of four would need two neighbours."""
    (op,) = build_graph(trace(lambda x: jnp.roll(x, 5, 0), (X,))).of_kinds(("roll",))
    aval = Aval(shape=X.shape, dtype="float32", itemsize=4)
    rule = rule_of("roll", [aval], [aval], op.params)
    assert str(rule) == "(a b) c d -> (a b) c d | replicate b | permute a"
    assert rule is not None
    assert rule.sizes == (2, 8, 8, 24)
