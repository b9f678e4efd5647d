"""Groups that are alike share strategies and costs: the same figures as if each were worked out on its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.any_mesh.alike_groups import alike
from planner.any_mesh.fused_pass import fused_pass
from planner.one_mesh.costs import group_work
from planner.one_mesh.instance import Instance
from planner.one_mesh.stating import strategies_of
from tests.sessions import small_session


@pytest.mark.parametrize("name", ["gpt_unrolled", "resnet", "lstm", "moe"])
def test_what_alike_groups_share_is_what_each_would_get(name: str) -> None:
    session = small_session(name)
    model = session.model
    shared = session.instance({"x": 4, "y": 2})
    for node in model.flow.nodes:
        if node.group is None:
            continue
        strategies = strategies_of(model, shared.mesh, node.group)
        assert np.array_equal(strategies.assignment, shared.strategies[node.id].assignment)
        group = model.grouping.groups[node.group]
        fused = fused_pass(model.graph, model.grouping, model.liveness, group) if group.fused else None
        passes = {} if fused is None else {group.id: fused}
        alone = group_work(replace(model, _passes=passes), group, strategies, session.cost_model, shared.mesh)
        work = shared.works[node.id]
        assert work is not None
        for field in ("seconds", "flops", "traffic_bytes", "exchange", "exchange_seconds"):
            assert np.array_equal(getattr(alone, field), getattr(work, field)), model.flow.nodes[node.id].name


def test_layers_written_out_share_their_groups() -> None:
    model = small_session("gpt_unrolled").model
    kinds = alike(model.graph, model.grouping, model.liveness)
    assert len(set(kinds)) < 0.6 * len(kinds)


def test_edges_between_alike_nodes_share_one_table() -> None:
    instance: Instance = small_session("gpt_unrolled").instance({"x": 4, "y": 2})
    edges = instance.problem.edges
    assert len({id(edge.costs) for edge in edges}) < 0.5 * len(edges)
