"""Groups that are alike share strategies and costs: the same figures as if each were worked out on its own."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from planner.compiler.collectives.shared_halos import shared_halos
from planner.compiler.fusion.bytes_accessed import array_of
from planner.compiler.fusion.kernels import Access
from planner.compiler.isomorphic_groups import isomorphic
from planner.compiler.program import compiled
from planner.compiler.targets.table import TPU
from planner.decisions.groups import group_ops
from planner.pricing.build_instance import strategies_of
from planner.pricing.instance import Instance
from planner.pricing.op_cost import group_work
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.trace import trace
from planner.search.problem import PlanningProblem
from tests.problems import small_problem

TPUS = "v5e:2x4"


@cache
def unrolled() -> PlanningProblem:
    """The problem of layers written out; several tests look at it."""
    return small_problem("gpt_unrolled", TPUS)


@pytest.mark.parametrize(
    ("name", "topology"),
    [
        ("gpt_unrolled", TPUS),
        pytest.param("gpt_unrolled", "h100:8", marks=pytest.mark.slow),
        ("llama", TPUS),
        ("resnet", "h100:8"),
        ("lstm", TPUS),
        pytest.param("moe", "h100:8", marks=pytest.mark.slow),
    ],
)
def test_what_alike_groups_share_is_what_each_would_get(name: str, topology: str) -> None:
    problem = unrolled() if (name, topology) == ("gpt_unrolled", TPUS) else small_problem(name, topology)
    model = problem.model
    shared = problem.instance({"x": 4, "y": 2})
    for node in model.flow.nodes:
        if node.group is None:
            continue
        strategies = strategies_of(model, shared.mesh, node.group)
        assert np.array_equal(strategies.assignment, shared.strategies[node.id].assignment)
        group = model.grouping.groups[node.group]
        alone = group_work(replace(model, _passes={}), group, strategies, problem.analysis.cost_model, shared.mesh)
        work = shared.works[node.id]
        assert work is not None
        for field in ("seconds", "flops", "traffic_bytes", "exchange", "exchange_seconds"):
            assert np.array_equal(getattr(alone, field), getattr(work, field)), model.flow.nodes[node.id].name


def test_weights_that_a_loop_takes_in_are_alike_wherever_they_stand_in_it() -> None:
    def fn(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        def part(total: jax.Array, rows: jax.Array) -> tuple[jax.Array, None]:
            for weight in weights:
                rows = rows + jnp.tanh(rows @ weight)
            return total + rows.sum(), None

        return jax.lax.scan(part, jnp.zeros(()), x)[0]

    args = ([jnp.ones((64, 64))] * 4, jnp.ones((4, 32, 64)))
    graph = build_graph(trace(fn, args))
    grouping = group_ops(graph)
    kinds = isomorphic(compiled(graph, grouping, TPU), None, {})
    taken = [kinds[grouping.group_of[op.id]] for op in graph.ops if op.kind == "loop_const"]
    assert len(taken) == 4
    assert len(set(taken)) == 1


def test_layers_written_out_share_their_groups() -> None:
    model = unrolled().model
    kinds = isomorphic(model.compiled, None, model.shared_halos)
    assert len(set(kinds)) < 0.6 * len(kinds)


def test_neighbours_distinguish_arrays_only_where_room_depends_on_them() -> None:
    access = Access(0, (64, 64), 4.0, ((0,), (1,)), "chip", 1.0, at_once=2.0)
    assert array_of(access) == array_of(access._replace(at_once=3.0))
    assert array_of(access) != array_of(access._replace(at_once=1.0))
    assert array_of(access, "loop") != array_of(access._replace(at_once=3.0), "loop")


def test_edges_between_alike_nodes_share_one_table() -> None:
    instance: Instance = unrolled().instance({"x": 4, "y": 2})
    edges = instance.problem.edges
    assert len({id(edge.costs) for edge in edges}) < 0.5 * len(edges)


def test_convolutions_of_one_kind_are_alike_if_as_many_ops_share_their_halos() -> None:
    def fn(kernels: list[jax.Array], x: jax.Array) -> jax.Array:
        for kernel in kernels:
            x = jnp.sin(jax.lax.conv(x, kernel, (1, 1), "SAME"))
        return x + jax.lax.conv(x, kernels[0], (1, 1), "SAME") + jax.lax.conv(x, kernels[1], (1, 1), "SAME")

    graph = build_graph(trace(fn, ([jnp.ones((8, 8, 3, 3))] * 4, jnp.ones((4, 8, 16, 16)))))
    grouping, halos = group_ops(graph), shared_halos(graph)
    kinds = isomorphic(compiled(graph, grouping, TPU), None, halos)
    convolutions = [op.id for op in graph.ops if op.kind == "conv_general_dilated"]
    assert [halos[op, 0] for op in convolutions] == [1, 1, 1, 1, 2, 2]
    of_layers, of_last = convolutions[1:4], convolutions[4:]
    assert len({kinds[grouping.group_of[op]] for op in of_layers}) == 1
    assert not {kinds[grouping.group_of[op]] for op in of_layers} & {kinds[grouping.group_of[op]] for op in of_last}


def test_alike_nodes_share_the_costs_of_their_strategies() -> None:
    instance: Instance = unrolled().instance({"x": 4, "y": 2})
    assert len(set(map(id, instance.node_values))) < 0.6 * len(instance.node_values)
    kept = [np.arange(1)] * len(instance.node_values)
    assert len(set(map(id, instance.restricted(kept).node_values))) < 0.6 * len(instance.node_values)
