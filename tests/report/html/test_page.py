"""The page of a plan: its figures are the plan's, it asks nobody for anything, and a browser does not complain."""

from __future__ import annotations

import html
import math
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P

import planner
from planner.errors import ArgumentError
from planner.report.html.drawings import draw_array
from planner.report.plan_report import PlanReport, plan_report
from planner.report.rows import TableRow
from planner.units import quantity
from tests.small import NEVER, mlp, mlp_args, shapes, train_args, train_step

LAYERS = (jax.ShapeDtypeStruct((3, 256, 256), jnp.float32), jax.ShapeDtypeStruct((1024, 256), jnp.float32))
HOSTILE = "<script>alert('x')</script>&\"</style>"


def layers(params: jax.Array, x: jax.Array) -> jax.Array:
    def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        return checkpoint_name(jnp.tanh(x @ w), HOSTILE), None

    return jax.lax.scan(layer, x, params)[0]


PLANS: dict[str, Any] = {
    "a train step": lambda: planner.plan(
        train_step, shapes(train_args(256, 1024)), topology="cpu:8", donate_argnums=0, options=NEVER
    ),
    "a loop on TPUs": lambda: planner.plan(
        layers,
        LAYERS,
        topology="v5e:2x4",
        mesh={"data": 4, "model": 2},
        pins={"params": P(None, "data", "model"), "x": P("data")},
        options=NEVER,
    ),
    "least memory": lambda: planner.plan(
        mlp, mlp_args(), topology="cpu:8", mesh={"x": 8}, objective="memory", options=NEVER
    ),
    "one device": lambda: planner.plan(mlp, mlp_args(), topology="cpu:1", options=NEVER),
}


@pytest.fixture(scope="module", params=list(PLANS))
def p(request: pytest.FixtureRequest) -> planner.Plan:
    return PLANS[request.param]()


@pytest.fixture(scope="module")
def data(p: planner.Plan) -> PlanReport:
    return plan_report(p.decision, p.alternatives)


def test_figures_are_those_of_the_plan(p: planner.Plan, data: PlanReport) -> None:
    predicted = p.predicted
    assert math.fsum(line.seconds for line in data.lines) == pytest.approx(predicted.seconds)
    assert math.fsum(line.compute_seconds for line in data.lines) == pytest.approx(predicted.compute_seconds)
    assert math.fsum(one.bytes for one in data.moved) == pytest.approx(
        math.fsum(c.count * c.bytes for c in predicted.collectives)
    )
    assert data.memory is not None
    assert data.memory.peak_bytes == pytest.approx(predicted.peak_bytes)
    assert max(size for _, size in data.memory.points) == data.memory.peak_bytes
    held = math.fsum(one.bytes for one in data.memory.held) + data.memory.held_more_bytes
    assert held == pytest.approx(data.memory.peak_bytes)
    arguments = math.fsum(placed.bytes for placed in data.arguments)
    assert sum(placed.count for placed in data.arguments) == len(p.decision.arguments)
    assert arguments == pytest.approx(predicted.argument_bytes, rel=0.05)
    for fold in data.folds:
        assert math.fsum(stage.seconds for stage in fold.stages) == pytest.approx(predicted.compute_seconds)
        moved = math.fsum(flow.seconds for flow in fold.flows)
        assert moved == pytest.approx(predicted.communication_seconds, abs=1e-12)
        known = {stage.id for stage in fold.stages}
        assert all(flow.source in known and flow.target in known for flow in fold.flows)


def test_every_mesh_tried_has_a_bound_below_its_plan_and_the_best_is_the_plans(p: planner.Plan) -> None:
    tried, certificate = p.decision.tried, p.certificate
    assert len(tried) == certificate.meshes
    assert all(one.bound <= one.value * (1 + 1e-9) for one in tried if one.bound is not None and one.value is not None)
    assert min(one.bound for one in tried if one.bound is not None) == pytest.approx(certificate.lower_bound)


def test_a_saved_plan_tells_the_meshes_tried_and_makes_the_page_again(p: planner.Plan, tmp_path: Path) -> None:
    p.save(tmp_path / "plan.json")
    loaded = planner.load(tmp_path / "plan.json")
    assert loaded.decision.tried == p.decision.tried
    p.report(tmp_path / "a.html")
    loaded.report(tmp_path / "bare.html")
    bare = (tmp_path / "bare.html").read_text()
    assert "Not in the plan's file" in bare
    assert "made from the plan's file alone" in bare
    assert "Not in the plan's file" not in (tmp_path / "a.html").read_text()


