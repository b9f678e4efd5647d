"""Products of matrices that their own kernels reduce are not in memory: nearest neighbours, assignments to clusters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import planner
from planner.plans.plan import Plan

POINTS = jax.ShapeDtypeStruct((16384, 128), jnp.float32)
CENTRES = jax.ShapeDtypeStruct((128, 8192), jnp.float32)
PRODUCT_BYTES = 16384 * 8192 * 4
LITTLE = 0.05


def _distances(x: jax.Array, centres: jax.Array) -> jax.Array:
    return (x * x).sum(1, keepdims=True) - 2 * x @ centres + (centres * centres).sum(0)


def _plan(fn: Callable[..., Any], args: Any = (POINTS, CENTRES), pins: Any = None) -> Plan:
    return planner.plan(fn, args, topology="v5e:1x2", mesh={"x": 2}, pins=pins, options=planner.Options(check="never"))


def _nearest(distances: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jnp.argmin(distances, 1), distances.min(1).mean()


REDUCED: dict[str, Callable[..., Any]] = {
    "the nearest": lambda x, centres: jnp.argmin(_distances(x, centres), 1),
    "of every centre the nearest": lambda x, centres: jnp.argmin(_distances(x, centres), 0),
    "the nearest and how far it is": lambda x, centres: _nearest(_distances(x, centres)),
    "of what another product is taken from": lambda x, centres: jnp.square(x @ centres - x[0] @ centres).sum(1),
    "a norm": lambda x, centres: ((x @ centres) ** 2).sum(),
}


@pytest.mark.parametrize("name", REDUCED)
def test_what_a_kernel_reduces_at_once_is_not_in_memory(name: str) -> None:
    predicted = _plan(REDUCED[name]).predicted
    assert predicted.traffic_bytes < LITTLE * PRODUCT_BYTES
    assert predicted.peak_bytes < LITTLE * PRODUCT_BYTES


def test_what_is_read_again_with_its_reduction_is_in_memory() -> None:
    predicted = _plan(lambda x, centres: jax.nn.softmax(x @ centres).max(1)).predicted
    assert predicted.traffic_bytes > PRODUCT_BYTES / 2
    assert predicted.peak_bytes > PRODUCT_BYTES / 2


def test_partial_sums_of_what_is_reduced_are_in_memory() -> None:
    """The contracted dim is split, and longer than the product's, so that summing the product moves least."""
    long = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((8192, 65536), (65536, 8192))]
    predicted = _plan(lambda x, y: jnp.argmin(x @ y, 1), long, {"x": P(None, "x"), "y": P("x")}).predicted
    assert {collective.kind for collective in predicted.collectives} <= {"all-reduce", "reduce-scatter"}
    assert predicted.peak_bytes - predicted.argument_bytes > 8192 * 8192 * 4 / 2
