"""What compilers compute, move and store for products whose rows or summed elements come in groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import planner
from cost_models import parse_topology
from planner.compiler.fusion.ragged_dot import masked, times_computed, times_moved
from planner.compiler.program import compiled
from planner.compiler.targets.table import GPU, TPU, compiler_of
from planner.decisions.groups import group_ops
from planner.explain.repeated_products import products_by_source
from planner.pricing.tpu_tiles import row_bytes
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.trace import trace

GROUPS, ROWS, INNER, COLUMNS = 8, 4096, 512, 1024
X = jax.ShapeDtypeStruct((ROWS, INNER), jnp.bfloat16)
WEIGHTS = jax.ShapeDtypeStruct((GROUPS, INNER, COLUMNS), jnp.bfloat16)
SIZES = jax.ShapeDtypeStruct((GROUPS,), jnp.int32)
MADE = jax.ShapeDtypeStruct((ROWS, COLUMNS), jnp.bfloat16)


def _rows(x: jax.Array, weights: jax.Array, sizes: jax.Array) -> jax.Array:
    return lax.ragged_dot(x, weights, sizes)


def _weights_gradient(x: jax.Array, weights: jax.Array, sizes: jax.Array, made: jax.Array) -> jax.Array:
    return jax.vjp(lambda w: lax.ragged_dot(x, w, sizes), weights)[1](made)[0]


CASES = {
    "rows": (_rows, (X, WEIGHTS, SIZES), 1.0, (0,)),
    "gradient of the weights": (_weights_gradient, (X, WEIGHTS, SIZES, MADE), GROUPS, (0, 1)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_sum_over_groups_is_computed_for_each_and_elsewhere_all_is(name: str) -> None:
    fn, args, on_tpu, held = CASES[name]
    graph = build_graph(trace(fn, args), while_trips=1.0)
    (op,) = graph.of_kinds(("ragged_dot_general",))
    assert times_computed(graph, op, TPU) == on_tpu
    assert times_computed(graph, op, TPU.without("masked-ragged-sums")) == 1
    assert times_computed(graph, op, GPU) == GROUPS
    assert masked(graph, op) == held
    assert [times_moved(graph, op, position) for position in (0, 2)] == [1 + 2 * GROUPS, 1]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("topology", "stand"), [("v5e:2x4", False), ("h100:8", True)])
def test_on_gpus_operands_stand_once_for_every_group(name: str, topology: str, stand: bool) -> None:
    fn, args, _, held = CASES[name]
    plan = _whole(fn, args, topology)
    least = 2 * GROUPS * sum((X.size, MADE.size)[position] for position in held)
    assert (plan.predicted.peak_bytes >= least) is stand


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("topology", "expanded"), [("v5e:1x1", False), ("h100:1", True)])
def test_products_are_counted_as_they_are_computed(name: str, topology: str, expanded: bool) -> None:
    fn, args, on_tpu, _ = CASES[name]
    plan = planner.plan(fn, args, topology=topology, options=planner.Options(check="never", workers=1))
    counted = sum(products_by_source(plan.alternatives.chosen).values())
    installed = compiler_of(parse_topology(topology).chip)
    every_group = expanded or (on_tpu > 1 and installed.runs("masked-ragged-sums"))
    assert counted == (GROUPS if every_group else 1) * 2 * ROWS * INNER * COLUMNS


@pytest.mark.parametrize("name", CASES)
def test_v5p_holds_the_mask_of_a_sum(name: str) -> None:
    fn, args, on_tpu, _ = CASES[name]
    plain, masked = (_whole(fn, args, topology).predicted.peak_bytes for topology in ("v5e:2x4", "v5p:2x2x2"))
    stands = on_tpu > 1 and compiler_of(parse_topology("v5p:2x2x2").chip).runs("group-masks")
    assert masked - plain == stands * 128 * GROUPS * ROWS


@pytest.mark.parametrize("name", CASES)
def test_the_rows_of_a_ragged_dot_lie_in_rows(name: str) -> None:
    fn, args, on_tpu, _ = CASES[name]
    graph = build_graph(trace(fn, args), while_trips=1.0)
    found = compiled(graph, group_ops(graph), TPU).row_major
    assert set(found) == (set() if on_tpu > 1 else set(graph.outputs))
    assert all(row_bytes((ROWS, 64), 2, rows) == 2 * ROWS * 128 for rows in found.values())


def _whole(fn: Callable[..., Any], args: tuple[Any, ...], topology: str) -> planner.Plan:
    """The plan in which every device computes everything."""
    pins = {name: jax.sharding.PartitionSpec() for name in ("x", "weights", "sizes", "made")[: len(args)]}
    return planner.plan(fn, args, topology=topology, mesh={"x": 8}, pins=pins, options=planner.Options(check="never"))
