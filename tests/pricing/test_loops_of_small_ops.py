"""Loops of many small ops on a TPU: what stays on the chip, what a kernel takes at the least, and which plan wins."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import planner
from cost_models import CHIPS
from planner.plans.plan import Plan

NEVER = planner.Options(check="never")
BODIES, TRIPS = 8, 500


def _plan(fn: Callable[..., Any], args: Any, topology: str = "v5e:4x4", **keywords: Any) -> Plan:
    return planner.plan(fn, args, topology=topology, options=NEVER, **keywords)


def _simulated(position: jax.Array, velocity: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Bodies that push one another apart, in many environments."""

    def step(state: tuple[jax.Array, jax.Array], _: None) -> tuple[tuple[jax.Array, jax.Array], None]:
        position, velocity = state
        apart = position[:, :, None] - position[:, None]
        near = jnp.sqrt(jnp.sum(apart * apart, -1, keepdims=True) + 1e-3)
        force = jnp.sum(jnp.where(near < 1, apart / near, 0.0), 2)
        velocity = 0.99 * velocity + 0.01 * force - 0.01 * jnp.cross(velocity, position)
        return (position + 0.01 * velocity, velocity), None

    return jax.lax.scan(step, (position, velocity), None, length=TRIPS)[0]


def _bodies(environments: int) -> tuple[jax.ShapeDtypeStruct, ...]:
    return (jax.ShapeDtypeStruct((environments, BODIES, 3), jnp.float32),) * 2


def test_what_a_loop_carries_and_makes_on_the_chip_costs_no_traffic() -> None:
    """The arguments are read and the results written, whatever the trips."""
    environments = 4096
    predicted = _plan(_simulated, _bodies(environments), "v5e:2x2", mesh={"x": 1}).predicted
    assert predicted.traffic_bytes < 8 * 4 * environments * BODIES * 3


def test_what_does_not_fit_the_chip_is_moved_in_every_trip() -> None:
    environments = 2**21
    predicted = _plan(_simulated, _bodies(environments), "v5e:2x2", mesh={"x": 1}).predicted
    assert predicted.traffic_bytes > TRIPS * 4 * 4 * environments * BODIES * 3


CACHED, WIDTH = 32, 1024
"""Layers of a cache, and features."""


def _cache_traffic(rows: int) -> float:
    """The bytes that a loop moves which reads a slice of the cache on its carry in every trip."""

    def layered(cache: jax.Array, x: jax.Array) -> jax.Array:
        def step(state: tuple[jax.Array, jax.Array], i: jax.Array) -> tuple[tuple[jax.Array, jax.Array], None]:
            cache, x = state
            cache = jax.lax.dynamic_update_slice(cache, x[None, :1], (i, 0, 0))
            return (cache, x @ jax.lax.dynamic_index_in_dim(cache, i, keepdims=False).T @ cache[0]), None

        return jax.lax.scan(step, (cache, x), jnp.arange(CACHED))[0][1]

    args = (
        jax.ShapeDtypeStruct((CACHED, rows, WIDTH), jnp.bfloat16),
        jax.ShapeDtypeStruct((8, WIDTH), jnp.bfloat16),
    )
    return _plan(layered, args, "v5e:2x2", mesh={"x": 1}, donate_argnums=0).predicted.traffic_bytes


def test_a_cache_on_a_loops_carry_is_read_from_memory() -> None:
    """A slice of it is small, but not the whole that it is a slice of."""
    assert _cache_traffic(4096) > CACHED * 4096 * WIDTH * 2


def test_so_are_slices_that_would_stay_on_the_chip() -> None:
    """Each trip picks another."""
    assert _cache_traffic(1024) == pytest.approx(CACHED * 1024 * WIDTH * 2)


@pytest.mark.parametrize(("topology", "chip"), [("v5e:2x2", "v5e"), ("h100:1x1", "h100")])
def test_no_kernel_of_a_loop_takes_less_than_its_latency(topology: str, chip: str) -> None:
    """Every trip runs one at least."""

    def steps(x: jax.Array) -> jax.Array:
        def step(x: jax.Array, _: None) -> tuple[jax.Array, None]:
            return (x - jnp.max(x)) / jnp.sum(jnp.exp(x - jnp.max(x))), None

        return jax.lax.scan(step, x, None, length=1000)[0]

    args = (jax.ShapeDtypeStruct((8, 128), jnp.float32),)
    predicted = _plan(steps, args, topology, mesh={"x": 1}).predicted
    assert predicted.compute_seconds >= 1000 * CHIPS[chip].kernel_latency_s > 0


def test_products_with_vectors_fill_up_no_tiles() -> None:
    """The vector unit computes them, of every environment by itself."""

    def products(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.einsum("ebi,ebi->eb", a, b)

    def sums(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.sum(a * b, -1)

    seconds = [_plan(fn, _bodies(2**14), "v5e:2x2", mesh={"x": 1}).predicted.compute_seconds for fn in (products, sums)]
    assert seconds[0] == pytest.approx(seconds[1], rel=0.3)


def test_environments_are_split_over_all_devices() -> None:
    """Before one device, and before half of them."""
    args = _bodies(8192)
    best = _plan(_simulated, args)
    split, half, one = (
        _plan(_simulated, args, mesh={"x": n}, pins={"position": P("x"), "velocity": P("x")}) for n in (16, 8, 1)
    )
    assert all(spec[0] is not None for spec in jax.tree.leaves(best.in_specs, is_leaf=lambda x: isinstance(x, P)))
    values = [plan.predicted.seconds for plan in (best, split, half, one)]
    assert values[0] <= values[1] * (1 + 1e-9)
    assert all(a < b for a, b in itertools.pairwise(values[1:]))


def test_arrays_that_stay_on_the_chip_take_none_of_the_memory_beside_it() -> None:
    environments = 4096

    def stacked(position: jax.Array, velocity: jax.Array) -> jax.Array:
        def step(x: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            x = jnp.cross(x, velocity) + x
            return x, x

        _, path = jax.lax.scan(step, position, None, length=16)
        return jax.lax.scan(lambda total, x: (0.9 * total + x, None), position, path, reverse=True)[0]

    predicted = _plan(stacked, _bodies(environments), "v5e:2x2", mesh={"x": 1}).predicted
    assert predicted.peak_bytes < 2 * (predicted.argument_bytes + predicted.output_bytes)
