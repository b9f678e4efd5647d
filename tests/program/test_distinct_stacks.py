"""Stacks of one type in several loops: other shapes, the same results."""

from __future__ import annotations

from typing import Any

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from planner.program.jaxpr.bodies import opened, structure_of
from planner.program.jaxpr.distinct_stacks import with_distinct_stacks

MOST = 3
X = jnp.arange(12.0).reshape(4, 3) / 12
W = jnp.linspace(-1.0, 1.0, 45).reshape(5, 3, 3)


def _layers(x: Any, weights: Any) -> Any:
    def layer(x: Any, w: Any) -> Any:
        made = jnp.tanh(x @ w)
        return made, made

    return jax.lax.scan(layer, x, weights)


def _loops(count: int) -> Any:
    def fn(x: Any, weights: Any) -> Any:
        found = []
        for _ in range(count):
            x, stack = _layers(x, weights)
            found.append(stack)
        return x, found

    return fn


def _stacks(jaxpr: Any) -> list[tuple[int, ...]]:
    """The shapes of the stacks of a program's loops, in the order of the loops."""
    found: list[tuple[int, ...]] = []
    for eqn in opened(jaxpr).eqns:
        structure = structure_of(eqn)
        if structure is not None and structure.kind == "scan":
            found += [var.aval.shape for var in eqn.outvars[structure.num_carry :]]
    return found


@pytest.mark.parametrize("count", [2, 3, 5])
def test_each_loop_has_stacks_of_a_shape_of_its_own(count: int) -> None:
    jaxpr = jax.make_jaxpr(_loops(count))(X, W)
    new = with_distinct_stacks(jaxpr, MOST)
    ones = [min(number, MOST - 1) for number in range(count)]
    assert _stacks(new) == [(5, *(1,) * many, 4, 3) for many in ones]
    for one, other in zip(jex_core.jaxpr_as_fun(new)(X, W), jax.tree.leaves(_loops(count)(X, W)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_loops_in_loops_and_their_gradients() -> None:
    def loss(weights: Any, batches: Any) -> Any:
        def part(total: Any, x: Any) -> Any:
            x, _ = _layers(x, weights)
            x, stack = _layers(x, weights)
            return total + jnp.sum(x**2) + jnp.mean(stack), x

        return jax.lax.scan(part, 0.0, batches)[0]

    batches = jnp.stack([X, X + 0.5])
    jaxpr = jax.make_jaxpr(jax.grad(loss))(W, batches)
    new = with_distinct_stacks(jaxpr, MOST)
    assert new is not jaxpr
    np.testing.assert_array_equal(jex_core.jaxpr_as_fun(new)(W, batches)[0], jax.jit(jax.grad(loss))(W, batches))


def test_what_has_no_stacks_alike_is_left_alone() -> None:
    def fn(x: Any, weights: Any) -> Any:
        x, first = _layers(x, weights)
        return first, _layers(x[:2], weights)[1]

    for jaxpr in (jax.make_jaxpr(_loops(1))(X, W), jax.make_jaxpr(fn)(X, W)):
        assert with_distinct_stacks(jaxpr, MOST) is jaxpr


def test_a_shard_map_is_left_alone() -> None:
    """Its arrays have types of their own, which say along which axes they differ."""
    mesh = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Auto,))
    mapped = jax.shard_map(_loops(2), mesh=mesh, in_specs=(P("x"), P()), out_specs=(P("x"), [P(None, "x")] * 2))
    jaxpr = jax.make_jaxpr(mapped)(X, W)
    assert with_distinct_stacks(jaxpr, MOST) is jaxpr
