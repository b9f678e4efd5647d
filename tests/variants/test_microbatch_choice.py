"""Plans in microbatches: as many as are asked for, or as fit; what they promise is what runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import planner
from cost_models import parse_topology
from planner.errors import ArgumentError, InfeasibleError
from planner.program.form import Form
from tests.small import NEVER, assert_same, train_args, train_step
from tests.transforms.batch_programs import batch_norm, params, rows, scanned, tokens

MESH = {"data": 8}
WIDTH, BATCH = 64, 16384
SPLIT = {"x": jax.sharding.PartitionSpec("data")}


def four(**more: Any) -> planner.Plan:
    options = planner.Options(check="always", microbatches=4)
    return planner.plan(
        train_step,
        train_args(WIDTH, BATCH),
        topology="cpu:8",
        devices=jax.devices(),
        mesh=MESH,
        options=options,
        **more,
    )


@pytest.fixture(scope="module")
def made() -> planner.Plan:
    return four(pins=SPLIT, donate_argnums=0)


def test_what_is_promised_is_what_runs(made: planner.Plan) -> None:
    assert made.decision.form == Form(microbatches=4)
    assert all(check.ok for check in made.checked), made.checked
    args = train_args(WIDTH, BATCH)
    assert_same(made(*jax.tree.map(jnp.copy, args)), train_step(*args))
    assert made.verify(*train_args(WIDTH, BATCH)).ok


def test_it_is_told(made: planner.Plan) -> None:
    assert "4 microbatches, one after the other" in str(made)
    assert "runs as 4 microbatches of 4096 examples, whose sums are added up, as asked for" in made.notes


def test_the_data_stay_where_they_are(made: planner.Plan) -> None:
    """A batch that is split over devices is taken apart on each of them: what moves are sums."""
    found = made.verify().collectives
    assert found.ok
    assert {c.kind for c in made.predicted.collectives} == {"all-reduce"}


def test_sums_are_summed_over_devices_once(made: planner.Plan) -> None:
    assert {c.count for c in made.predicted.collectives} == {1}


def test_sums_of_layers_and_tables_are_summed_over_devices_once() -> None:
    """Gradients stacked by a scan over layers and scattered into an embedding wait for the end, as those outside of it."""
    made = planner.plan(
        scanned,
        (params(), jnp.tile(tokens(), (512, 1))),
        topology="cpu:8",
        devices=jax.devices(),
        mesh=MESH,
        options=planner.Options(check="always", microbatches=4),
    )
    assert all(check.ok for check in made.checked), made.checked
    assert {(c.kind, c.count) for c in made.predicted.collectives} == {("all-reduce", 1)}


def test_a_saved_plan_is_bound_in_its_form(made: planner.Plan, tmp_path: Path) -> None:
    made.save(tmp_path / "plan.json")
    bound = planner.load(tmp_path / "plan.json").bind(train_step)
    assert bound.decision == made.decision
    args = train_args(WIDTH, BATCH)
    assert_same(bound(*jax.tree.map(jnp.copy, args)), train_step(*args))
    assert "data" in str(bound.explain("x"))


def asked(memory_limit: float, microbatches: Any = "auto", fn: Any = train_step, args: Any = None) -> planner.Plan:
    return planner.plan(
        fn,
        train_args(WIDTH, 8192) if args is None else args,
        topology="cpu:8",
        memory_limit=memory_limit,
        donate_argnums=0,
        options=planner.Options(check="never", microbatches=microbatches),
    )


def test_no_more_passes_than_are_needed() -> None:
    """What fits as written runs as written; what does not, in as few passes as fit."""
    whole = asked(1e9)
    assert whole.decision.form == Form()
    with pytest.raises(InfeasibleError) as error:
        asked(1e3, microbatches=1)
    limit = 0.8 * (error.value.least_bytes or 0)
    parted = asked(limit)
    assert parted.decision.form.microbatches > 1
    assert parted.predicted.peak_bytes <= limit
    (note,) = [note for note in parted.notes if "microbatches" in note]
    assert "the whole batch at once needs about" in note


def on_a_tpu(memory: float, **options: Any) -> planner.Plan:
    """The plan for four chips with so much memory each."""
    topology = parse_topology("v5e:2x2")
    chip = replace(topology.chip, hbm_bytes=int(memory), on_chip_bytes=0.0)
    return planner.plan(
        train_step,
        train_args(WIDTH, 8192),
        topology=replace(topology, chip=chip),
        donate_argnums=0,
        options=planner.Options(check="never", **options),
    )


@pytest.mark.parametrize("count", [1, 2])
def test_a_batch_that_leaves_no_room_in_a_tpu_is_taken_in_more_parts(count: int) -> None:
    """Where its compiler may need more than is predicted; as few passes as leave room."""
    with pytest.raises(InfeasibleError) as error:
        on_a_tpu(1e4, microbatches=count)
    memory = 1.02 * (error.value.least_bytes or 0)
    assert on_a_tpu(memory, microbatches=count).predicted.peak_bytes > 0.95 * memory
    parted = on_a_tpu(memory)
    assert parted.decision.form.microbatches > count
    assert parted.predicted.peak_bytes <= 0.95 * memory
    told = "no plan of the whole batch at once leaves room" if count == 1 else "the whole batch at once needs about"
    assert any(told in note for note in parted.notes)


def test_what_does_not_fit_either_way_says_so() -> None:
    with pytest.raises(InfeasibleError, match="Nor does any plan fit with the batch of 8192 in microbatches"):
        asked(2e4)


def test_what_cannot_run_so_says_why() -> None:
    with pytest.raises(InfeasibleError, match=r"cannot run as microbatches: reduce_sum at .* sums over the batch"):
        asked(4e2, fn=batch_norm, args=(params(), rows()))
    with pytest.raises(ArgumentError, match=r"batch_norm cannot run as 2 microbatches: reduce_sum at .*"):
        asked(1e9, microbatches=2, fn=batch_norm, args=(params(), rows()))


@pytest.mark.parametrize("value", [0, -1, True, 2.0, "two"])
def test_numbers_of_passes_are_checked(value: Any) -> None:
    with pytest.raises(ArgumentError, match="microbatches"):
        planner.Options(microbatches=value)


def test_one_is_as_written() -> None:
    options = planner.Options(check="never", microbatches=1)
    args = train_args(WIDTH, 64)
    one = planner.plan(train_step, args, topology="cpu:8", mesh=MESH, options=options)
    assert (
        one.decision.fingerprint
        == planner.plan(train_step, args, topology="cpu:8", mesh=MESH, options=NEVER).decision.fingerprint
    )
