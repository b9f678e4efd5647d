"""What is computed alike from equal values is known as one value, through loops, branches and kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.sharding import PartitionSpec as P

from planner.program.jaxpr.remat.value_numbering import ValueNumbers

X = jax.ShapeDtypeStruct((4, 8), jnp.float32)
Two = Callable[..., tuple[jax.Array, jax.Array]]


def same(fn: Two, *args: Any) -> bool:
    """Whether the two results of a function have one number."""
    jaxpr = jax.make_jaxpr(fn)(*(args or (X,)))
    values = ValueNumbers()
    numbers = {var: values.new() for var in jaxpr.jaxpr.invars}
    numbers.update(zip(jaxpr.jaxpr.constvars, map(values.constant, jaxpr.consts), strict=True))
    values.walk(jaxpr.jaxpr.eqns, numbers, 0)
    first, second = (values.read(atom, numbers) for atom in jaxpr.jaxpr.outvars)
    return first == second


def summed(x: jax.Array, *, start: float = 0.0, factor: float = 1.0, **how: Any) -> Any:
    return lax.scan(lambda c, row: (c + jnp.sin(row).sum() * factor, None), start, x, **how)[0]


def test_loops_that_carry_alike() -> None:
    assert same(lambda x: (summed(x), summed(x)))
    assert same(lambda x: (summed(x), jax.checkpoint(summed)(x)))


@pytest.mark.parametrize("other", [{"start": 1.0}, {"factor": 2.0}, {"reverse": True}])
def test_loops_of_another_start_step_or_length(other: dict[str, Any]) -> None:
    assert not same(lambda x: (summed(x), summed(x, **other)))


def test_a_loop_that_carries_and_stacks_more() -> None:
    def more(x: jax.Array) -> Any:
        def step(carry: Any, row: jax.Array) -> Any:
            total, last = carry
            return (total + jnp.sin(row).sum() * 1.0, last * total), last

        (total, _), stack = lax.scan(step, (0.0, 1.0), x)
        return total + 0 * stack.sum()

    def carried(x: jax.Array) -> Any:
        (total, _), _ = lax.scan(lambda c, row: ((c[0] + jnp.sin(row).sum() * 1.0, c[1] * c[0]), c[1]), (0.0, 1.0), x)
        return total, summed(x)

    assert same(carried)
    assert not same(lambda x: (more(x), summed(x)))


def test_carries_that_depend_on_one_another_are_known_together() -> None:
    def pair(x: jax.Array, by: float) -> Any:
        return lax.scan(lambda c, row: ((c[1] + row.sum(), c[0] * by), None), (0.0, 1.0), x)[0][0]

    assert same(lambda x: (pair(x, 2.0), pair(x, 2.0)))
    assert not same(lambda x: (pair(x, 2.0), pair(x, 3.0)))


def test_loops_that_read_from_a_stack_what_equal_loops_compute() -> None:
    def two(x: jax.Array, factor: float) -> Any:
        def step(carry: Any, row: jax.Array) -> Any:
            left, right = carry
            hard = jnp.sin(left * right).sum()
            return (left * hard + row, right + hard), hard

        def again(carry: Any, taken: Any) -> Any:
            row, hard = taken
            return (carry[0] * hard + row, carry[1] + hard * factor), None

        (left, right), hards = lax.scan(step, (x[0], 0.0), x)
        return left, right, lax.scan(again, (x[0], 0.0), (x, hards))[0]

    assert same(lambda x: (two(x, 1.0)[0], two(x, 1.0)[2][0]))
    assert same(lambda x: (two(x, 2.0)[0], two(x, 2.0)[2][0]))
    assert not same(lambda x: (two(x, 2.0)[1], two(x, 2.0)[2][1]))


def test_branches_that_take_what_equal_branches_return() -> None:
    def both(x: jax.Array, which: Callable[[jax.Array], jax.Array]) -> Any:
        wanted = x.sum() > 0
        hard, last = lax.cond(
            wanted, lambda: (jnp.sin(x), jnp.tan(jnp.sin(x))), lambda: (jnp.cos(x), jnp.exp(jnp.cos(x)))
        )
        return last, lax.cond(wanted, jnp.tan, which, hard)

    assert same(lambda x: both(x, jnp.exp))
    assert not same(lambda x: both(x, jnp.tan))


def test_loops_in_loops() -> None:
    def nested(x: jax.Array, start: float) -> jax.Array:
        return lax.scan(lambda c, row: (c + summed(row[None] * c, start=start), c), 1.0, x)[1]

    assert same(lambda x: (nested(x, 0.0), nested(x, 0.0)))
    assert not same(lambda x: (nested(x, 0.0), nested(x, 1.0)))


def test_loops_without_a_length_and_branches() -> None:
    def until(x: jax.Array, limit: float) -> jax.Array:
        return lax.while_loop(lambda c: c.sum() < limit, lambda c: c * 2 + x, x)

    def either(x: jax.Array, other: Callable[[jax.Array], jax.Array]) -> jax.Array:
        return lax.cond(x.sum() > 0, jnp.sin, other, x)

    assert same(lambda x: (until(x, 9.0), until(x, 9.0)))
    assert not same(lambda x: (until(x, 9.0), until(x, 8.0)))
    assert same(lambda x: (either(x, jnp.cos), either(x, jnp.cos)))
    assert not same(lambda x: (either(x, jnp.cos), either(x, jnp.tan)))


def kernel(x: jax.Array, factor: float) -> jax.Array:
    def scaled(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = x_ref[...] * factor

    blocks = pl.BlockSpec((2, 8), lambda i: (i, 0))
    call = pl.pallas_call(scaled, grid=(2,), in_specs=[blocks], out_specs=blocks, out_shape=X, interpret=True)
    return call(x)


def test_kernels_are_compared_by_what_they_compute() -> None:
    assert same(lambda x: (kernel(x, 2.0), kernel(x, 2.0)))
    assert not same(lambda x: (kernel(x, 2.0), kernel(x, 3.0)))


def test_rules_of_derivatives_are_seen_through() -> None:
    ruled = jax.custom_vjp(jnp.sin)
    ruled.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g * jnp.cos(x),))
    assert same(lambda x: (ruled(x), jnp.sin(x)))


def test_constants_are_compared_by_what_they_hold() -> None:
    one, equal, other = (np.arange(8, dtype=np.float32) + n for n in (0, 0, 1))
    assert same(lambda x: (x + one, x + equal))
    assert not same(lambda x: (x + one, x + other))


def test_effects_are_never_merged() -> None:
    def printed(x: jax.Array) -> Any:
        def step(c: jax.Array, row: jax.Array) -> Any:
            jax.debug.print("{}", row.sum())
            return c + row.sum(), None

        return lax.scan(step, jnp.float32(0), x)[0]

    assert not same(lambda x: (printed(x), printed(x)))


def test_bodies_on_every_device_are_compared_by_parts() -> None:
    mesh = jax.make_mesh((4,), ("x",), devices=jax.devices()[:4], axis_types=(jax.sharding.AxisType.Auto,))

    def on_parts(fn: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
        return jax.shard_map(fn, mesh=mesh, in_specs=P("x"), out_specs=P("x"))(x)

    def total(x: jax.Array) -> jax.Array:
        return x + lax.psum(x, "x")

    assert same(lambda x: (on_parts(total, x), on_parts(total, x)))
    assert not same(lambda x: (on_parts(total, x), on_parts(jnp.sin, x)))
    assert same(lambda x: (on_parts(jnp.cos, on_parts(jnp.sin, x)), on_parts(lambda y: jnp.cos(jnp.sin(y)), x)))
