"""By how much every move lowers the overflow of rows: for all nodes at once it is what it is move by move."""

from __future__ import annotations

import numpy as np
import pytest

from pbqp.heuristics import local_search
from pbqp.heuristics.local_search import blocks_of
from pbqp.network.network import Indices, Network
from pbqp.problem import Problem
from pbqp.row_table import RowTable
from tests.pbqp.test_solve_planner_like import layered


def _limited(seed: int) -> Problem:
    return layered((4, 2), 4, 3, rows=6, tight=0.2, seed=seed)


def _overflow(rows: RowTable, choice: Indices) -> float:
    over = np.maximum(rows.used(choice) - rows.limits, 0.0)
    return float((over / rows.limits).sum())


@pytest.mark.parametrize("entries", [1, 1 << 20], ids=["node by node", "all together"])
@pytest.mark.parametrize("seed", range(3))
def test_changes_are_those_of_single_moves(seed: int, entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_search, "MOST_ENTRIES", entries)
    problem = _limited(seed)
    network, rows = Network.of(problem), RowTable.of(problem)
    random = np.random.default_rng(seed)
    choice = np.asarray([random.integers(costs.size) for costs in problem.node_costs])
    before, seen = _overflow(rows, choice), set[int]()
    assert before > 0
    for blocks in blocks_of(network, rows):
        picks = np.asarray([choice[node] for node in blocks.nodes])
        changes = blocks.changes(picks, rows.used(choice) - rows.limits, rows.limits)
        for at, node in enumerate(blocks.nodes):
            seen.add(node)
            for pick in range(problem.node_costs[node].size):
                moved = choice.copy()
                moved[node] = pick
                assert changes[blocks.choices[at] + pick] == pytest.approx(_overflow(rows, moved) - before, abs=1e-9)
    assert seen == {node for row in problem.rows for node in row.nodes}
