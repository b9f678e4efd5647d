"""Plans for several topologies beside one another: figures, what limits them, where one device is enough, what is saved."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import planner
from planner.errors import ArgumentError, CompileError, InfeasibleError, MeshError
from planner.planning import plan_cache
from planner.request.resolve import PlanRequest
from planner.studies.topology_table import ENOUGH
from tests.small import NEVER, shapes, train_args, train_step

TOPOLOGIES = ["v5e:2x2", "h100:2x2", "cpu:2"]
ARGS = shapes(train_args(width=512, batch=16384))


@pytest.fixture(scope="module")
def found() -> planner.TopologyComparison:
    return planner.compare_topologies(train_step, ARGS, TOPOLOGIES, donate_argnums=0, options=NEVER)


def test_every_row_is_the_plan_of_its_topology(found: planner.TopologyComparison) -> None:
    assert [row.name for row in found.rows[:3]] == TOPOLOGIES
    for name in TOPOLOGIES:
        alone = planner.plan(train_step, ARGS, topology=name, donate_argnums=0, options=NEVER)
        assert found.plans[name].decision.choice == alone.decision.choice
    singles = [row for row in found.rows if row.alone]
    assert {row.topology.chip.name for row in singles} == {"v5e", "h100", "cpu"}
    assert all(row.plan is not None and row.plan.decision.mesh_shape == {"x": 1} for row in singles)


def test_figures_are_those_of_the_plans(found: planner.TopologyComparison) -> None:
    rows = {row["name"]: row for row in found.summary["rows"]}
    for name, plan in found.plans.items():
        devices, told = math.prod(plan.decision.mesh_shape.values()), rows[name]
        assert told["seconds"] == plan.predicted.seconds
        assert told["device_seconds"] == devices * plan.predicted.seconds
        assert told["joules"] == devices * plan.predicted.energy_joules
        assert sum(told["limits"].values()) == pytest.approx(plan.predicted.seconds)
        fewest = rows[f"one of {name.removeprefix('one of ')}"]
        assert told["efficiency"] == pytest.approx(fewest["device_seconds"] / told["device_seconds"])
    assert found.fastest.predicted.seconds == min(row["seconds"] for row in rows.values())
    lines = str(found).splitlines()
    assert lines[0] == "Topologies for train_step, by call"
    assert next(line for line in lines if line.startswith("one of v5e:2x2")).split()[3] == "1"


def test_what_limits_is_told_with_the_wires() -> None:
    def far(x: jax.Array, w: jax.Array) -> jax.Array:
        return (x @ w).sum()

    def near(x: jax.Array) -> jax.Array:
        return x * 2

    big = jax.ShapeDtypeStruct((4096, 4096), jnp.float32)
    moved = planner.compare_topologies(near, (big,), ["v5e:2x2"], options=NEVER)
    assert next(iter(moved.rows[0].limits)) == "memory traffic"
    # Across nodes an axis is tied to the network.
    pins = {"x": jax.sharding.PartitionSpec(None, "data")}
    summed = planner.compare_topologies(
        far, (big, big), ["h100:8x1", "v5e:2x4"], mesh={"data": 8}, pins=pins, options=NEVER
    )
    assert "node network" in summed.rows[0].limits
    assert "chip links" in summed.rows[1].limits
    assert len(summed.rows) == 2  # on one device there is no mesh of that name


def test_one_device_is_enough_where_nothing_is_much_faster() -> None:
    small = shapes(train_args(width=16, batch=16))
    found = planner.compare_topologies(train_step, small, ["v5e:2x2", "cpu:2"], options=NEVER)
    assert any(note.startswith("one device of v5e is enough: ") for note in found.notes)
    large = planner.compare_topologies(
        train_step, shapes(train_args(width=2048, batch=65536)), ["v5e:2x2"], options=NEVER
    )
    assert not any("is enough" in note for note in large.notes)
    one, four = large.plans["one of v5e:2x2"], large.plans["v5e:2x2"]
    assert one.predicted.seconds > ENOUGH * four.predicted.seconds
    scalar = (jax.ShapeDtypeStruct((), jnp.float32),)
    tiny = planner.compare_topologies(lambda x: x + 1, scalar, ["v5e:2x2", "cpu:2"], options=NEVER)
    assert any(note.startswith("the CPU is enough: ") for note in tiny.notes)


def test_where_nothing_fits_there_is_a_row_with_the_reason() -> None:
    args = shapes(train_args(width=2048, batch=64))
    found = planner.compare_topologies(
        train_step,
        args,
        ["v5e:2x2", "v5e:2x4"],
        memory_limit=25e6,
        donate_argnums=0,
        options=replace(NEVER, offload="never"),
    )
    first, second, alone = found.rows
    assert first.plan is None
    assert first.why_none.startswith("nothing fits: at least ")
    assert first.least_bytes is not None
    assert first.least_bytes > 25e6
    assert second.plan is not None
    assert alone.plan is None
    assert alone.least_bytes is not None
    assert alone.least_bytes > 80e6
    assert "nothing fits" in str(found)
    with pytest.raises(InfeasibleError, match=r"any of the topologies: v5e:2x2: nothing fits: at least .*Give larger"):
        planner.compare_topologies(train_step, args, ["v5e:2x2"], memory_limit=1e6, options=NEVER)


def test_what_does_not_compile_is_a_row_too(monkeypatch: pytest.MonkeyPatch) -> None:
    best_plan = plan_cache.best_plan

    def failing(request: PlanRequest) -> planner.Plan:
        if request.target.topology.name == "v5e:2x2":
            raise CompileError("the compiler died; report it")
        return best_plan(request)

    monkeypatch.setattr(plan_cache, "best_plan", failing)
    found = planner.compare_topologies(train_step, ARGS, ["v5e:2x2", "v5e:2x1"], options=NEVER)
    assert found.rows[0].why_none == "the compiler died"
    with pytest.raises(CompileError):
        planner.compare_topologies(train_step, ARGS, ["v5e:2x2"], options=NEVER)


def test_a_saved_comparison_is_loaded_plan_by_plan(found: planner.TopologyComparison, tmp_path: Path) -> None:
    found.save(tmp_path / "kept")
    found.save(tmp_path / "kept")
    told = json.loads((tmp_path / "kept" / "topologies.json").read_text())
    for row in told["rows"]:
        assert planner.load(tmp_path / "kept" / row["file"]).decision == found.plans[row["name"]].decision
    (tmp_path / "kept" / "more").write_text("")
    with pytest.raises(ArgumentError, match="holds other files than those of a comparison"):
        found.save(tmp_path / "kept")


def test_plot_has_a_line_for_each_chip(found: planner.TopologyComparison) -> None:
    drawn: list[tuple[str, Any]] = []

    class Axes:
        def __getattr__(self, name: str) -> Any:
            return lambda *given, **more: drawn.append((name, more.get("label")))

    axes = Axes()
    assert found.plot(axes) is axes
    assert [label for name, label in drawn if name == "plot"] == ["v5e", "h100", "cpu"]


@pytest.mark.parametrize(
    ("topologies", "error", "message"),
    [
        ([], ArgumentError, "give a list of names"),
        ("v5e:2x2", ArgumentError, "give a list of names"),
        (["v5e:2x2", "v5e:2x2"], ArgumentError, "holds 'v5e:2x2' twice"),
        (["v5e:2x2", "nonsense"], MeshError, "unknown topology 'nonsense'"),
        (["v5e:2x2", 3], MeshError, "topology is 3"),
    ],
)
def test_what_cannot_be_asked_for(topologies: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        planner.compare_topologies(train_step, ARGS, topologies, options=NEVER)


def test_the_progress_names_the_topology() -> None:
    seen: list[planner.options.Progress] = []
    options = planner.Options(check="never", progress=seen.append)
    planner.compare_topologies(train_step, ARGS, ["v5e:2x2"], options=options)
    assert {progress.stage for progress in seen} == {"v5e:2x2", "one of v5e:2x2"}


def test_the_function_is_traced_once_for_all_topologies() -> None:
    traces: list[None] = []

    def counted(x: jax.Array) -> jax.Array:
        traces.append(None)
        return jnp.tanh(x)

    found = planner.compare_topologies(counted, (jnp.zeros((64, 64)),), TOPOLOGIES, options=NEVER)
    assert len(found.plans) >= len(TOPOLOGIES)
    assert len(traces) == 1
