"""What a data loader reads and hands over by the `in_shardings` of a plan, on eight virtual devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import planner
from tests.small import NEVER

BATCH = 2048
SHAPES = {
    "image": jax.ShapeDtypeStruct((BATCH, 16, 16), jnp.float32),
    "label": jax.ShapeDtypeStruct((BATCH,), jnp.float32),
}
WEIGHTS = {
    name: np.random.default_rng(0).normal(size=shape).astype(np.float32) / 16
    for name, shape in {"in": (256, 256), "middle": (256, 256), "out": (256,)}.items()
}


class Images:
    """A source of examples as grain takes one."""

    def __len__(self) -> int:
        return 3 * BATCH

    def __getitem__(self, i: int) -> Mapping[str, Any]:
        pixels = np.random.default_rng(i).normal(size=(16, 16)).astype(np.float32)
        return {"image": pixels, "label": np.float32(pixels[0].sum())}


def train_step(weights: Any, batch: Any) -> Any:
    def loss(weights: Any) -> Any:
        x = batch["image"].reshape(-1, 256)
        return jnp.mean(
            (jnp.tanh(jnp.tanh(x @ weights["in"]) @ weights["middle"]) @ weights["out"] - batch["label"]) ** 2
        )

    value, gradients = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - 0.01 * g, weights, gradients), value


@pytest.fixture(scope="module")
def plan() -> planner.Plan:
    return planner.plan(train_step, (WEIGHTS, SHAPES), donate_argnums=0, options=NEVER)


def rows(plan: planner.Plan, name: str) -> dict[int, list[int]]:
    """The examples of which every device holds a part."""
    found = plan.in_shardings[1][name].addressable_devices_indices_map(SHAPES[name].shape)
    return {device.id: np.arange(BATCH)[where[0]].tolist() for device, where in found.items()}


def test_devices_hold_parts_of_the_examples_the_same_of_all_arrays(plan: planner.Plan) -> None:
    images, labels = rows(plan, "image"), rows(plan, "label")
    assert images == labels
    assert {row for held in images.values() for row in held} == set(range(BATCH))
    assert max(len(held) for held in images.values()) < BATCH


def test_batches_of_a_grain_loader_train_as_on_one_device(plan: planner.Plan) -> None:
    grain = pytest.importorskip("grain")
    here = sorted({row for held in rows(plan, "image").values() for row in held})
    every = grain.MapDataset.source(Images()).shuffle(seed=0)
    mine = grain.MapDataset.range(2 * len(here)).map(lambda i: every[i // len(here) * BATCH + here[i % len(here)]])
    weights, alone = WEIGHTS, WEIGHTS
    for local in mine.batch(len(here)).to_iter_dataset():
        batch = jax.tree.map(
            lambda sharding, part, shape: jax.make_array_from_process_local_data(sharding, part, shape.shape),
            plan.in_shardings[1],
            local,
            SHAPES,
        )
        assert jax.tree.map(lambda x: x.sharding, batch) == plan.in_shardings[1]
        weights, loss = plan(weights, batch)
        alone, expected = jax.jit(train_step)(alone, local)
        np.testing.assert_allclose(loss, expected, rtol=1e-4)
    np.testing.assert_allclose(weights["in"], alone["in"], rtol=1e-4, atol=1e-6)
