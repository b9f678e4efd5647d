"""Constraints of the program that repeat what a plan does anyway: they cost nothing, break no fusion and hold no memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import planner

QUICK = planner.Options(check="never", remat="as written", microbatches=1)
MESH = {"data": 4, "model": 4}
ABSTRACT = AbstractMesh(tuple(MESH.values()), tuple(MESH), axis_types=(AxisType.Auto,) * len(MESH))
D, HEADS, FF, LAYERS, VOCAB = 1024, 16, 4096, 2, 8192
BF16 = jnp.bfloat16

Specs = Mapping[str, P]
PLACES: Specs = {
    "normed": P("data"),
    "heads": P("data", None, "model"),
    "attended": P("data", None, "model"),
    "stream": P("data"),
    "hidden": P("data", None, "model"),
}


def norm(x: Any) -> Any:
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)).astype(x.dtype)


def layer(x: Any, w: Any, place: Callable[[str, Any], Any]) -> Any:
    h = place("normed", norm(x))
    q, k, v = (jnp.einsum("bsd,dhk->bshk", h, w[name]) for name in "qkv")
    scores = jnp.einsum("bshk,bthk->bhst", place("heads", q), k).astype(jnp.float32) / 8
    mixed = place("attended", jnp.einsum("bhst,bthk->bshk", jax.nn.softmax(scores).astype(x.dtype), v))
    x = place("stream", x + jnp.einsum("bshk,hkd->bsd", mixed, w["o"]))
    return place("stream", x + place("hidden", jax.nn.gelu(norm(x) @ w["up"])) @ w["down"])


def step(specs: Specs, times: int = 1) -> Callable[[Any, Any], Any]:
    """A train step of a small transformer in which activations are named, and placed where `specs` has their name."""

    def place(name: str, x: Any) -> Any:
        x = checkpoint_name(x, name)
        for _ in range(times if name in specs else 0):
            x = jax.lax.with_sharding_constraint(x, NamedSharding(ABSTRACT, specs[name]))
        return x

    def loss(params: Any, tokens: Any) -> Any:
        x = params["embed"][tokens]
        x, _ = jax.lax.scan(lambda x, w: (layer(x, w, place), None), x, params["layers"])
        logits = (norm(x) @ params["head"]).astype(jnp.float32)
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[..., None], -1))

    def train(params: Any, tokens: Any) -> Any:
        return jax.tree.map(lambda p, g: p - 1e-3 * g.astype(p.dtype), params, jax.grad(loss)(params, tokens))

    return train


def arguments(batch: int) -> tuple[Any, Any]:
    shapes = dict.fromkeys("qkv", (D, HEADS, D // HEADS))
    shapes |= {"o": (HEADS, D // HEADS, D), "up": (D, FF), "down": (FF, D)}
    layers = {name: jax.ShapeDtypeStruct((LAYERS, *shape), BF16) for name, shape in shapes.items()}
    ends = {"embed": jax.ShapeDtypeStruct((VOCAB, D), BF16), "head": jax.ShapeDtypeStruct((D, VOCAB), BF16)}
    return {**ends, "layers": layers}, jax.ShapeDtypeStruct((batch, 1024), jnp.int32)


def planned(specs: Specs, batch: int, times: int = 1, topology: str = "v5e:4x4", **more: Any) -> planner.Plan:
    return planner.plan(step(specs, times), arguments(batch), topology=topology, mesh=MESH, options=QUICK, **more)


@pytest.mark.parametrize("topology", ["v5e:4x4", "h100:16", "cpu:16"])
def test_constraints_that_repeat_a_placement_cost_nothing(topology: str) -> None:
    free = planned({}, 16, topology=topology)
    specs = {name: spec for name, spec in free.constraints.items() if name in PLACES}
    assert "hidden" in specs
    for times in (1, 2):
        same = planned(specs, 16, times, topology=topology)
        assert same.predicted.seconds == pytest.approx(free.predicted.seconds, rel=1e-3)
        assert same.predicted.traffic_bytes == pytest.approx(free.predicted.traffic_bytes, rel=1e-3)
        assert same.predicted.peak_bytes == pytest.approx(free.predicted.peak_bytes, rel=0.02)


def test_a_constraint_said_twice_costs_as_much_as_once() -> None:
    once, twice = (planned(PLACES, 16, times) for times in (1, 2))
    assert twice.predicted.seconds == pytest.approx(once.predicted.seconds, rel=1e-9)
    assert twice.predicted.peak_bytes == once.predicted.peak_bytes


def test_a_weight_that_is_gathered_by_a_constraint_is_stored_in_parts() -> None:
    def fn(w: Any, x: Any) -> Any:
        def body(x: Any, w: Any) -> Any:
            whole = jax.lax.with_sharding_constraint(w.astype(BF16), NamedSharding(ABSTRACT, P()))
            return jax.lax.with_sharding_constraint(jnp.tanh(x @ whole), NamedSharding(ABSTRACT, P("data"))), None

        return jax.lax.scan(body, x, w)[0]

    w, x = jax.ShapeDtypeStruct((8, 4096, 4096), jnp.float32), jax.ShapeDtypeStruct((65536, 4096), BF16)
    pins = {"w": P(None, ("data", "model"))}
    plan = planner.plan(fn, (w, x), topology="v5e:4x4", mesh=MESH, pins=pins, options=QUICK)
    (gather,) = [c for c in plan.predicted.collectives if c.kind == "all-gather"]
    assert gather.bytes == 2 * 4096 * 4096
    assert gather.count == 8
    assert plan.predicted.peak_bytes < 4 * 8 * 4096 * 4096 / 16 + 3e9


def test_what_a_constraint_gathers_stands_in_memory_until_it_is_read_last() -> None:
    def fn(x: Any) -> Any:
        x = x * 2
        whole = jax.lax.with_sharding_constraint(x, NamedSharding(ABSTRACT, P()))
        y = jnp.sort(x, axis=1)
        for _ in range(3):
            y = jnp.sort(jnp.sin(y), axis=1)
        return y + jnp.sort(whole, axis=0)[:1]

    plan = planner.plan(
        fn,
        (jax.ShapeDtypeStruct((8192, 8192), jnp.float32),),
        topology="v5e:4x4",
        mesh=MESH,
        pins={"x": P(("data", "model"))},
        options=QUICK,
    )
    assert plan.predicted.peak_bytes > 4 * 8192 * 8192


def test_constraints_that_differ_stay_where_the_data_move() -> None:
    def fn(x: Any) -> Any:
        x = jax.lax.with_sharding_constraint(jnp.sin(x), NamedSharding(ABSTRACT, P("data")))
        x = jax.lax.with_sharding_constraint(jnp.cos(x), NamedSharding(ABSTRACT, P(None, "data")))
        return jnp.tanh(x) * 2

    plan = planner.plan(fn, (jax.ShapeDtypeStruct((4096, 4096), jnp.float32),), topology="v5e:4x4", options=QUICK)
    assert [c.kind for c in plan.predicted.collectives] == ["all-to-all"]
