"""Slices of what products read: copies on GPUs, with a price and a place in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import planner
from cost_models import parse_topology
from planner.compiler.analysis import Model, model_of
from planner.compiler.model import CompilerModel
from planner.compiler.targets.table import GPU, TPU
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.trace import trace
from tests.small import NEVER

ROWS, INNER, COLUMNS = 4095, 8192, 2047  # only what is summed over can be split
X = jax.ShapeDtypeStruct((ROWS, INNER), jnp.bfloat16)
W = jax.ShapeDtypeStruct((INNER, COLUMNS), jnp.bfloat16)


def product(x: jax.Array, w: jax.Array) -> jax.Array:
    return x @ w


def modelled(fn: Callable[..., Any], *args: Any, compiler: CompilerModel) -> Model:
    graph = build_graph(trace(fn, args), while_trips=1.0)
    return model_of(graph, pinned_outputs=set(), kept=set(), compiler=compiler)


def sliced(fn: Callable[..., Any], *args: Any, compiler: CompilerModel = GPU) -> set[str]:
    model = modelled(fn, *args, compiler=compiler)
    tensors, transfers = model.graph.tensors, model.flow.transfers
    return {tensors[transfers[number].tensor].name.rpartition(" ")[2] for number in model.sliced}


def test_gpus_copy_slices_of_what_is_in_memory_for_products() -> None:
    assert sliced(product, X, W) == {"x", "w"}
    assert not sliced(product, X, W, compiler=TPU)
    # Passes compute the part that is read, and slices of a loop's stack are copied anyhow.
    assert not sliced(lambda x: x + 1, X)
    stack = jax.ShapeDtypeStruct((4, INNER, INNER), jnp.bfloat16)
    loop = sliced(lambda x, stack: lax.scan(lambda x, w: (x @ w, None), x, stack)[0], X, stack)
    assert loop
    assert not any("slice" in name for name in loop)


@pytest.mark.parametrize(("topology", "copies"), [("h100:8", True), ("v5e:2x4", False)])
def test_a_slice_is_read_and_written(topology: str, copies: bool) -> None:
    def planned(spec: P) -> planner.Plan:
        pins = {"x": spec, "w": P("x")}
        return planner.plan(product, (X, W), topology=topology, mesh={"x": 8}, pins=pins, options=NEVER)

    whole, split = planned(P()), planned(P(None, "x"))
    bytes = 2 * ROWS * INNER / 8
    more = whole.predicted.compute_seconds - split.predicted.compute_seconds
    chip = parse_topology(topology).chip
    assert more == pytest.approx(copies * 2 * bytes / chip.memory_bytes_per_s, abs=1e-9)
    held = whole.predicted.peak_bytes - split.predicted.peak_bytes
    assert held == pytest.approx(8 * bytes - bytes + copies * bytes, rel=1e-3)
    assert whole.predicted.communication_seconds == pytest.approx(split.predicted.communication_seconds)


def test_values_of_choices_and_predicted_seconds_have_the_same_slices() -> None:
    pins = {"x": P(), "w": P("x")}
    plan = planner.plan(product, (X, W), topology="h100:8", mesh={"x": 8}, pins=pins, options=NEVER)
    assert plan.alternatives is not None
    chosen = plan.alternatives.chosen
    assert chosen.instance.problem.evaluate(chosen.choice) == pytest.approx(plan.predicted.seconds, rel=1e-2)
