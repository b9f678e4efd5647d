"""Interiors: what is computed of slices of a grid is computed on the grid, with the same results, and can be split."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import jaxpr_as_fun
from jax.sharding import PartitionSpec

import planner
from planner.program.jaxpr.bodies import equations_of
from planner.program.jaxpr.canonicalize.interiors import with_interiors
from planner.program.jaxpr.canonicalize.rolls import with_rolls
from planner.testing import assert_same_as_single_device

GRID = 1 + np.random.default_rng(0).random((32, 64)).astype(np.float32)
FIELDS = 1 + np.random.default_rng(1).random((3, 64)).astype(np.float32)


def _diffusion(u: jax.Array) -> jax.Array:
    return u.at[1:-1, 1:-1].set(u[2:, 1:-1] * 2 + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1])


def _with_borders(u: jax.Array) -> jax.Array:
    return lax.fori_loop(0, 3, lambda _, u: _diffusion(u).at[0].set(u[1]).at[:, -1].set(0.5), u)


def _insulated(u: jax.Array) -> jax.Array:
    around = jnp.pad(u, 1, mode="edge")
    return u + 0.1 * (around[2:, 1:-1] + around[:-2, 1:-1] * 3 + around[1:-1, 2:] + around[1:-1, :-2] - 4 * u)


def _insulated_for_long(u: jax.Array) -> jax.Array:
    return lax.fori_loop(0, 3, lambda _, u: _insulated(u), u)


def _variation(u: jax.Array) -> jax.Array:
    return jnp.sum(jnp.diff(u, axis=0) ** 2) + jnp.max(jnp.diff(u, axis=1) ** 2)


def _waves(u: jax.Array) -> tuple[jax.Array, ...]:
    """Electric and magnetic fields, each ahead of the other by half a cell."""
    field, x, y = u, 2 * u, 3 * u
    x = x.at[:, :-1].add(-0.5 * (field[:, 1:] - field[:, :-1]))
    y = y.at[:-1].add(0.5 * (field[1:] - field[:-1]))
    return field.at[1:-1, 1:-1].add(y[1:-1, 1:-1] - y[:-2, 1:-1] - x[1:-1, 1:-1] + x[1:-1, :-2]), x, y


def _gas(q: jax.Array) -> jax.Array:
    """Fluxes of density, momentum and energy between cells."""

    def flux(q: jax.Array) -> jax.Array:
        density, momentum, energy = q
        speed = momentum / density
        pressure = 0.4 * (energy - 0.5 * momentum * speed)
        return jnp.stack([momentum, momentum * speed + pressure, speed * (energy + pressure)])

    between = 0.5 * (flux(q[:, 1:]) + flux(q[:, :-1])) - 0.5 * (q[:, 1:] - q[:, :-1])
    return q.at[:, 1:-1].add(-0.1 * (between[:, 1:] - between[:, :-1]))


@jax.jit
def _second_difference(around: jax.Array) -> jax.Array:
    return around[2:] + around[:-2] - 2 * around[1:-1]


def _of_helper(u: jax.Array) -> jax.Array:
    return u + jnp.pad(_second_difference(u), ((1, 1), (0, 0)))


def _around_axis(u: jax.Array) -> jax.Array:
    radius = jnp.sum(u, 1)
    return u.at[1:-1].add((u[2:] - u[:-2]) / radius[1:-1, None])


def _window_moves_on(u: jax.Array) -> jax.Array:
    return jnp.concatenate([u[1:], jnp.sin(u[:1])])


def _mirrored(u: jax.Array) -> jax.Array:
    return _second_difference(jnp.pad(u, ((1, 1), (0, 0)), mode="symmetric"))


def _read_alone(u: jax.Array) -> tuple[jax.Array, jax.Array]:
    inner = jnp.sin(u[1:-1])
    return u.at[1:-1].set(inner), jnp.cumsum(inner, 0)


def _energy(fn: Callable[[jax.Array], Any]) -> Callable[[jax.Array], jax.Array]:
    return jax.grad(lambda u: sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(fn(u))))


CLOSED: dict[str, tuple[Callable[[jax.Array], Any], np.ndarray[Any, Any]]] = {
    "diffusion": (_diffusion, GRID),
    "with borders": (_with_borders, GRID),
    "insulated": (_insulated, GRID),
    "slopes": (lambda u: jnp.gradient(u), GRID),
    "variation": (_variation, GRID),
    "variation's gradient": (_energy(_variation), GRID),
    "waves": (_waves, GRID),
    "diffusion's gradient": (_energy(_diffusion), GRID),
    "gas": (_gas, FIELDS),
    "helper": (_of_helper, GRID),
    "around an axis": (_around_axis, GRID),
    "a window moves on": (_window_moves_on, GRID),
    "an update": (lambda u: lax.dynamic_update_slice(u, u[2:, 1:-1] * 2, (1, 1)), GRID),
}


def _rewritten(fn: Callable[..., Any], x: Any) -> tuple[Any, Any]:
    rolled = with_rolls(jax.make_jaxpr(fn)(x))
    return rolled, with_interiors(rolled)


def _same(fn: Callable[..., Any], x: Any, rewritten: Any) -> None:
    for ours, theirs in zip(jaxpr_as_fun(rewritten)(x), jax.tree.leaves(fn(jnp.asarray(x))), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CLOSED)
def test_what_is_computed_of_slices_is_computed_on_the_grid(name: str) -> None:
    fn, x = CLOSED[name]
    _, rewritten = _rewritten(fn, x)
    _same(fn, x, rewritten)
    extents = {*x.shape, 0, 1, 2, 3}
    odd = [eqn for eqn in equations_of(rewritten) for var in eqn.outvars if not extents.issuperset(var.aval.shape)]
    assert not odd, f"{odd[0].primitive} makes {odd[0].outvars[0].aval}"


def test_borders_that_are_mirrored_stay_slices_of_rows() -> None:
    _, rewritten = _rewritten(_mirrored, GRID)
    _same(_mirrored, GRID, rewritten)


def test_an_interior_that_is_read_alone_is_cut_from_the_grid() -> None:
    _, rewritten = _rewritten(_read_alone, GRID)
    _same(_read_alone, GRID, rewritten)
    sines = [eqn.outvars[0].aval.shape for eqn in equations_of(rewritten) if eqn.primitive.name == "sin"]
    assert sines == [GRID.shape]


@pytest.mark.parametrize(
    "fn",
    [
        lambda u: u.at[0].set(1.0),  # a row is written in place where nothing moves
        lambda u: jnp.sum(jnp.cumsum(u[1:], 0)),  # running sums are of the slice
        lambda u: jnp.concatenate([-u[:, 32:], u[:, :32]], 1),  # halves, as rotary embeddings have
        lambda u: u[:31] * 2,  # nothing makes it whole again
        lambda u: u.reshape(-1, 32)[1:].reshape(9, 7, 32)[1:],  # the slice divides better than what it is cut from
    ],
)
def test_other_slices_stay(fn: Callable[[jax.Array], jax.Array]) -> None:
    rolled, rewritten = _rewritten(fn, GRID)
    assert rewritten is rolled


@pytest.mark.parametrize("fn", [_with_borders, _insulated, _waves])
def test_interiors_are_the_same_in_parts(fn: Callable[[jax.Array], Any]) -> None:
    assert_same_as_single_device(fn, (GRID,), mesh={"x": 4, "y": 2}, pins={"u": PartitionSpec("x", "y")})


@pytest.mark.parametrize("fn", [_with_borders, _insulated_for_long, _waves])
def test_large_grids_are_split_in_space(fn: Callable[[jax.Array], Any]) -> None:
    grid = jax.ShapeDtypeStruct((8192, 8192), jnp.float32)
    plan = planner.plan(fn, (grid,), topology="v5e:4x4", options=planner.Options(check="never", workers=1))
    assert math.prod(plan.decision.mesh_shape.values()) == 16
    assert {c.kind for c in plan.predicted.collectives} == {"collective-permute"}
