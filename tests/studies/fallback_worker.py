"""Trains until it is killed, or goes on from its checkpoint on what is left of the devices; prints the loss of every step.

    python tests/studies/fallback_worker.py train FOLDER
    python tests/studies/fallback_worker.py resume FOLDER

`train` is on 8 virtual devices, `resume` on 4, with the fallback that `train` has left in the folder.
"""

from __future__ import annotations

import json
import os
import sys
from itertools import count
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    from tests.xla_flags import with_devices

    DEVICES = {"train": 8, "resume": 4}[sys.argv[1]]
    os.environ |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": with_devices(DEVICES)}

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

import planner
from planner.studies.fallbacks.record import SUMMARY

SAVED_AFTER = 3
"""Steps before the checkpoint."""
RESUMED = 3
"""Steps after it."""


def batch_of(step: int) -> jax.Array:
    """The batch of a step."""
    return jax.random.normal(jax.random.key(step), (64, 32))


def train_step(state: Any, x: jax.Array) -> tuple[Any, jax.Array]:
    """Momentum."""

    def loss(params: Any) -> jax.Array:
        return jnp.mean((jnp.tanh(x @ params["up"]) @ params["down"] - x) ** 2)

    value, grads = jax.value_and_grad(loss)(state["params"])
    m = jax.tree.map(lambda m, g: 0.9 * m + g, state["m"], grads)
    return {"params": jax.tree.map(lambda p, m: p - 0.1 * m, state["params"], m), "m": m}, value


def first_state() -> Any:
    """The state before training."""
    up, down = jax.random.split(jax.random.key(99))
    params = {"up": 0.1 * jax.random.normal(up, (32, 128)), "down": 0.1 * jax.random.normal(down, (128, 32))}
    return {"params": params, "m": jax.tree.map(jnp.zeros_like, params)}


def tell(step: int, loss: jax.Array) -> None:
    """Prints a step's loss as a line of JSON."""
    print(json.dumps([step, float(loss)]), flush=True)


def train(folder: Path) -> None:
    """Trains without end, with a checkpoint after `SAVED_AFTER` steps."""
    state = first_state()
    plan = planner.plan(train_step, (state, batch_of(0)), donate_argnums=0)
    planner.fallbacks(plan, ["cpu:4"]).save(folder / "fallbacks")
    (state,) = plan.place(state, batch_of(0))[:1]
    for step in count():
        if step == SAVED_AFTER:
            with ocp.StandardCheckpointer() as checkpointer:
                checkpointer.save(folder / "checkpoint", state)
        state, loss = plan(state, batch_of(step))
        tell(step, loss)


def resume(folder: Path) -> None:
    """Goes on from the checkpoint."""
    record = json.loads((folder / "fallbacks" / SUMMARY).read_text())
    saved = planner.load(folder / "fallbacks" / record["rows"][0]["file"])
    plan = saved.bind(train_step, jax.eval_shape(lambda: (first_state(), batch_of(0))))
    with ocp.StandardCheckpointer() as checkpointer:
        state = checkpointer.restore(folder / "checkpoint", plan.abstract_arguments[0])
    for step in range(SAVED_AFTER, SAVED_AFTER + RESUMED):
        state, loss = plan(state, batch_of(step))
        tell(step, loss)


if __name__ == "__main__":
    {"train": train, "resume": resume}[sys.argv[1]](Path(sys.argv[2]).absolute())
