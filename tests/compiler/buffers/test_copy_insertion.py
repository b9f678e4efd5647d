"""What is written over in place, what is copied, and what memory that takes, on graphs of small programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from planner.compiler.analysis import Model, model_of
from planner.compiler.targets.table import GPU, TPU
from planner.pricing.memory.memory_model import whole_bytes
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.trace import trace

LAYERS, BATCH, LENGTH, WIDTH = 4, 8, 32, 64
CACHE = jax.ShapeDtypeStruct((LAYERS, BATCH, LENGTH, WIDTH), jnp.float32)
SLICE = jax.ShapeDtypeStruct((BATCH, LENGTH, WIDTH), jnp.float32)
X = jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.float32)
AT = jax.ShapeDtypeStruct((), jnp.int32)
EACH = jax.ShapeDtypeStruct((BATCH,), jnp.int32)


def _model(fn: Callable[..., Any], args: tuple[Any, ...], donated: bool) -> Model:
    graph = build_graph(trace(fn, args, donate_argnums=(0,) if donated else ()), while_trips=1.0)
    return model_of(graph, pinned_outputs=set(), kept=set())


def _mixed(x: jax.Array, keys: jax.Array) -> jax.Array:
    return jnp.einsum("bt,btw->bw", jax.nn.softmax(jnp.einsum("bw,btw->bt", x, keys)), keys)


def _update(c: jax.Array, x: jax.Array, at: jax.Array) -> jax.Array:
    return lax.dynamic_update_slice(c, x[None, :, None], (0, 0, at, 0))


def _update_and_old(c: jax.Array, x: jax.Array, at: jax.Array) -> tuple[jax.Array, jax.Array]:
    new = lax.dynamic_update_slice(c, x[None, :, None], (0, 0, at, 0))
    return new, jnp.einsum("lbtw,lbtw->lb", c, new)


def _carried(c: jax.Array, x: jax.Array, at: jax.Array) -> tuple[jax.Array, jax.Array]:
    def body(n: Any, carry: Any) -> Any:
        c, x = carry
        c = lax.dynamic_update_slice(c, x[None, :, None], (n, 0, at, 0))
        return c, _mixed(x, c[n])

    return lax.fori_loop(0, LAYERS, body, (c, x))


def _carried_each(c: jax.Array, x: jax.Array, at: jax.Array) -> tuple[jax.Array, jax.Array]:
    def body(n: Any, carry: Any) -> Any:
        c, x = carry
        c = c.at[n, jnp.arange(BATCH), at].set(x)
        return c, _mixed(x, c[n])

    return lax.fori_loop(0, LAYERS, body, (c, x))


def _generated(c: jax.Array, x: jax.Array, at: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    def body(carry: Any) -> Any:
        c, x, at = carry
        c, x = _carried(c, x, at)
        return c, x, at + 1

    return lax.while_loop(lambda carry: carry[2] < LENGTH, body, (c, x, at))


def _unrolled(c: jax.Array, x: jax.Array, at: jax.Array) -> tuple[jax.Array, jax.Array]:
    for n in range(LAYERS):
        c = lax.dynamic_update_slice(c, x[None, :, None], (n, 0, at, 0))
        x = _mixed(x, c[n])
    return c, x


def _doubled(c: jax.Array, x: jax.Array, at: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, c = lax.scan(lambda x, keys: (x + keys[:, 0], 2 * keys), x, c)
    return c, x


def _either(c: jax.Array, x: jax.Array, at: jax.Array) -> jax.Array:
    return lax.cond(at > 3, lambda c: lax.dynamic_update_slice(c, x[None, :, None], (0, 0, at, 0)), lambda c: c, c)


def _rolled(c: jax.Array, x: jax.Array, at: jax.Array) -> jax.Array:
    return jnp.concatenate([c[:, :, 1:], jnp.broadcast_to(x[None, :, None], (LAYERS, BATCH, 1, WIDTH))], axis=2)


def _scaled(c: jax.Array, x: jax.Array, at: jax.Array) -> jax.Array:
    return 0.9 * c + x[None, :, None]


def _accumulated(c: jax.Array, x: jax.Array, at: jax.Array) -> jax.Array:
    del c, at
    return lax.fori_loop(
        0,
        LAYERS,
        lambda n, out: lax.dynamic_update_index_in_dim(out, out[n] + x[:, None], n, 0),
        jnp.zeros(CACHE.shape),
    )


@dataclass(frozen=True)
class Case:
    """A program of a cache, an activation and a position: how many caches stand in memory, how often one is copied over.

    Copies are counted as reads and writes of the whole cache beyond what ops say of themselves.
    """

    fn: Callable[..., Any]
    donated: bool
    caches: float
    passes: float
    at: jax.ShapeDtypeStruct = AT


CASES = {
    "updated": Case(_update, True, 1, 0),
    "updated, kept": Case(_update, False, 2, 2),
    "updated, the old one read later": Case(_update_and_old, True, 2, 4),
    "carried": Case(_carried, True, 1, 0),
    "carried, kept": Case(_carried, False, 2, 2),
    "carried, each at its own position": Case(_carried_each, True, 1, 0, EACH),
    "carried through two loops": Case(_generated, True, 1, 0),
    "written out": Case(_unrolled, True, 1, 0),
    "written out, kept": Case(_unrolled, False, 2, 2),
    "a stack made of a stack": Case(_doubled, True, 2, 2),
    "a stack made of a stack, kept": Case(_doubled, False, 2, 0),
    "one branch": Case(_either, True, 1, 0),
    "moved along": Case(_rolled, True, 2, 2),
    "elementwise": Case(_scaled, True, 1, 0),
    "accumulated from zeros": Case(_accumulated, False, 1, 1),
}
SMALL = 0.35
"""What else stands in memory, in caches: a slice of one and what is as small as that."""


@pytest.mark.parametrize("name", CASES)
def test_a_cache_is_written_in_place_or_copied(name: str) -> None:
    case = CASES[name]
    model = _model(case.fn, (CACHE, X, case.at), case.donated)
    graph = model.graph
    size = 4.0 * LAYERS * BATCH * LENGTH * WIDTH
    assert whole_bytes(model, 0.0) / size == pytest.approx(case.caches, abs=SMALL)
    moved = sum(
        passes * graph.tensors[graph.ops[op].results[0]].aval.bytes
        for op, passes in model.compiled.in_place.extra_traffic.items()
    )
    assert moved / size == pytest.approx(case.passes, abs=SMALL)


def test_results_that_change_places_take_one_more() -> None:
    """The first is written where the second's argument stands, which is still read."""
    graph = build_graph(trace(lambda a, b: (b + 1, a + 1), (CACHE, CACHE), donate_argnums=(0, 1)), while_trips=1.0)
    model = model_of(graph, pinned_outputs=set(), kept=set())
    assert whole_bytes(model, 0.0) == pytest.approx(3 * graph.tensors[0].aval.bytes, rel=1e-3)
    assert list(model.compiled.in_place.extra_traffic.values()) == [2.0]


