"""Fallbacks: what moves to smaller machines, which layout is taken, and a training that goes on when it was killed."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import planner
from cost_models import parse_topology
from planner.errors import ArgumentError
from planner.machine.target import Target
from planner.plans.plan import Plan
from planner.program.graph import Aval
from planner.studies.fallbacks.moved import CHIPS, HOST, NETWORK, Laid, move, survivors
from tests.fork_server import python
from tests.small import NEVER, shapes, train_args, train_step
from tests.studies.fallback_worker import RESUMED, SAVED_AFTER, batch_of, first_state
from tests.studies.fallback_worker import train_step as worker_step

ROOT = Path(__file__).resolve().parents[2]
ARGS = shapes(train_args(width=512, batch=4096))
MEGABYTE = Aval(shape=(1024, 256), dtype="float32", itemsize=4.0)


def laid(topology: str, mesh: dict[str, int], *specs: P) -> Laid:
    return Laid(target=Target(topology=parse_topology(topology), devices=None), shape=mesh, specs=specs)


@pytest.fixture(scope="module")
def today() -> planner.Plan:
    return planner.plan(train_step, ARGS, topology="v5e:4x4*2", donate_argnums=0, options=NEVER)


@pytest.fixture(scope="module")
def found(today: planner.Plan) -> planner.Fallbacks:
    return planner.fallbacks(today, ["v5e:4x4", "v5e:2x2", "h100:8"], options=NEVER)


def test_survivors_are_the_first_corner() -> None:
    assert survivors(parse_topology("v5e:4x4"), parse_topology("v5e:2x4")).tolist() == list(range(8))
    assert survivors(parse_topology("v5e:4x4"), parse_topology("v5e:2x2")).tolist() == [0, 1, 4, 5]
    assert survivors(parse_topology("v5e:2x2*2"), parse_topology("v5e:2x2")).tolist() == [0, 1, 2, 3]
    assert survivors(parse_topology("v5e:2x2"), parse_topology("v5e:2x2*2")).tolist() == [0, 1, 2, 3, -1, -1, -1, -1]
    assert set(survivors(parse_topology("v5e:2x2"), parse_topology("h100:4")).tolist()) == {-1}


def test_replicas_stay_and_lost_parts_come_from_hosts() -> None:
    whole = move(laid("cpu:8", {"x": 8}, P()), laid("cpu:4", {"x": 4}, P()), [MEGABYTE])
    assert (whole.kept_bytes, whole.bytes, whole.seconds) == (4 * MEGABYTE.bytes, 0.0, 0.0)
    split = move(laid("cpu:8", {"x": 8}, P("x")), laid("cpu:4", {"x": 4}, P("x")), [MEGABYTE])
    # Device 0 has half of its new part; parts 4 to 7 of 8 are lost.
    assert split.kept_bytes == MEGABYTE.bytes / 8
    assert split.by_link[CHIPS].bytes == 3 / 8 * MEGABYTE.bytes
    assert split.by_link[HOST].bytes == MEGABYTE.bytes / 2
    assert split.by_link[HOST].seconds == MEGABYTE.bytes / 4 / parse_topology("cpu:4").chip.host_link_bytes_per_s


def test_slices_that_hold_all_lose_nothing() -> None:
    before = laid("v5e:2x2*2", {"data": 2, "model": 4}, P("model"))
    after = move(before, laid("v5e:2x2", {"model": 4}, P("model")), [MEGABYTE])
    assert (after.kept_bytes, after.bytes) == (MEGABYTE.bytes, 0.0)
    # Of slices that each hold half, the other half comes over the network between them.
    halves = laid("v5e:2x2*2", {"data": 2, "model": 4}, P("data"))
    gathered = move(halves, laid("v5e:2x2*2", {"data": 2, "model": 4}, P()), [MEGABYTE])
    assert gathered.by_link[NETWORK].bytes == 8 * MEGABYTE.bytes / 2
    assert gathered.by_link[HOST].bytes == gathered.by_link[CHIPS].bytes == 0.0


@given(data=st.data())
def test_moves_are_those_of_single_elements(data: st.DataObject) -> None:
    """Against an oracle that follows every element, on the devices of one machine and on what is left of it."""
    axes = [(), ("x",), ("y",), ("x", "y"), ("y", "x")]
    pairs = [(a, b) for a in axes for b in axes if not set(a) & set(b)]
    left = data.draw(st.sampled_from(["cpu:8", "cpu:4", "cpu:2"]))
    sizes = {"cpu:8": [(2, 4), (4, 2), (8, 1)], "cpu:4": [(2, 2), (4, 1)], "cpu:2": [(2, 1)]}
    before, after = (
        laid(
            name,
            dict(zip("xy", data.draw(st.sampled_from(sizes[name])), strict=True)),
            P(*data.draw(st.sampled_from(pairs))),
        )
        for name in ("cpu:8", left)
    )
    shape = (8, 8)
    has, wants = (_elements(one, shape) for one in (before, after))
    count = after.target.topology.num_devices
    kept = sum(len(wants[d] & has[d]) for d in range(count))
    there = set[int]().union(*(has[d] for d in range(count)))
    loaded = sum(len(wants[d] - there) for d in range(count))
    total = sum(map(len, wants.values()))
    got = move(before, after, [Aval(shape=shape, dtype="float32", itemsize=1.0)])
    assert (got.kept_bytes, got.by_link[HOST].bytes, got.by_link[NETWORK].bytes) == (kept, loaded, 0.0)
    assert got.by_link[CHIPS].bytes == total - kept - loaded


def _elements(one: Laid, shape: tuple[int, ...]) -> dict[int, set[int]]:
    """The elements on every device, as JAX lays them."""
    devices = np.array(jax.devices()[: math.prod(one.shape.values())])
    order = one.target.topology.order(tuple(one.shape.values()))
    assert order is not None
    mesh = jax.sharding.Mesh(devices[order].reshape(tuple(one.shape.values())), tuple(one.shape))
    numbers = np.arange(math.prod(shape)).reshape(shape)
    places = jax.sharding.NamedSharding(mesh, one.specs[0]).devices_indices_map(shape)
    return {device.id: set(numbers[index].flat) for device, index in places.items()}


def test_every_row_has_a_plan_and_its_move(today: planner.Plan, found: planner.Fallbacks) -> None:
    state = sum(leaf.aval.bytes for leaf in today.decision.arguments if leaf.name.startswith("state/"))
    for row in found:
        assert row.plan is not None
        assert row.move is not None
        assert row.move.state_bytes == state
        assert row.plan.decision.arguments == today.decision.arguments
        alone = planner.plan(train_step, ARGS, topology=row.topology.name, donate_argnums=0, options=NEVER)
        assert row.plan.predicted.seconds <= 1.05 * alone.predicted.seconds
    by_name = {row["topology"]: row for row in found.summary["rows"]}
    assert by_name["h100:8"]["kept_bytes"] == 0.0
    assert by_name["h100:8"]["by_link"][HOST]["bytes"] == by_name["h100:8"]["moved_bytes"]
    assert found.plan_for("v5e:4x4") is found[0].plan
    with pytest.raises(ArgumentError, match="there is no fallback for 'v5e:8x8'; there are plans for v5e:4x4"):
        found.plan_for("v5e:8x8")
    assert str(found).startswith("Fallbacks of train_step for v5e:4x4*2")


def test_a_layout_with_less_to_move_is_taken_where_it_costs_little() -> None:
    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        return w + x.T @ x

    args = (jax.ShapeDtypeStruct((1024, 1024), jnp.float32), jax.ShapeDtypeStruct((8192, 1024), jnp.float32))
    pins, mesh = {"w": P(None, "model"), "out": P(None, "model")}, {"data": 2, "model": 4}
    pinned = planner.plan(step, args, topology="v5e:2x2*2", mesh=mesh, pins=pins, donate_argnums=0, options=NEVER)
    plan = _without_pins(pinned)
    rows = {within: planner.fallbacks(plan, ["v5e:2x2"], within=within, options=NEVER)[0] for within in (0.0, 100.0)}
    assert [rows[within].layout for within in (0.0, 100.0)] == ["fastest", "as today"]
    moves = [row.move for row in rows.values()]
    assert moves[0] is not None
    assert moves[1] is not None
    assert moves[1].bytes == 0.0 < moves[0].bytes


def _without_pins(plan: planner.Plan) -> planner.Plan:
    """The plan as if it had been found without pins."""
    decision = replace(plan.decision, request=replace(plan.decision.request, pins={}))
    return Plan(decision=decision, runner=plan.runner, alternatives=lambda: plan.alternatives)


def test_saved_fallbacks_are_loaded(found: planner.Fallbacks, tmp_path: Path) -> None:
    found.save(tmp_path / "all")
    record = json.loads((tmp_path / "all" / "fallbacks.json").read_text())
    for row, told in zip(found, record["rows"], strict=True):
        assert row.plan is not None
        assert planner.load(tmp_path / "all" / told["file"]).decision == row.plan.decision


def test_what_fits_nowhere_has_a_row(today: planner.Plan) -> None:
    small = planner.fallbacks(
        planner.plan(
            lambda w: w + 1, (jax.ShapeDtypeStruct((30_000, 30_000), jnp.float32),), topology="v5e:2x2", options=NEVER
        ),
        ["cpu:1"],
        options=NEVER,
    )
    assert small[0].plan is None
    assert small[0].why_none


def test_bad_input_is_told(today: planner.Plan) -> None:
    with pytest.raises(ArgumentError, match=r"plan is 'plan\.json'; give a plan"):
        planner.fallbacks("plan.json", ["v5e:2x2"])  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="within is -1; give a share"):
        planner.fallbacks(today, ["v5e:2x2"], within=-1)
    with pytest.raises(ArgumentError, match="topologies is 'v5e:2x2'; give a list"):
        planner.fallbacks(today, "v5e:2x2")


def test_fallbacks_run_on_the_devices_that_are_left() -> None:
    state, x = first_state(), batch_of(0)
    plan = planner.plan(worker_step, (state, x), donate_argnums=0)
    row = planner.fallbacks(plan, ["cpu:4"])[0]
    assert row.plan is not None
    assert row.compiled
    assert set(row.plan.mesh.devices.flat) <= set(jax.devices()[:4])
    wanted = worker_step(state, x)[1]
    np.testing.assert_allclose(row.plan(state, x)[1], wanted, rtol=1e-5)


def test_a_killed_training_goes_on_with_its_fallback(tmp_path: Path) -> None:
    pytest.importorskip("orbax.checkpoint")
    command = [sys.executable, "-m", "tests.studies.fallback_worker"]
    setting: dict[str, Any] = {"cwd": ROOT, "env": {**os.environ, "PYTHONPATH": str(ROOT)}, "text": True}
    with subprocess.Popen([*command, "train", str(tmp_path)], stdout=subprocess.PIPE, **setting) as training:
        assert training.stdout is not None
        for line in training.stdout:
            if json.loads(line)[0] > SAVED_AFTER:
                training.kill()
                break
    assert training.returncode < 0
    again = [*python(), "-m", "tests.studies.fallback_worker", "resume", str(tmp_path)]
    done = subprocess.run(again, capture_output=True, timeout=300, check=True, **setting)
    losses = [json.loads(line) for line in done.stdout.splitlines()]
    state, wanted = first_state(), list[tuple[int, float]]()
    for step in range(SAVED_AFTER + RESUMED):
        state, loss = jax.jit(worker_step)(state, batch_of(step))
        wanted.append((step, float(loss)))
    assert [step for step, _ in losses] == [step for step, _ in wanted[SAVED_AFTER:]]
    np.testing.assert_allclose([loss for _, loss in losses], [loss for _, loss in wanted[SAVED_AFTER:]], rtol=1e-5)
