"""Weights that are fetched again in the backward pass, because memory has no room to hold them from the forward pass on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import planner
from planner.errors import PlanFileError
from planner.testing import assert_same_as_single_device
from planner.verify.aot import unavailable_reason
from tests.small import NEVER

LAYERS, WIDTH, WIDE = 4, 256, 2048
FORM = replace(NEVER, remat="as written", microbatches=1)


def step(weights: list[jax.Array], x: jax.Array) -> list[jax.Array]:
    """A train step of layers that are written out."""

    def loss(weights: list[jax.Array]) -> jax.Array:
        h = x
        for up, down in zip(weights[::2], weights[1::2], strict=True):
            h = h + jnp.tanh(h @ up) @ down
        return jnp.mean(h**2)

    return jax.tree.map(lambda p, g: p - 0.1 * g, weights, jax.grad(loss)(weights))


def arguments() -> tuple[list[jax.Array], jax.Array]:
    keys = jax.random.split(jax.random.key(0), 2 * LAYERS + 1)
    shapes = [(WIDTH, WIDE), (WIDE, WIDTH)] * LAYERS
    weights = [jax.random.normal(key, shape) / 16 for key, shape in zip(keys, shapes, strict=False)]
    return weights, jax.random.normal(keys[-1], (512, WIDTH))


def planned(limit: float | None, **given: Any) -> planner.Plan:
    return planner.plan(step, arguments(), donate_argnums=0, memory_limit=limit, options=FORM, **given)


@pytest.fixture(scope="module")
def tight() -> planner.Plan:
    """A plan that fits only where weights are fetched twice."""
    return planned(0.7 * planned(None).predicted.peak_bytes)


def barriers(plan: planner.Plan) -> int:
    return str(jax.make_jaxpr(plan.jit)(*arguments())).count("optimization_barrier")


def test_only_where_memory_is_short_are_weights_fetched_again(tight: planner.Plan) -> None:
    roomy = planned(None)
    assert not roomy.decision.refetched
    assert barriers(roomy) == 0
    limit = tight.decision.request.memory_limit
    assert tight.predicted.peak_bytes <= limit < roomy.predicted.peak_bytes
    assert len(tight.decision.refetched) > 1
    behind = {refetch.behind for refetch in tight.decision.refetched.values()}
    assert barriers(tight) >= len(behind)
    for (_, path, _), (_, waited) in tight.decision.refetched.items():
        assert waited[1][-1] < path[-1]


def test_what_is_computed_stays_the_same(tight: planner.Plan) -> None:
    assert_same_as_single_device(tight, arguments())


def test_the_promise_is_that_of_the_plan_explained_later(tight: planner.Plan) -> None:
    found = tight.alternatives
    assert found.chosen.memory.profile(found.chosen.choice).max() == pytest.approx(tight.predicted.peak_bytes)
    assert found.chosen.refetched


def test_a_file_keeps_what_is_fetched_again(tight: planner.Plan, tmp_path: Path) -> None:
    tight.save(tmp_path / "plan.json")
    loaded = planner.load(tmp_path / "plan.json")
    assert loaded.decision.refetched == tight.decision.refetched
    assert barriers(loaded.bind(step)) == barriers(tight)


@pytest.mark.parametrize(
    "change",
    [
        lambda row: row.update(behind_path=row["path"]),
        lambda row: row.update(behind_path=[]),
        lambda row: row.update(behind_path=["body", 0]),
        lambda row: row.update(behind_index=7),
        lambda row: row.update(shared=9),
        lambda row: row.update(shared=-1),
        lambda row: row.update(path=[9999]),
    ],
)
def test_a_file_in_which_something_cannot_wait_is_rejected(
    tight: planner.Plan, tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    tight.save(tmp_path / "plan.json")
    record = json.loads((tmp_path / "plan.json").read_text())
    change(record["refetched"][0])
    (tmp_path / "plan.json").write_text(json.dumps(record))
    with pytest.raises(PlanFileError, match="cannot wait"):
        planner.load(tmp_path / "plan.json").bind(step)


@pytest.mark.skipif(bool(unavailable_reason("tpu")), reason=unavailable_reason("tpu") or "libtpu is there")
def test_the_tpu_compiler_fetches_as_often_as_promised() -> None:
    shapes = [(2048, 8192), (8192, 2048)] * 3
    args = (
        [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes],
        jax.ShapeDtypeStruct((8192, 2048), jnp.bfloat16),
    )
    given = {"topology": "v5e:2x4", "mesh": {"x": 8}, "donate_argnums": 0, "options": FORM}
    roomy = planner.plan(step, args, **given)
    tight = planner.plan(step, args, memory_limit=0.85 * roomy.predicted.peak_bytes, **given)
    assert tight.decision.refetched
    found, before = tight.verify(), roomy.verify()
    assert found.collectives.ok, found.collectives
    assert not found.collectives.differs, found.collectives
    assert found.collectives.compiled_bytes > 1.15 * before.collectives.compiled_bytes
    assert found.memory.peak[1] < 0.9 * before.memory.peak[1]
