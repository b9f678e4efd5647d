"""What is set beside our choices of what to save: policies of hand plans, which are taken, what is said; no compiler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest
from jax.extend.core import ClosedJaxpr, Jaxpr

from benchmarks import memory_choices
from benchmarks.memory_choices import all_ways, best_hands, hands, summary, usual_hands
from benchmarks.models import deep, gpt, llama
from benchmarks.models.base import Model
from benchmarks.models.checkpoints import POLICIES, with_policy
from benchmarks.plan_quality import Case, Row
from benchmarks.suite import PROGRAMS
from cost_models import parse_topology

V5E = parse_topology("v5e:4x4")
MIXTRAL = PROGRAMS["mixtral 8x7B"].family


def _llama() -> Model:
    return llama.llama(replace(llama.SMALL, layers=2, query_block=8), batch=2, size="real")


def _deep() -> Model:
    return deep.deep(replace(deep.SMALL, layers=2), batch=2, size="real")


def _gpt() -> Model:
    return gpt.gpt(replace(gpt.SMALL, layers=2), batch=2, size="real")


def _count(jaxpr: Any, primitive: str) -> int:
    """How many equations of a primitive there are in a jaxpr and in those within it."""
    found = 0
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        found += equation.primitive.name == primitive
        for value in jax.tree.leaves(list(equation.params.values())):
            if isinstance(value, (Jaxpr, ClosedJaxpr)):
                found += _count(value, primitive)
    return found


def _counts(model: Model, primitive: str) -> list[int]:
    """As many for each policy."""
    models = [with_policy(model, policy) for policy in POLICIES]
    return [_count(jax.make_jaxpr(one.fn)(*one.args), primitive) for one in models]


@pytest.mark.parametrize("build", [_llama, _deep, _gpt])
def test_what_a_policy_saves_is_not_computed_again(build: Callable[[], Model]) -> None:
    written, nothing, dots, no_batch_dims = _counts(build(), "dot_general")
    assert max(nothing, dots) < no_batch_dims < written


def test_checkpoints_within_layers_stay_as_written() -> None:
    assert _counts(_llama(), "remat2")[1] > 0
    assert _counts(_deep(), "remat2")[1] == 0


def _row(plan: str, seconds: float | None, **more: Any) -> Row:
    status = {"status": "ok", "seconds": seconds} if seconds else {"status": "oom"}
    return {"program": "p", "topology": "t", "plan": plan, "mesh": {"data": 16}, "peak_bytes": 2e9, **status, **more}


def test_the_best_hand_plans_are_taken_once_for_each_mesh() -> None:
    known = [
        _row("ours", 0.1),
        _row("fsdp 16", 3.0),
        _row("fsdp+tp+ep 8x2", 2.0),
        _row("fsdp+tp+ep 8x2 no windows", 1.0),
        _row("fsdp+tp+ep 4x4", 2.5),
        _row("pins fsdp 16", 0.2),
        _row("dp 16", None),
    ]
    found = best_hands(known, all_ways(MIXTRAL, V5E))
    assert [hand.name for hand in found] == ["fsdp+tp+ep 8x2 no windows", "fsdp+tp+ep 4x4", "fsdp 16"]


def test_the_usual_hand_plans_have_more_rows_than_columns() -> None:
    found = usual_hands(PROGRAMS["llama 8B"].family, 16)
    assert [hand.name for hand in found] == ["dp 16", "fsdp 16", "hsdp 8x2", "fsdp+tp 8x2"]


def test_the_best_pair_is_written_in_every_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policies: list[str] = []

    def compiled(*given: object) -> Row:
        seconds = 0.5 if policies[-1] == "dots_saveable" else 1.0
        return {
            "status": "ok",
            "seconds": seconds,
            "peak_bytes": 1e9,
            "exposed_seconds": 0.0,
            "collective_seconds": 0.0,
        }

    def remembered(model: Model, policy: str) -> Model:
        policies.append(policy)
        return model

    monkeypatch.setattr(memory_choices, "compiled", compiled)
    monkeypatch.setattr(memory_choices, "jitted", lambda *given: None)
    monkeypatch.setattr(memory_choices, "with_policy", remembered)
    case = Case("mlp", V5E, tmp_path / "rows.json", [])
    hands(case, [_row("fsdp 16", 1.0)])
    names = [row["plan"] for row in case.rows]
    assert names[:4] == [f"fsdp 16, {policy}" for policy in POLICIES]
    assert names[4:] == [f"fsdp 16{way}, dots_saveable" for way in (" no windows", " gathered", " gathered no windows")]
    hands(case, [_row("fsdp 16", 1.0)])
    assert len(policies) == len(names), "rows that are there are not made again"


def test_the_summary_sets_ours_beside_the_best() -> None:
    predicted = {"seconds": 1.0, "peak_bytes": 3e9, "flops": 4e12, "bound": 0.9}
    rows = [
        _row("ours", 0.8, predicted=predicted, plan_seconds=5.0, commit="0123456789"),
        _row("ours as written", 1.0, predicted=predicted | {"flops": 5e12}, plan_seconds=2.0),
        _row("fsdp 16, as written", 2.0, policy="as written"),
        _row("fsdp 16, none", None, policy="none"),
        _row("fsdp 16, dots_saveable", 1.6, policy="dots_saveable"),
    ]
    *_, line = summary(rows)
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    assert cells == [
        *("p", "t", "16, 800.0", "16, 1000.0", "fsdp 16, as written, 2000.0", "fsdp 16, dots_saveable, 1600.0"),
        *("0.80", "0.50", "0.90", "3.0, 2.0", "4.0, 5.0", "5.0, 2.0", "0123456"),
    ]
