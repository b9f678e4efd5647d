"""The problem record: exact evaluation, validation in sentences, and the contest's file format both ways."""

from __future__ import annotations

import gzip
import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pbqp.errors import SolverError
from pbqp.problem import Edge, Problem, Row


def small() -> Problem:
    table = np.asarray([[0.0, 5.0], [np.inf, 1.0], [2.0, 2.0]])
    usage = np.asarray([4.0, 2.0, 1.0])
    return Problem(
        name="small",
        node_costs=(np.asarray([1.0, 2.0, 3.0]), np.asarray([0.5, np.inf]), np.asarray([7.0])),
        edges=(
            Edge(nodes=(0, 1), costs=table),
            Edge(nodes=(0, 1), costs=table),
            Edge(nodes=(1, 2), costs=np.ones((2, 1))),
        ),
        rows=(
            Row(name="early", limit=5.0, nodes=(0, 1), usages=(usage, np.asarray([1.0, 3.0]))),
            Row(name="middle", limit=4.0, nodes=(1,), usages=(np.asarray([4.0, 4.5]),)),
            Row(name="late", limit=3.0, nodes=(0, 2), usages=(usage, np.asarray([1.0]))),
        ),
        node_names=("a", "b", "c"),
    )


def test_evaluate_adds_nodes_and_all_parallel_edges() -> None:
    problem = small()
    assert problem.evaluate((0, 0, 0)) == 1.0 + 0.5 + 7.0 + 0.0 + 0.0 + 1.0
    assert problem.evaluate((2, 0, 0)) == 3.0 + 0.5 + 7.0 + 2 * 2.0 + 1.0
    assert problem.evaluate((1, 0, 0)) == math.inf
    assert problem.evaluate((0, 1, 0)) == math.inf


def test_violations_name_rows_and_bytes() -> None:
    assert [(row.name, usage) for row, usage in small().violations((0, 0, 0))] == [("late", 5.0)]
    assert small().violations((1, 0, 0)) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"edges": (Edge(nodes=(0, 0), costs=np.zeros((3, 3))),)}, "joins a node to itself"),
        ({"edges": (Edge(nodes=(0, 9), costs=np.zeros((3, 3))),)}, "does not exist"),
        ({"edges": (Edge(nodes=(0, 1), costs=np.zeros((2, 2))),)}, r"shape \(2, 2\)"),
        ({"edges": (Edge(nodes=(0, 1), costs=np.full((3, 2), np.nan)),)}, "nan"),
        ({"node_costs": (np.zeros(3), np.zeros((2, 1)), np.zeros(1))}, "one cost per choice"),
        ({"node_costs": (np.zeros(3), np.asarray([-np.inf, 0.0]), np.zeros(1))}, "-inf"),
        ({"node_costs": (np.zeros(3), np.zeros(2, dtype=np.float32), np.zeros(1))}, "float64"),
        ({"node_names": ("a",)}, "name all or none"),
        ({"rows": (Row(name="r", limit=math.nan, nodes=(), usages=()),)}, "no limit"),
        ({"rows": (Row(name="r", limit=1.0, nodes=(5,), usages=(np.zeros(3),)),)}, "node 5"),
        ({"rows": (Row(name="r", limit=1.0, nodes=(0,), usages=()),)}, "one vector per node"),
        ({"rows": (Row(name="r", limit=1.0, nodes=(0,), usages=(np.zeros(2),)),)}, "bytes of every choice"),
        ({"rows": (Row(name="r", limit=1.0, nodes=(0,), usages=(np.full(3, np.inf),)),)}, "not a finite number"),
    ],
)
def test_malformed_problems_are_refused_in_a_sentence(change: dict[str, object], words: str) -> None:
    problem = small()
    fields = {name: getattr(problem, name) for name in ("name", "node_costs", "edges", "rows", "node_names")}
    with pytest.raises(SolverError, match=words):
        Problem(**{**fields, **change})  # type: ignore[arg-type]


def test_edges_are_checked_once_and_again_where_they_or_the_choices_are_others() -> None:
    problem = small()
    costlier = tuple(costs + 1 for costs in problem.node_costs)
    assert replace(problem, node_costs=costlier).checked is problem.checked
    assert (
        replace(problem, node_costs=costlier).rounding
        == Problem(name="anew", node_costs=costlier, edges=problem.edges).rounding
    )
    with pytest.raises(SolverError, match="shape"):
        replace(problem, node_costs=(np.zeros(2), *problem.node_costs[1:]))
    with pytest.raises(SolverError, match="joins a node to itself"):
        replace(problem, edges=(Edge(nodes=(0, 0), costs=np.zeros((3, 3))),))


@pytest.mark.parametrize("choice", [(0, 0), (3, 0, 0), (0, -1, 0)])
def test_choices_that_do_not_exist_are_refused(choice: tuple[int, ...]) -> None:
    with pytest.raises(SolverError, match="choice"):
        small().evaluate(choice)


@pytest.mark.parametrize("suffix", ["json", "json.gz"])
def test_iopddl_round_trip_keeps_every_answer(tmp_path: Path, suffix: str) -> None:
    problem = small()
    problem.to_iopddl(tmp_path / f"small.{suffix}")
    back = Problem.from_iopddl(tmp_path / f"small.{suffix}")
    own = len(problem.node_costs)
    answers: dict[tuple[int, ...], float] = {}
    for choice in itertools.product(*(range(costs.size) for costs in back.node_costs)):
        cost = back.evaluate(choice)
        if math.isfinite(cost) and not back.violations(choice):
            answers[choice[:own]] = cost
    expected = {
        choice: problem.evaluate(choice)
        for choice in itertools.product(*(range(costs.size) for costs in problem.node_costs))
        if math.isfinite(problem.evaluate(choice)) and not problem.violations(choice)
    }
    assert answers == expected


def test_a_contest_file_is_read_and_written_alike(tmp_path: Path) -> None:
    contest = {
        "problem": {
            "name": "tiny",
            "nodes": {
                "intervals": [[0, 3], [1, 2], [2, 5], [4, 4]],
                "costs": [[1, 2], [10**18, 3], [0, 0, 5], [4]],
                "usages": [[8, 1], [2, 2], [3, 4, 5], [9]],
            },
            "edges": {"nodes": [[0, 1], [2, 1]], "costs": [[0, 1, 10**18, 3], [1, 2, 3, 4, 5, 6]]},
            "usage_limit": 11,
        }
    }
    (tmp_path / "tiny.json").write_text(json.dumps(contest))
    problem = Problem.from_iopddl(tmp_path / "tiny.json")
    assert [sorted(row.nodes) for row in problem.rows] == [[0, 1], [0, 2]]
    assert {row.limit for row in problem.rows} == {11.0}
    assert problem.node_costs[1][0] == math.inf
    assert problem.edges[0].costs[1, 0] == math.inf
    problem.to_iopddl(tmp_path / "again.json.gz")
    written = json.loads(gzip.decompress((tmp_path / "again.json.gz").read_bytes()))["problem"]
    assert written["nodes"]["costs"] == contest["problem"]["nodes"]["costs"]
    assert written["edges"] == contest["problem"]["edges"]
    assert written["usage_limit"] == 11


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(SolverError, match="is not an IOPDDL problem"):
        Problem.from_iopddl(tmp_path / "other.json")
