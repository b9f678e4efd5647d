"""Serving: latency against throughput over batch sizes, the knee, and weights of eight bits."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import planner
from planner.errors import ArgumentError, InfeasibleError
from planner.studies.serving import ServingPoint, served
from tests.small import NEVER

WIDTH, LENGTH, LAYERS = 2048, 128, 2
TOKENS = 16


def shape(*extents: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(extents, dtype)


def layer(weights: Any, x: jax.Array) -> jax.Array:
    up, down = (w["small"].astype(x.dtype) * w["scale"] if isinstance(w, dict) else w for w in weights)
    return x + jax.nn.gelu(x @ up) @ down


def decode(weights: Any, cache: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """One token: attends to the cache and appends to it."""
    scores = jax.nn.softmax(jnp.einsum("bd,bld->bl", x, cache))
    x = x + jnp.einsum("bl,bld->bd", scores, cache)
    for own in weights:
        x = layer(own, x)
    return jnp.concatenate([cache[:, 1:], x[:, None]], axis=1), x


def prefill(weights: Any, x: jax.Array) -> jax.Array:
    """The cache of a prompt."""
    for own in weights:
        x = layer(own, x)
    return x


def weights_of(dtype: str) -> list[Any]:
    sizes = [(WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)]
    if dtype != "bfloat16":
        quantized = [{"small": shape(*size, dtype=jnp.dtype(dtype)), "scale": shape(size[1])} for size in sizes]
        return [tuple(quantized)] * LAYERS
    return [tuple(shape(*size) for size in sizes)] * LAYERS


def programs(batch: int, dtype: str = "bfloat16") -> dict[str, Any]:
    weights, cache = weights_of(dtype), shape(batch, LENGTH, WIDTH)
    return {
        "prefill": (prefill, (weights, shape(batch, LENGTH, WIDTH))),
        "decode": (decode, (weights, cache, shape(batch, WIDTH)), {"donate_argnums": 1}),
    }


@pytest.fixture(scope="module")
def found() -> planner.Serving:
    return planner.serving(programs, [64, 1, 8], tokens=TOKENS, topology="v5e:2x2", options=NEVER)


def test_points_are_those_of_the_plans(found: planner.Serving) -> None:
    assert [point.batch for point in found] == [1, 8, 64]
    for point in found:
        assert point.plans is not None
        assert set(point.plans) == {"prefill", "decode"}
        assert point.latency_seconds == point.plans["decode"].predicted.seconds
        assert point.first_seconds == point.plans["prefill"].predicted.seconds
        whole = point.first_seconds + TOKENS * point.latency_seconds
        assert point.tokens_per_s == pytest.approx(point.batch * TOKENS / whole)
        weights = [plan.in_specs[0] for plan in point.plans.values()]
        assert weights[0] == weights[1], "both programs hold the weights alike"


def test_the_front_trades_latency_for_throughput(found: planner.Serving) -> None:
    front = found.front
    assert len(front) > 1
    for one, other in pairwise(front):
        assert one.latency_seconds < other.latency_seconds
        assert one.tokens_per_s < other.tokens_per_s
    assert found.knee in front
    assert found.within(front[-1].latency_seconds) is front[-1]
    with pytest.raises(ArgumentError, match=r"no batch size takes at most .* per token; the least is .*, of batch 1"):
        found.within(1e-9)
    assert str(found).startswith("Serving by prefill, decode on v5e:2x2: 16 tokens per request")
    assert [row["batch"] for row in found.summary["rows"]] == [1, 8, 64]


def made(*figures: tuple[float, float]) -> planner.Serving:
    """Points of these latencies and throughputs."""
    plans: Any = {}
    points = [
        ServingPoint(batch=i + 1, plans=plans, latency_seconds=latency, tokens_per_s=rate)
        for i, (latency, rate) in enumerate(figures)
    ]
    return planner.Serving(points, tokens=1)


def test_the_knee_is_where_throughput_begins_to_cost() -> None:
    assert made((1.0, 1.0), (1.1, 8.0), (4.0, 10.0), (40.0, 11.0)).knee.batch == 2
    assert made((1.0, 1.0), (2.0, 8.0)).knee.batch == 2
    assert made((1.0, 1.0)).knee.batch == 1


def test_what_fits_nowhere_has_a_row() -> None:
    def planned(batch: int) -> planner.Programs:
        if batch > 1:
            raise InfeasibleError("nothing fits; give more memory")
        return planner.plan_many(programs(1), topology="v5e:2x2", mesh={"x": 4}, options=NEVER)

    assert [point.why_none for point in served(planned, [1, 2], TOKENS)] == ["", "nothing fits"]
    with pytest.raises(InfeasibleError, match="nothing fits"):
        served(planned, [2, 4], TOKENS)


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn"])
def test_weights_of_eight_bits_take_half_the_bytes(dtype: str) -> None:
    whole, small = (
        planner.plan_many(programs(1, of), topology="v5e:1x1", mesh={"x": 1}, options=NEVER)["decode"].predicted
        for of in ("bfloat16", dtype)
    )
    elements = 2 * LAYERS * 4 * WIDTH * WIDTH
    rest = 2 * (LENGTH * WIDTH + WIDTH)
    scales = 2 * LAYERS * (4 * WIDTH + WIDTH)
    assert whole.argument_bytes == pytest.approx(2 * elements + rest, rel=1e-3)
    assert small.argument_bytes == pytest.approx(elements + rest + scales, rel=1e-2)
    # One token reads every weight once. The rest of the time does not depend on their type.
    assert small.traffic_bytes < 0.6 * whole.traffic_bytes
    assert small.seconds < 0.7 * whole.seconds


def test_bad_input_is_told() -> None:
    with pytest.raises(ArgumentError, match=r"batch_sizes is \[1, 1\]; give different positive numbers"):
        planner.serving(programs, [1, 1])
    with pytest.raises(ArgumentError, match="tokens is 0; give how many"):
        planner.serving(programs, [1], tokens=0)
    with pytest.raises(ArgumentError, match="the programs are 'step'; one must be named 'decode'"):
        planner.serving(lambda batch: {"step": programs(batch)["decode"]}, [1], topology="v5e:2x2")
