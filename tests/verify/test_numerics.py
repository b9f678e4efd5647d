"""How far results may be from the single device's: what rounding makes of them, and no more."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import planner
from tests.small import NEVER

SUM_SPLIT = {"up": P(None, "data"), "down": P("data")}
"""The sum over 2048 products, which one device makes one after the other, is made in eight parts."""


def loss(up: jax.Array, down: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.mean((jax.nn.relu(x @ up) @ down - x) ** 2)


def equal_terms() -> tuple[jax.Array, ...]:
    """Sums of products that are all the same are rounded the same way at every step, as far as a device adds one by one."""
    return jnp.full((512, 2048), 0.01), jnp.full((2048, 512), 0.01), jnp.ones((1024, 512))


def test_sums_of_equal_terms_that_one_device_rounds_all_alike_are_no_difference() -> None:
    args = equal_terms()
    verification = planner.plan(loss, args, mesh={"data": 8}, pins=SUM_SPLIT, options=NEVER).verify(*args)
    assert verification.numerics.ok, verification


def test_what_is_not_rounding_is_a_difference() -> None:
    args = equal_terms()
    plan = planner.plan(loss, args, mesh={"data": 8}, pins=SUM_SPLIT, options=NEVER)
    assert plan.verify(*args, reference=lambda *args: loss(*args) * 1.0001).numerics.ok is False
