"""The search for the best hand plan, its file, and what is said of both; compilers are stood in for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks import plan_quality
from benchmarks.plan_quality import Case, Row, score, summary
from cost_models import Topology, parse_topology

BEST = 128


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, int]]:
    """The meshes compiled for; the more rows, up to `BEST`, the faster, and half of all plans do not fit."""
    seen: list[Mapping[str, int]] = []

    def compiled(jit: Any, model: Any, topology: Topology, mesh: Mapping[str, int], options: Any) -> Row:
        seen.append(mesh)
        rows = mesh.get("data", 1)
        if rows < 16:
            return {"status": "oom", "peak_bytes": 1e12 / rows}
        seconds = abs(rows - BEST) + 1.0
        return {
            "status": "ok",
            "seconds": seconds,
            "exposed_seconds": 0.0,
            "collective_seconds": 0.0,
            "peak_bytes": 1e9,
        }

    monkeypatch.setattr(plan_quality, "compiled", compiled)
    monkeypatch.setattr(plan_quality, "jitted", lambda *given: None)
    return seen


def _case(path: Path, rows: list[Row] | None = None) -> Case:
    return Case("mlp", parse_topology("v5e:16x16"), path / "rows.json", [] if rows is None else rows)


def test_meshes_are_climbed_to_the_best(tmp_path: Path, compiles: list[Mapping[str, int]]) -> None:
    hands = _case(tmp_path).hands()
    assert hands[0][0].mesh == {"data": BEST, "model": 2}
    kinds = {hand.kind.name for hand, _ in hands}
    assert {"dp", "fsdp", "hsdp", "fsdp+tp", "crossed"} <= kinds
    tried = {hand.mesh["data"] for hand, _ in hands if hand.kind.name == "hsdp"}
    assert BEST in tried
    assert 2 not in tried, "far from the best, and slower than its neighbours"


def test_the_best_are_written_in_every_way(tmp_path: Path, compiles: list[Mapping[str, int]]) -> None:
    names = {hand.name for hand, _ in _case(tmp_path).hands()}
    assert {f"hsdp {BEST}x2{way}" for way in ("", " gathered", " no windows", " gathered no windows")} <= names


def test_rows_that_are_there_are_not_made_again(tmp_path: Path, compiles: list[Mapping[str, int]]) -> None:
    case = _case(tmp_path)
    case.hands()
    kept = json.loads(case.out.read_text())["rows"]
    count = len(compiles)
    _case(tmp_path, kept).hands()
    assert len(compiles) == count


def test_plans_that_do_not_fit_come_after_those_that_do() -> None:
    rows: list[Row] = [
        {"status": "crash"},
        {"status": "oom", "peak_bytes": 3e10},
        {"status": "oom", "peak_bytes": 2e10},
        {"status": "ok", "seconds": 9.0},
        {"status": "ok", "seconds": 1.0},
    ]
    assert sorted(rows, key=score) == rows[::-1]


def test_the_summary_sets_ours_beside_the_best() -> None:
    def row(plan: str, topology: str, seconds: float | None) -> Row:
        status = "ok" if seconds else "oom"
        return {
            "program": "p",
            "topology": topology,
            "plan": plan,
            "mesh": {"data": 2},
            "status": status,
            "seconds": seconds,
        }

    rows = [
        *(row(plan, "a", seconds) for plan, seconds in (("ours", 1.1), ("fsdp 2", 1.0), ("dp 2", None))),
        *(row(plan, "b", seconds) for plan, seconds in (("ours", None), ("fsdp 2", 1.0), ("pins fsdp 2", 0.1))),
        *(row(plan, "c", seconds) for plan, seconds in (("ours", 1.0), ("fsdp 2", None))),
    ]
    first, second, third, last = summary(rows)
    assert "1.10" in first
    assert "inf" in second
    assert "no hand plan of 1 fits" in third
    assert "ours, 2 cases: at most 1.05 0 of 2, at most 1.15 1 of 2" in last