def test_a_carry_that_is_read_after_the_next_is_made_is_copied_in_every_trip() -> None:
    def late(x: jax.Array, w: jax.Array) -> jax.Array:
        def body(_: Any, carry: Any) -> Any:
            x, y = carry
            new = jnp.sin(x @ w)
            return new, y + (x * (new @ w)) @ w

        return lax.fori_loop(0, 8, body, (x, jnp.zeros_like(x)))

    def early(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 8, lambda _, x: x + jnp.sin(x @ w), x)

    args = jax.ShapeDtypeStruct((64, 64), jnp.float32), jax.ShapeDtypeStruct((64, 64), jnp.float32)
    leaving = [_of_kind(_model(fn, args, True), "loop_carry_out") for fn in (late, early)]
    assert leaving == [[16.0], []]


def _smoothed(_: Any, u: jax.Array) -> jax.Array:
    return u + 0.1 * (jnp.roll(u, 1, 0) - 2 * u + jnp.roll(u, -1, 0))


def _waves(_: Any, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Both are made by one pass, which reads what lies beside an element of the first to make the second."""
    u, v = carry
    around = jnp.pad(u, 1)
    v = v + 0.1 * (around[2:, 1:-1] + around[:-2, 1:-1] - 2 * u)
    return u + 0.1 * v, v


def _decayed(_: Any, u: jax.Array) -> jax.Array:
    return 0.9 * u + jnp.sin(u)


@pytest.mark.parametrize(("step", "count", "copies"), [(_smoothed, 1, 1), (_waves, 2, 1), (_decayed, 1, 0)])
def test_a_carry_of_which_neighbours_are_read_is_made_elsewhere_and_copied_in_every_trip(
    step: Callable[..., Any], count: int, copies: int
) -> None:
    grid = jax.ShapeDtypeStruct((512, 128), jnp.float32)
    args = (grid if count == 1 else (grid, grid),)
    model = _model(lambda carry: lax.fori_loop(0, 8, step, carry), args, True)
    assert _of_kind(model, "loop_carry_out") == [16.0] * copies
    assert whole_bytes(model, 0.0) == pytest.approx((count + copies) * grid.size * 4, rel=1e-3)


def _save_product(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jnp.tanh(x @ w), x @ w


def _save_entering(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jnp.tanh(x @ w), x


def _save_pass_of_matmul(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
    h = x @ w
    y = jnp.tanh(h) * h
    return y @ w, y


def _save_pass_alone(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
    h = x @ w
    return jnp.tanh(h) @ w, jnp.sin(h) * h


def _save_softmax(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
    y = jax.nn.softmax(x @ w, -1)
    return x, y


@pytest.mark.parametrize(
    ("body", "times"),
    [
        (_save_product, 3.0),
        (_save_entering, 3.0),
        (_save_pass_of_matmul, 3.0),
        (_save_pass_alone, 1.0),
        (_save_softmax, 3.0),
    ],
)
def test_gpus_write_zeros_for_stacks_and_copy_slices_that_also_stand_elsewhere(
    body: Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]], times: float
) -> None:
    """The bytes of such programs compiled for h100 are these: zeros, then updates that copy or compute their slices."""

    def fn(x: jax.Array, w: jax.Array) -> Any:
        return lax.scan(lambda x, _: body(x, w), x, None, length=8)

    args = jax.ShapeDtypeStruct((128, 64), jnp.float32), jax.ShapeDtypeStruct((64, 64), jnp.float32)
    graph = build_graph(trace(fn, args), while_trips=1.0)
    assert _of_kind(model_of(graph, pinned_outputs=set(), kept=set(), compiler=GPU), "loop_stack") == [times]


@pytest.mark.parametrize(("reverse", "nested", "zeroed"), [(True, True, [4.0]), (False, True, []), (True, False, [])])
def test_a_tpu_writes_zeros_for_the_stack_of_a_reversed_loop_inside_another(
    reverse: bool, nested: bool, zeroed: list[float]
) -> None:
    def stacks(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.scan(lambda x, _: (jnp.tanh(x @ w), x), x, None, length=8, reverse=reverse)[1]

    def summed(x: jax.Array, w: jax.Array) -> jax.Array:
        total = jnp.zeros((8, *x.shape), x.dtype)
        return lax.scan(lambda total, _: (total + stacks(x, w), None), total, None, length=4)[0]

    args = jax.ShapeDtypeStruct((64, 64), jnp.float32), jax.ShapeDtypeStruct((64, 64), jnp.float32)
    graph = build_graph(trace(summed if nested else stacks, args), while_trips=1.0)
    model = model_of(graph, pinned_outputs=set(), kept=set(), compiler=TPU)
    assert _of_kind(model, "loop_stack") == zeroed


def _of_kind(model: Model, kind: str) -> list[float]:
    return [passes for op, passes in model.compiled.in_place.extra_traffic.items() if model.graph.ops[op].kind == kind]