def test_the_page_asks_nobody_and_escapes_every_name(p: planner.Plan, tmp_path: Path) -> None:
    p.report(tmp_path / "plan.html")
    text = (tmp_path / "plan.html").read_text()
    assert not re.search(
        r"https?://|//[a-z]|@import|url\(|<(?:img|iframe|object|embed|base)\b|src=", text.replace("//  ", "")
    )
    links = set(re.findall(r'href="([^"]*)"', text)) - {"data:,"}
    assert all(link.startswith("#") for link in links)
    known = set(re.findall(r'\bid="([^"]*)"', text))
    assert {unquote(html.unescape(link))[1:] for link in links} <= {html.unescape(name) for name in known}
    assert HOSTILE not in text
    assert text.count("<script") == text.count("</script>") == 1
    assert text.count("</style>") == 1
    shown = html.unescape(text)
    for figure in (quantity(p.predicted.seconds, "s"), quantity(p.predicted.peak_bytes, "B"), p.certificate.status):
        assert figure in shown
    for leaf in p.decision.arguments:
        assert leaf.name.split("/")[-1] in shown
    assert len(text) < 300_000


def test_every_stage_has_a_row_that_describes_it(p: planner.Plan, data: PlanReport, tmp_path: Path) -> None:
    p.report(tmp_path / "plan.html")
    text = (tmp_path / "plan.html").read_text()
    rows = re.findall(r'data-id="(\d+)" data-description="([^"]*)"', text)
    stages = [stage for fold in data.folds for stage in fold.stages]
    for (number, description), stage in zip(rows, stages, strict=True):
        assert int(number) == stage.id
        assert html.unescape(description).startswith(f"{stage.source}: {stage.ops} op")
        assert not stage.seconds or f"computing {quantity(stage.seconds, 's')}" in description
    assert len(re.findall(r"<path d=", text)) == sum(len(fold.flows) for fold in data.folds)


@pytest.mark.parametrize("shape", [(), (1,), (0, 4), (7,), (3, 5), (2, 3, 4), (10**9, 1), (2, 2, 2, 2)])
def test_every_shape_can_be_drawn_whole_and_split(shape: tuple[int, ...]) -> None:
    def drawn(spec: P) -> list[str]:
        row = TableRow(name="x", first="x", type="f32", shape=shape, spec=spec, bytes=4.0, count=1, also=())
        drawing = draw_array(row, {"x": 4})
        assert all(
            math.isfinite(value) for mark in drawing.marks for value in (mark.x, mark.y, mark.width, mark.height)
        )
        return [mark.style for mark in drawing.marks]

    assert drawn(P()).count("mine") == 1
    assert "ruler" not in drawn(P())
    if shape:
        assert "ruler" in drawn(P("x"))


def test_a_page_that_cannot_be_written_is_told(p: planner.Plan, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="cannot be written"):
        p.report(tmp_path / "file" / "plan.html")


def test_recipes_stand_beside_the_plan_with_a_reason_each(p: planner.Plan, tmp_path: Path) -> None:
    p.report(tmp_path / "plan.html")
    shown = html.unescape((tmp_path / "plan.html").read_text())
    for one in p.alternatives.recipes.others:
        assert f"<h3>{one.name}</h3>" in shown
        assert f"{one.why[0].upper()}{one.why[1:]}." in shown


def test_the_largest_arrays_open_what_else_they_could_be(p: planner.Plan, data: PlanReport, tmp_path: Path) -> None:
    p.report(tmp_path / "plan.html")
    shown = html.unescape((tmp_path / "plan.html").read_text())
    largest = max((row for row in data.arguments), key=lambda row: row.bytes)
    explained = data.alternatives[largest.first]
    assert [a.spec for a in explained.alternatives if a.chosen] == [largest.spec]
    for row in explained.rows:
        assert row.specs in shown
        assert f"{row.cost}, {row.bytes}" in shown
        assert row.reason in shown


def test_source_lines_show_what_stands_there(p: planner.Plan, data: PlanReport) -> None:
    matmuls = [line.source for line in data.lines if "@" in data.texts.get(line.source, "")]
    assert matmuls
    assert all(data.texts[line.source] for line in data.lines if line.source.startswith("tests/small.py"))


def test_layers_are_one_module() -> None:
    def fn(x: jax.Array, weights: list[jax.Array]) -> jax.Array:
        for i, w in enumerate(weights):
            with jax.named_scope(f"layer_{i}"):
                x = jnp.tanh(x @ w)
        return x

    x, w = jax.ShapeDtypeStruct((512, 512), jnp.float32), jax.ShapeDtypeStruct((512, 512), jnp.float32)
    p = planner.plan(fn, (x, [w] * 6), topology="cpu:4", options=NEVER)
    modules = plan_report(p.decision, p.alternatives).modules
    assert [line.source for line in modules] == ["layer_{0..5}"]
    assert modules[0].seconds == pytest.approx(p.predicted.seconds)


def test_a_limit_far_above_the_peak_is_said(tmp_path: Path) -> None:
    p: planner.Plan = PLANS["one device"]()
    p.report(tmp_path / "plan.html")
    assert "above this drawing" in (tmp_path / "plan.html").read_text()
