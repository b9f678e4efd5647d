"""Arrays drawn in characters: every device holds the part that JAX gives it."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import planner
from planner.errors import ArgumentError
from tests.small import NEVER, train_args, train_step

MESH = {"a": 2, "b": 4}


def drawn(spec: P, shape: tuple[int, ...], mesh: dict[str, int] = MESH) -> planner.Plan:
    size = int(np.prod(list(mesh.values())))
    args = (jax.ShapeDtypeStruct(shape, jnp.float32),)
    where = {"devices": jax.devices()} if size == 8 else {"topology": "v5e:16x16"}
    return planner.plan(lambda x: -x, args, **where, mesh=mesh, pins={"x": spec}, options=NEVER)


@pytest.mark.parametrize("spec", [P("a", "b"), P("b", "a"), P(("a", "b")), P(None, ("a", "b")), P(None, "b"), P()])
def test_the_parts_are_those_of_jax(spec: P) -> None:
    plan = drawn(spec, (16, 16))
    text = str(plan.draw("x"))
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if line[:1] == "│"]
    devices = list(plan.mesh.devices.flat)
    held = plan.in_shardings[0].devices_indices_map((16, 16))
    for number, device in enumerate(devices):
        row, column = (16 if part.stop is None else part.stop for part in held[device])
        cell = cells[row * len(cells) // 16 - 1][column * len(cells[0]) // 16 - 1]
        shown = [int(n) for n in re.findall(r"\d+", cell.split("...")[0])]
        assert number in shown or "8 in all" in cell


def test_a_third_cut_is_told() -> None:
    text = str(drawn(P("a", "b", "c"), (8, 8, 8), {"a": 2, "b": 2, "c": 2}).draw())
    assert "dim 0 is cut in 2 as well" in text
    assert "│ 2 │ 3 │" in text


def test_large_meshes_fit_a_screen() -> None:
    text = str(drawn(P("a", "b"), (64, 64), {"a": 16, "b": 16}).draw())
    assert "..." in text
    assert "255" in text
    assert len(text.splitlines()) < 24


def test_scalars_and_patterns() -> None:
    plan = planner.plan(train_step, train_args(), topology="cpu:8", options=NEVER)
    assert [row.name for row in plan.draw("state/params/*").arrays] == [f"state/params/{n}" for n in ("b0", "w0", "w1")]
    assert "out/1 f32[], P()" in str(plan.draw("out/1"))
    with pytest.raises(ArgumentError, match="no argument or result is called 'parms'"):
        plan.draw("parms")


def test_a_saved_plan_draws_without_its_program(tmp_path) -> None:
    plan = drawn(P("a", "b"), (16, 16))
    plan.save(tmp_path / "plan.json")
    assert str(planner.load(tmp_path / "plan.json").draw()) == str(plan.draw())


def test_charts_are_drawn_on_the_axes_that_are_given() -> None:
    figure = pytest.importorskip("matplotlib.figure")
    axes = figure.Figure().subplots(3)
    plan = planner.plan(train_step, train_args(), topology="cpu:8", options=NEVER, memory_limit=200e3)
    assert plan.plot_memory(axes[0]) is axes[0]
    assert [text.get_text() for text in axes[0].get_legend().get_texts()][-1] == "limit 200 kB"
    assert plan.plot_time(axes[1]) is axes[1]
    assert "tests/small.py:24" in [label.get_text() for label in axes[1].get_yticklabels()]
    other = planner.plan(train_step, train_args(), topology="cpu:4", options=NEVER)
    planner.compare(plan, other).plot(axes[2])
    assert axes[2].get_xlabel() == "B / A"
