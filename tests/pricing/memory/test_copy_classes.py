"""Which copies stand beside their source, and that all ways of asking agree."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import planner
from planner.compiler.schedule.live_ranges import Beside
from planner.pricing.memory.copy_classes import Classes, needed
from planner.pricing.memory.memory_model import MemoryModel
from tests.problems import small_problem


def _classes(*rows: tuple[float, tuple[int, int]]) -> Classes:
    return Classes(
        of=np.arange(len(rows)),
        bytes=np.asarray([size for size, _ in rows]),
        locations=np.asarray([where for _, where in rows], np.int8),
    )


STACK, NO_STACK_GATHERED = (8, 512, 4096), 130e6


def _layers(x: jax.Array, w: jax.Array) -> jax.Array:
    """Each weight is used twice."""
    return lax.scan(lambda x, w: (jnp.tanh(x @ w) @ w.T, None), x, w)[0]


WHOLE, BY_ROWS, BY_COLUMNS, BY_BOTH = (16.0, (-1, -1)), (4.0, (0, -1)), (4.0, (1, -1)), (1.0, (0, 1))


@pytest.mark.parametrize(
    ("beside", "stand"),
    [
        ("more", [True, False, False, False]),
        ("elsewhere", [True, False, True, False]),
        ("apart", [True, False, True, True]),
    ],
)
def test_more_stands_another_part_where_the_source_stays_and_a_part_before_a_loop(
    beside: Beside, stand: list[bool]
) -> None:
    table = needed(_classes(BY_ROWS), _classes(WHOLE, BY_ROWS, BY_COLUMNS, BY_BOTH), beside)
    assert table.tolist() == [stand]


def test_a_stack_is_transposed_for_collectives_on_later_dims_of_its_slices() -> None:
    stacks = _classes((16.0, (-1, -1)), (4.0, (0, -1)), (4.0, (1, -1)), (4.0, (2, -1)), (1.0, (1, 2)))
    slices = _classes(WHOLE, BY_ROWS, BY_COLUMNS)
    assert needed(slices, stacks, "behind").tolist() == [
        [False, False, False, True, True],
        [False, False, False, True, True],
        [False, False, False, False, True],
    ]


@pytest.mark.parametrize(("topology", "relaid"), [("h100:8", 1), ("v5e:2x4", 0)])
def test_gpus_store_weights_twice_that_a_loop_gathers_by_columns(topology: str, relaid: int) -> None:
    def peak(spec: P) -> float:
        pins = {"w": spec, "x": P("x")}
        args = jax.ShapeDtypeStruct((32768, 512), jnp.float32), jax.ShapeDtypeStruct(STACK, jnp.float32)
        plan = planner.plan(
            *(_layers, args),
            topology=topology,
            mesh={"x": 8},
            pins=pins,
            memory_limit=NO_STACK_GATHERED,
            options=planner.Options(check="never"),
        )
        return plan.predicted.peak_bytes

    own = 4 * math.prod(STACK) / 8
    assert peak(P(None, None, "x")) - peak(P(None, "x")) == pytest.approx(relaid * own, abs=0.05 * own)


@pytest.mark.parametrize("name", ["moe", "lstm"])
def test_rows_charge_for_a_copy_where_the_profile_does(name: str) -> None:
    """The choices that the node of a copy leaves, for a source and a target, have the bytes of that copy, at the least."""
    memory = MemoryModel(instance=small_problem(name).instance({"x": 4, "y": 2}))
    rng = np.random.default_rng(0)
    for copy in memory.copies[:200]:
        choice = [int(rng.integers(len(strategies))) for strategies in memory.instance.strategies]
        usage, to_target, to_source = memory._tied(copy)  # pyright: ignore[reportPrivateUsage]
        left = np.isfinite(to_target[:, choice[copy.target]]) & np.isfinite(to_source[:, choice[copy.source]])
        assert usage[left].min() == copy.bytes(choice)
