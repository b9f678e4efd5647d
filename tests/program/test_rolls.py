"""Rolls: what programs write as slices and paddings is one op that can be split, with the same results and gradients."""

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
from planner.program.tracing.trace import trace
from planner.rules.primitives import rule_of
from planner.testing import assert_same_as_single_device

X = np.random.default_rng(0).standard_normal((16, 8, 24)).astype(np.float32)


def _heat(u: jax.Array) -> jax.Array:
    def step(_: int, u: jax.Array) -> jax.Array:
        return u + 0.1 * (sum(jnp.roll(u, by, dim) for dim in range(3) for by in (1, -1)) - 6 * u)

    return lax.fori_loop(0, 3, step, u)


def _squared(u: jax.Array) -> jax.Array:
    return jnp.sum(jnp.roll(u, (1, -2), (0, 2)) ** 2 * jnp.roll(u, 2, 0))


def _five_points(u: jax.Array) -> jax.Array:
    around = jnp.pad(u, ((1, 1), (0, 0), (1, 1)))
    return around[2:, :, 1:-1] + around[:-2, :, 1:-1] + around[1:-1, :, 2:] + around[1:-1, :, :-2] - 4 * u


def _periodic(u: jax.Array) -> jax.Array:
    around = jnp.pad(u, ((1, 1), (0, 0), (1, 1)), mode="wrap")
    return around[:-2, :, 1:-1] * around[2:, :, 2:]


def _waves(u: jax.Array) -> jax.Array:
    def step(carry: tuple[jax.Array, jax.Array], _: None) -> tuple[tuple[jax.Array, jax.Array], None]:
        u, v = carry
        v = v + 0.1 * _five_points(u)
        return (u + 0.1 * v, v), None

    return lax.scan(step, (u, jnp.zeros_like(u)), None, length=3)[0][0]


