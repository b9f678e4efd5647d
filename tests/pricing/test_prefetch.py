"""Weights that are brought to a TPU's chip while collectives run are not waited for by the products that read them."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import planner
from planner.pricing.prefetch import ROOM_ON_CHIP, Moving, Multiplying, prefetched_seconds

NEVER = planner.Options(check="never")
ON_CHIP = 100.0 / ROOM_ON_CHIP
"""Bytes; 100 of them are filled."""


def spared(*events: Moving | Multiplying) -> dict[int, float]:
    """At a byte per second."""
    return prefetched_seconds(events, on_chip_bytes=ON_CHIP, hbm_bytes_per_s=1.0)


def product(op: int, bytes: float, ready: float = 0.0) -> Multiplying:
    return Multiplying(op, bytes, max(bytes, ready), ready)


FIRST = product(0, 50.0)
"""The largest, which the program begins with."""


def test_a_collective_hides_what_is_read_behind_it_and_no_more_than_it_takes() -> None:
    assert spared(FIRST, Moving(30.0), product(1, 20.0)) == {1: 20.0}
    assert spared(FIRST, Moving(5.0), product(1, 20.0)) == {1: 5.0}
    assert spared(FIRST, product(1, 20.0), Moving(30.0)) == {}


def test_what_one_collective_hides_no_other_does() -> None:
    assert spared(FIRST, Moving(30.0), Moving(30.0), product(1, 20.0), product(2, 20.0)) == {1: 20.0, 2: 20.0}
    assert spared(FIRST, Moving(30.0), product(1, 20.0), Moving(30.0), product(2, 20.0)) == {1: 20.0, 2: 20.0}
    assert spared(FIRST, Moving(10.0), product(1, 20.0), Moving(10.0), product(2, 20.0)) == {1: 10.0, 2: 10.0}


def test_no_more_is_brought_than_the_chip_has_room_for() -> None:
    later = [product(n, 40.0) for n in (1, 2, 3)]
    assert spared(FIRST, Moving(1000.0), *later) == {1: 40.0, 2: 40.0, 3: 20.0}
    assert spared(FIRST, Moving(1000.0), product(1, 101.0)) == {}


def test_the_largest_takes_room_from_the_begin_until_it_is_used() -> None:
    largest = product(9, 90.0)
    others = [product(1, 40.0), product(2, 40.0)]
    assert sum(spared(Moving(1000.0), *others, largest).values()) == pytest.approx(10.0)
    assert sum(spared(largest, Moving(1000.0), *others).values()) == pytest.approx(80.0)


def test_a_product_that_multiplies_what_is_on_the_chip_leaves_the_memory_to_the_next() -> None:
    assert spared(FIRST, Moving(20.0), product(1, 20.0, ready=15.0), product(2, 20.0)) == {1: 5.0, 2: 15.0}


def test_a_product_that_multiplies_for_longer_than_it_reads_is_spared_nothing() -> None:
    assert spared(FIRST, Moving(20.0), product(1, 20.0, ready=30.0)) == {}


WIDTH, LAYERS = 8192, 6
X = jax.ShapeDtypeStruct((32, WIDTH), jnp.bfloat16)
WEIGHTS = [jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.bfloat16)] * 2
PINS = {"weights/*/0": (None, "i"), "weights/*/1": ("i", None), "x": (), "out": ()}


def layer(x: Any, up: Any, down: Any) -> Any:
    return x + jnp.tanh(x @ up) @ down


def written_out(x: Any, weights: Any) -> Any:
    for up, down in weights:
        x = layer(x, up, down)
    return x


def scanned(x: Any, weights: Any) -> Any:
    return jax.lax.scan(lambda x, of: (layer(x, *of), None), x, weights)[0]


def planned(fn: Any, weights: Any, pins: Any, topology: str = "v5e:4x4") -> planner.Plan:
    specs = {name: jax.sharding.PartitionSpec(*spec) for name, spec in pins.items()}
    return planner.plan(fn, (X, weights), topology=topology, mesh={"i": 16}, pins=specs, options=NEVER)


def test_layers_written_out_read_their_weights_while_sums_run_and_the_plan_says_so() -> None:
    plan = planned(written_out, [WEIGHTS] * LAYERS, PINS)
    predicted, graph = plan.predicted, plan.graph
    reading = 2 * LAYERS * WIDTH * WIDTH * 2 / 16 / 819e9
    assert predicted.compute_seconds < 0.7 * reading
    assert predicted.seconds < 0.95 * plan.certificate.value
    assert any("ahead of their use" in note for note in plan.notes)
    figures = [of["seconds"] for *_, of in (*graph.nodes(data=True), *graph.edges(data=True))]
    assert math.fsum(figures) == pytest.approx(predicted.seconds, rel=1e-9)


def test_a_loop_reads_the_slices_of_its_stacks_where_they_stand() -> None:
    stacked = [jax.ShapeDtypeStruct((LAYERS, *w.shape), w.dtype) for w in WEIGHTS]
    plan = planned(
        scanned, stacked, {"weights/0": (None, None, "i"), "weights/1": (None, "i", None), "x": (), "out": ()}
    )
    assert plan.predicted.seconds == pytest.approx(plan.certificate.value, rel=2e-3)
    assert not any("ahead of their use" in note for note in plan.notes)
