"""What a loop accumulates of partial results is summed over devices once, behind it, and computes what one device does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import planner
from planner.decisions.loop_accumulators import accumulators
from planner.program.form import AS_WRITTEN
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.trace import trace
from planner.transforms.apply import formed
from planner.verify.aot import unavailable_reason

TRIPS, BATCH, IN, OUT = 12, 1024, 8, 16


def _normal(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32) / 3


W, U, X = _normal(IN, OUT), _normal(OUT, OUT), _normal(TRIPS, BATCH, IN)


def _recurrent(w: jax.Array, u: jax.Array, x: jax.Array) -> jax.Array:
    def step(h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = jnp.tanh(x @ w + h @ u)
        return h, h

    return jnp.mean(lax.scan(step, jnp.zeros((BATCH, OUT)), x)[1] ** 2)


def _decaying(w: jax.Array, u: jax.Array, x: jax.Array) -> jax.Array:
    """Weights that every trip reads elementwise: their gradient is summed over the batch."""

    def step(h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = jnp.exp(-w) * h + x[:, :, None]
        return h, h.sum((1, 2))

    return jnp.mean(lax.scan(step, jnp.zeros((BATCH, IN, OUT)), x)[1] ** 2) + u.sum()


def _twice(w: jax.Array, u: jax.Array, x: jax.Array) -> jax.Array:
    """An accumulator that does not begin at zero, of two terms, one of them turned around."""

    def step(total: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
        return total + (x.T @ jnp.tanh(x @ w) + (jnp.sin(x @ w).T @ x).T), None

    return lax.scan(step, w, x)[0] @ u


def _ranked(w: jax.Array, u: jax.Array, x: jax.Array) -> Any:
    """Two accumulators of other ranks, behind a carry that is a count."""

    def step(carry: Any, x: jax.Array) -> Any:
        n, row, total = carry
        y = jnp.tanh(x @ w)
        return (n + 1, row + jnp.sin(y).sum(0), total + x.T @ y), None

    return lax.scan(step, (0, u[0], w), x)[0]


def _read(w: jax.Array, u: jax.Array, x: jax.Array) -> jax.Array:
    """What is accumulated is read in every trip: it cannot wait."""

    def step(total: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return total + x.T @ jnp.tanh(x @ w), jnp.max(total)

    total, seen = lax.scan(step, w, x)
    return total @ u + seen.sum()


def _mixed(w: jax.Array, u: jax.Array, x: jax.Array) -> jax.Array:
    """What is whole is added to what is partial: every device would add it once more."""

    def step(total: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
        return total + (x.T @ jnp.tanh(x @ w) + w), None

    return lax.scan(step, w, x)[0] @ u


def _stacked(w: jax.Array, u: jax.Array, x: jax.Array) -> jax.Array:
    """Gradients of layers, stacked by a loop inside the one that adds them up; of extents that no mesh here splits."""
    w = w[:, :-1]

    def step(total: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
        _, slices = lax.scan(lambda h, w: (jnp.tanh(h), jnp.sin(h).T[:-1] @ (h @ w)), x, jnp.stack([w, w + 1]))
        return total + slices, None

    return lax.scan(step, jnp.stack([w[1:], w[1:]]), x)[0] @ u[1:]


def _looked_up(w: jax.Array, u: jax.Array, x: jax.Array) -> jax.Array:
    """The gradient of a table, into whose rows every trip scatters."""

    def step(total: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
        rows = jnp.argmax(x, -1)
        return total + jnp.zeros((IN, OUT)).at[rows].add(jnp.tanh(x @ w)), None

    return lax.scan(step, w, x)[0] @ u


def _into(w: jax.Array, u: jax.Array, x: jax.Array) -> jax.Array:
    """Scattered into what is there already: every device would add that once more."""

    def step(total: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
        return total + w.at[jnp.argmax(x, -1)].add(jnp.tanh(x @ w)), None

    return lax.scan(step, w, x)[0] @ u


def _layers(w: jax.Array, u: jax.Array, x: jax.Array) -> jax.Array:
    """Gradients of groups of layers, which a user adds up over microbatches, scaled and in another type."""
    layers = jnp.stack([w[:, :IN], w[:, 1 : IN + 1], w[:, 2 : IN + 2], w[:, 3 : IN + 3]]).reshape(2, 2, IN, IN)

    def loss(layers: jax.Array, x: jax.Array) -> jax.Array:
        def group(h: jax.Array, of: jax.Array) -> tuple[jax.Array, None]:
            return lax.scan(lambda h, w: (jnp.tanh(h @ w), None), h, of)[0], None

        return jnp.mean(lax.scan(group, x, layers.astype(jnp.bfloat16))[0].astype(jnp.float32) ** 2)

    def step(total: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
        return total + jax.grad(loss)(layers, x.astype(jnp.bfloat16)) / TRIPS, None

    return lax.scan(step, layers, x)[0] @ u[:IN]


PROGRAMS: dict[str, tuple[Callable[..., Any], int]] = {
    "a recurrence": (jax.grad(_recurrent, argnums=(0, 1)), 2),
    "elementwise weights": (jax.grad(_decaying), 1),
    "two terms": (_twice, 1),
    "of several ranks": (_ranked, 2),
    "read on the way": (_read, 0),
    "whole and partial": (_mixed, 0),
    "stacked inside": (_stacked, 1),
    "groups of layers": (_layers, 1),
    "rows of a table": (_looked_up, 1),
    "rows of what is there": (_into, 0),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_accumulators_are_found(name: str) -> None:
    fn, count = PROGRAMS[name]
    assert len(accumulators(build_graph(formed(trace(fn, (W, U, X)), AS_WRITTEN)))) == count


@pytest.mark.parametrize("mesh", [{"x": 8}, {"x": 4, "y": 2}], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_sums_wait_for_the_end_of_the_loop(name: str, mesh: dict[str, int]) -> None:
    fn, count = PROGRAMS[name]
    plan = planner.plan(fn, (W, U, X), mesh=mesh, pins={"x": P(None, "x"), "w": P(), "u": P()})
    found = plan.verify(W, U, X)
    assert found.numerics.ok
    assert not found.collectives.differs
    counts = {c.count for c in plan.predicted.collectives if c.kind == "all-reduce" and c.bytes >= W.nbytes / 2}
    assert (counts == {1}) == bool(count), counts


@pytest.mark.parametrize("mode", ["drop", "clip", "promise_in_bounds"])
def test_every_part_of_a_table_takes_its_own_rows(mode: str) -> None:
    def fn(w: jax.Array, x: jax.Array) -> jax.Array:
        def step(total: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
            rows = jnp.argmax(x, -1) if mode == "promise_in_bounds" else 2 * jnp.argmax(x, -1)
            return total + jnp.zeros_like(w).at[rows].add(jnp.tanh(x @ w), mode=mode), None

        return lax.scan(step, jnp.zeros_like(w), x)[0]

    w, x = W[:, 1:], X[:, :516]  # y splits neither an odd number of columns nor a batch that x leaves odd
    plan = planner.plan(fn, (w, x), mesh={"x": 4, "y": 2}, pins={"x": P(None, "x"), "w": P(), "out": P("y")})
    found = plan.verify(w, x)
    assert found.numerics.ok
    assert not found.collectives.differs
    assert [(c.kind, c.axes, c.count) for c in plan.predicted.collectives] == [("all-reduce", ("x",), 1)]


def test_a_plan_that_sums_behind_a_loop_is_differentiable() -> None:
    plan = planner.plan(_twice, (W, U, X), mesh={"x": 8}, pins={"x": P(None, "x"), "w": P(), "u": P()})

    def total(fn: Callable[..., Any]) -> Any:
        return jax.grad(lambda w, u, x: jnp.mean(fn(w, u, x) ** 2) / 1000, argnums=(0, 1, 2))(W, U, X)

    for mine, expected in zip(total(plan.jit), total(_twice), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-3, atol=1e-4)


def _of_microbatches(whole: bool, *sizes: int) -> planner.Plan:
    """The gradient of a weight in microbatches updates a part of it on each device, and may be read whole as well."""

    def step(w: Any, x: Any) -> Any:
        def add(total: Any, part: Any) -> Any:
            return total + part.T @ jnp.tanh(part @ w), None

        gradient = lax.scan(add, jnp.zeros_like(w), x)[0]
        return w - gradient, jnp.abs(jnp.fft.fft2(gradient)) if whole else jnp.zeros(())

    shapes = jax.ShapeDtypeStruct((1024, 1024), jnp.float32), jax.ShapeDtypeStruct((16, 4096, 1024), jnp.float32)
    mesh = dict(zip("xy", sizes or (4,), strict=False))
    pins = {"w": P(*mesh), "x": P(None, tuple(mesh)), "out/0": P(*mesh), "out/1": P()}
    options = planner.Options(check="never", microbatches=1)
    return planner.plan(step, shapes, topology="v5e:2x2", mesh=mesh, pins=pins, options=options)


@pytest.mark.parametrize("whole", [False, True])
def test_what_is_minimised_knows_which_sums_are_scattered(whole: bool) -> None:
    plan = _of_microbatches(whole)
    assert plan.certificate.value == pytest.approx(plan.predicted.seconds, rel=1e-3)


@pytest.mark.skipif(bool(unavailable_reason("tpu")), reason=unavailable_reason("tpu") or "libtpu is there")
def test_no_sum_after_a_loop_is_promised_scattered_along_two_dims() -> None:
    plan = _of_microbatches(False, 2, 2)
    assert {"reduce-scatter", "all-to-all"} <= {c.kind for c in plan.predicted.collectives}
    assert plan.certificate.value == pytest.approx(plan.predicted.seconds, rel=1e-3)
    found = plan.verify().collectives
    assert not found.differs, found


@pytest.mark.skipif(bool(unavailable_reason("tpu")), reason=unavailable_reason("tpu") or "libtpu is there")
@pytest.mark.parametrize(("whole", "kind"), [(False, "reduce-scatter"), (True, "all-reduce")])
def test_a_sum_after_a_loop_is_scattered_where_slices_are_read(whole: bool, kind: str) -> None:
    plan = _of_microbatches(whole)
    assert [(c.kind, c.count) for c in plan.predicted.collectives if c.kind != "all-gather"] == [(kind, 1)]
    found = plan.verify().collectives
    assert not found.differs, found


def _of_heads(joined: bool, spec: P) -> planner.Plan:
    """Gradients of weights with heads of half a tile, which are made by heads and turned around, in microbatches."""
    layers, heads, size, width = 4, 16, 64, 1024

    def step(w: Any, x: Any) -> Any:
        def layer(h: Any, w: Any) -> Any:
            if joined:
                return jnp.tanh(jnp.einsum("bshk,hkd->bsd", h.reshape(*h.shape[:2], heads, size), w)), None
            return jnp.tanh(jnp.einsum("bsd,dhk->bshk", h, w).reshape(h.shape)), None

        def add(total: Any, part: Any) -> Any:
            return total + jax.grad(lambda w: jnp.sum(lax.scan(layer, part, w)[0] ** 2))(w), None

        return w - lax.scan(add, jnp.zeros_like(w), x)[0]

    shape = (layers, heads, size, width) if joined else (layers, width, heads, size)
    shapes = jax.ShapeDtypeStruct(shape, jnp.float32), jax.ShapeDtypeStruct((4, 64, 256, width), jnp.float32)
    options = planner.Options(check="never", microbatches=1, remat="as written")
    pins = {"w": spec, "x": P(None, "x")}
    return planner.plan(step, shapes, topology="v5e:2x4", mesh={"x": 8}, pins=pins, options=options)


@pytest.mark.skipif(bool(unavailable_reason("tpu")), reason=unavailable_reason("tpu") or "libtpu is there")
@pytest.mark.parametrize(
    ("joined", "spec", "exchanged"),
    [
        (False, P(None, "x"), False),
        (False, P(None, None, "x"), True),
        (True, P(None, "x"), True),
        (True, P(None, None, None, "x"), False),
    ],
    ids=str,
)
def test_a_sum_after_a_loop_lies_as_what_is_added(joined: bool, spec: P, exchanged: bool) -> None:
    """No compiler scatters it by heads: it is scattered by the width, and exchanged."""
    plan = _of_heads(joined, spec)
    kinds = {"reduce-scatter", "all-gather", *(["all-to-all"] if exchanged else [])}
    assert {c.kind for c in plan.predicted.collectives} == kinds
    assert plan.certificate.value == pytest.approx(plan.predicted.seconds, rel=1e-3)
    found = plan.verify().collectives
    assert not found.differs, found


@pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "backwards"])
def test_gradients_of_scanned_layers_in_microbatches_are_summed_once(reverse: bool) -> None:
    """Of weights that all devices hold: no microbatch sums, or scatters, what its loop over layers adds up."""

    def step(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        def loss(w: jax.Array, x: jax.Array) -> jax.Array:
            h = lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, w, reverse=reverse)[0]
            return jnp.mean(h**2)

        value, gradient = jax.value_and_grad(loss)(w, x)
        return w - gradient, value

    w, x = _normal(4, OUT, OUT), _normal(64 * BATCH, OUT)
    options = planner.Options(microbatches=4)
    plan = planner.plan(step, (w, x), mesh={"x": 8}, pins={"x": P("x"), "w": P()}, options=options)
    found = plan.verify(w, x)
    assert found.numerics.ok
    assert not found.collectives.differs
    summed = [(c.kind, c.count, c.bytes) for c in plan.predicted.collectives if c.bytes >= w.nbytes / 8]
    assert summed == [("all-reduce", 1, w.nbytes)]