def _energy(fn: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    return lambda u: jnp.sum(jnp.sin(fn(u)))


ZERO, RING = 0.0, None
BESIDE = [(0, -1, ZERO), (0, 1, ZERO), (2, -1, ZERO), (2, 1, ZERO)]

FOUND: dict[str, tuple[Callable[..., Any], list[tuple[int, int, float | None]]]] = {
    "up": (lambda x: jnp.roll(x, 3, 0), [(0, 3, RING)]),
    "down": (lambda x: jnp.roll(x, -3, 2), [(2, -3, RING)]),
    "the short way around": (lambda x: jnp.roll(x, 15, 0), [(0, -1, RING)]),
    "two dims": (lambda x: jnp.roll(x, (1, -2), (0, 2)), [(0, 1, RING), (2, -2, RING)]),
    "one of two dims": (lambda x: jnp.roll(x, (1, 0), (0, 2)), [(0, 1, RING)]),
    "the other of two dims": (lambda x: jnp.roll(x, (0, -1), (0, 2)), [(2, -1, RING)]),
    "by hand": (lambda x: jnp.concatenate([x[:, -2:], x[:, :-2]], axis=1), [(1, 2, RING)]),
    "of a batch": (jax.vmap(lambda x: jnp.roll(x, 1, 0)), [(1, 1, RING)]),
    "gradient": (lambda x: jax.vjp(lambda x: jnp.roll(x, 1, 0), x)[1](x)[0], [(0, -1, RING)]),
    "an end left out": (lambda x: jnp.concatenate([x[:, -2:], x[:, 1:-2]], axis=1), []),
    "the parts in order": (lambda x: jnp.concatenate([x[:, :2], x[:, 2:]], axis=1), []),
    "of two arrays": (lambda x: jnp.concatenate([x[:, -2:], (2 * x)[:, :-2]], axis=1), []),
    "every second": (lambda x: jnp.concatenate([x[:, 4::2], x[:, :4]], axis=1), []),
    "after a border of sevens": (lambda x: jnp.pad(x, ((2, 0), (0, 0), (0, 0)), constant_values=7)[:-2], [(0, 2, 7.0)]),
    "cut and padded": (lambda x: jnp.pad(x[1:], ((0, 1), (0, 0), (0, 0))), [(0, -1, ZERO)]),
    "cut, and zeros behind it": (lambda x: jnp.concatenate([x[2:], jnp.zeros((2, 8, 24))]), [(0, -2, ZERO)]),
    "tokens": (lambda x: jax.vmap(lambda x: jnp.pad(x, ((1, 0), (0, 0)))[:-1])(x), [(1, 1, ZERO)]),
    "its end cut off and padded": (lambda x: jnp.pad(x[:-1], ((0, 1), (0, 0), (0, 0))), []),
    "two borders": (
        lambda x: jnp.pad(jnp.pad(x, ((1, 0), (0, 0), (0, 0))), ((1, 0), (0, 0), (0, 0)), constant_values=1)[:-2],
        [(0, 2, RING)],
    ),
    "more than there is": (lambda x: jnp.pad(x, ((16, 0), (0, 0), (0, 0)))[:16], []),
}
BACKWARD = [*BESIDE, *BESIDE[2:], *BESIDE[:2]]
COMPUTED: dict[str, tuple[Callable[..., Any], list[tuple[int, int, float | None]]]] = {
    "five points": (_five_points, BESIDE),
    "five points, gradient": (jax.grad(_energy(_five_points)), BACKWARD),
    "in a loop": (_waves, BESIDE),
    "in a loop, gradient": (jax.grad(_energy(_waves)), BACKWARD),
    "with the other end around": (_periodic, [(0, 1, RING), (0, -1, RING), (2, -1, RING)]),
    "with the other end around, gradient": (
        jax.grad(_energy(_periodic)),
        [(0, 1, RING), (0, -1, RING), (2, -1, RING), (0, 1, RING), (2, 1, RING), (0, -1, RING)],
    ),
}
"""Programs that compute besides, so that compilers may round otherwise."""


@pytest.mark.parametrize("name", [*FOUND, *COMPUTED])
def test_a_move_is_one_op(name: str) -> None:
    fn, moves = (FOUND | COMPUTED)[name]
    graph = build_graph(trace(fn, (X,)))
    made = [(op.params["dimension"], op.params["shift"], op.params["fill"]) for op in graph.of_kinds(("roll",))]
    assert made == moves
    assert not moves or not graph.of_kinds(("pad", "slice", "concatenate"))
    found = planner.plan(fn, (X,), mesh={"x": 1})(X)
    if name in FOUND:
        np.testing.assert_array_equal(found, fn(X))
    else:
        np.testing.assert_allclose(found, fn(X), rtol=1e-6, atol=1e-6)


SPLIT = {
    "steps": _heat,
    "forward": _squared,
    "gradient": jax.grad(_squared),
    "padded": _five_points,
    "padded, gradient": jax.grad(_energy(_waves)),
    "periodic, gradient": jax.grad(_energy(_periodic)),
    "sevens": FOUND["after a border of sevens"][0],
}


@pytest.mark.parametrize("fn", SPLIT.values(), ids=SPLIT)
@pytest.mark.parametrize("mesh", [{"x": 8}, {"x": 4, "y": 2}, {"x": 2, "y": 2, "z": 2}], ids=str)
def test_split_rolls_are_those_of_one_device(fn: Callable[..., Any], mesh: dict[str, int]) -> None:
    spec = jax.sharding.PartitionSpec(*mesh)
    plan = assert_same_as_single_device(fn, (X,), mesh=mesh, pins={"[ux]": spec})
    assert plan.in_specs[0] == spec
    assert not plan.verify(X).collectives.differs
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


def test_an_array_without_elements_is_rolled() -> None:
    def fn(none: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.roll(none, 1, 0), jnp.roll(none, 1, 1).sum() + jnp.roll(x, 1, 0).sum()

    none = np.zeros((0, 8), np.float32)
    assert_same_as_single_device(fn, (none, X))
