"""Which slices of a cache a product of matrices does not read where they lie, and what that moves on a mesh."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import planner
from planner.compiler.layout.dot_operands_tpu import copied_slices
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.trace import trace

LAYERS, BATCH, LENGTH, HEADS, WIDTH = 2, 16, 8192, 8, 128
CACHE = (LAYERS, BATCH, LENGTH, HEADS, WIDTH)
QUERY = jax.ShapeDtypeStruct((BATCH, HEADS, 8, WIDTH), jnp.bfloat16)
AT = jax.ShapeDtypeStruct((), jnp.int32)
Program = Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]


def _attention(scores: str, mixed: str, heads_first: bool = False) -> Program:
    """Attention over a cache of shape CACHE, into which a token is written; or with the heads before the positions."""

    def fn(c: jax.Array, x: jax.Array, at: jax.Array) -> tuple[jax.Array, jax.Array]:
        def body(n: Any, carry: Any) -> Any:
            c, x = carry
            new, place = x.mean(2).astype(c.dtype), (n, 0, 0, at, 0) if heads_first else (n, 0, at, 0, 0)
            c = lax.dynamic_update_slice(c, new[None, :, :, None] if heads_first else new[None, :, None], place)
            keys = c[n].astype(x.dtype)
            weights = jax.nn.softmax(jnp.einsum(scores, x, keys).astype(jnp.float32)).astype(x.dtype)
            return c, jnp.einsum(mixed, weights, keys)

        return lax.fori_loop(0, LAYERS, body, (c, x))

    return fn


HEADS_INSIDE = _attention("bhgw,bthw->bhgt", "bhgt,bthw->bhgw")
HEADS_OUTSIDE = _attention("bhgw,bhtw->bhgt", "bhgt,bhtw->bhgw", heads_first=True)


def _copied(fn: Program, shape: tuple[int, ...], x: jax.ShapeDtypeStruct, dtype: Any, donated: bool) -> list[float]:
    """The sizes of the elements of the slices that are copied."""
    args = jax.ShapeDtypeStruct(shape, dtype), x, AT
    graph = build_graph(trace(fn, args, donate_argnums=(0,) if donated else ()))
    return [turned.itemsize for of in copied_slices(graph).values() for turned in of]


def test_a_slice_with_heads_inside_is_copied_once() -> None:
    outside = (LAYERS, BATCH, HEADS, LENGTH, WIDTH)
    single = jax.ShapeDtypeStruct((BATCH, HEADS, 1, WIDTH), jnp.bfloat16)
    assert _copied(HEADS_INSIDE, CACHE, QUERY, jnp.bfloat16, True) == [2]
    assert _copied(HEADS_INSIDE, CACHE, QUERY, jnp.int8, True) == [1]
    assert _copied(HEADS_OUTSIDE, outside, QUERY, jnp.bfloat16, True) == []
    assert _copied(HEADS_INSIDE, CACHE, single, jnp.bfloat16, True) == []
    assert _copied(HEADS_INSIDE, CACHE, QUERY, jnp.bfloat16, False) == []


def _passes(fn: Any, caches: int, rows: int, spec: tuple[str | None, ...]) -> float:
    """How often a device's part of a cache is moved, by a plan on eight chips of v5e that splits batch and heads so."""
    batch, heads = spec
    cache = jax.ShapeDtypeStruct((LAYERS, rows, LENGTH, HEADS, WIDTH), jnp.bfloat16)
    split = jax.sharding.PartitionSpec(None, batch, None, heads)
    plan = planner.plan(
        fn,
        (*[cache] * caches, *_queries(rows)),
        topology="v5e:2x4",
        mesh={"x": 8},
        pins={**dict.fromkeys("cd"[:caches], split), "x": jax.sharding.PartitionSpec(batch, heads)},
        memory_limit=1e12,
        donate_argnums=range(caches),
        options=planner.Options(check="never"),
    )
    return plan.predicted.traffic_bytes / (cache.size * 2 / 8)


@pytest.mark.parametrize(
    ("rows", "spec", "passes"),
    [(128, ("x", None), 4), (128, (None, "x"), 2), (64, ("x", None), 4), (32, ("x", None), 2), (8, ("x", None), 2)],
    ids=["several heads", "one head", "all of the chip's memory", "half of it", "an eighth of it"],
)
def test_it_moves_nothing_where_a_device_holds_one_head_or_all_of_the_slice_on_its_chip(
    rows: int, spec: tuple[str | None, ...], passes: float
) -> None:
    """Keys and values are read by a product each; where there are several heads, one slice for both is made first."""
    assert _passes(HEADS_INSIDE, 1, rows, spec) == pytest.approx(passes, rel=0.1)


def _two_caches(c: jax.Array, d: jax.Array, x: jax.Array, at: jax.Array) -> tuple[jax.Array, ...]:
    def body(n: Any, carry: Any) -> Any:
        c, d, x = carry
        new = x.mean(2)[None, :, None]
        c = lax.dynamic_update_slice(c, new, (n, 0, at, 0, 0))
        d = lax.dynamic_update_slice(d, 2 * new, (n, 0, at, 0, 0))
        weights = jax.nn.softmax(jnp.einsum("bhgw,bthw->bhgt", x, c[n]).astype(jnp.float32)).astype(x.dtype)
        return c, d, jnp.einsum("bhgt,bthw->bhgw", weights, d[n])

    return lax.fori_loop(0, LAYERS, body, (c, d, x))


@pytest.mark.parametrize(("rows", "passes"), [(32, 1 + 3), (16, 1 + 1)], ids=["half of the memory", "a quarter"])
def test_of_two_slices_one_stays_on_the_chip_where_both_have_no_room(rows: int, passes: float) -> None:
    assert _passes(_two_caches, 2, rows, ("x", None)) == pytest.approx(passes, rel=0.1)


def _queries(batch: int) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    return jax.ShapeDtypeStruct((batch, *QUERY.shape[1:]), jnp.bfloat16), AT


def test_the_search_knows_that_parts_may_need_less_than_their_share() -> None:
    """Four heads on eight devices: a mesh of two axes holds one on each, and spares what one axis copies."""
    args = (
        jax.ShapeDtypeStruct((LAYERS, 128, LENGTH, 4, WIDTH), jnp.bfloat16),
        jax.ShapeDtypeStruct((128, 4, 8, WIDTH), jnp.bfloat16),
        AT,
    )

    def seconds(mesh: dict[str, int] | None) -> float:
        plan = planner.plan(
            HEADS_INSIDE,
            args,
            topology="v5e:2x4",
            mesh=mesh,
            donate_argnums=0,
            options=planner.Options(check="never"),
        )
        return plan.predicted.seconds

    assert seconds(None) <= 1.01 * seconds({"x": 4, "y": 2}) < 0.6 * seconds({"x": 8})


def test_convolutions_copy_no_slice() -> None:
    def fn(weights: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        def layer(x: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array]:
            return lax.conv(x, weight, (1, 1), "SAME"), weight * 0.5

        return lax.scan(layer, x, weights)[::-1]

    args = jax.ShapeDtypeStruct((2, 8, 8, 3, 3), jnp.float32), jax.ShapeDtypeStruct((4, 8, 16, 16), jnp.float32)
    assert copied_slices(build_graph(trace(fn, args, donate_argnums=(0,)))) == {}
