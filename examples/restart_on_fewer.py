"""Restart on fewer devices: a checkpoint of eight devices, by Orbax, restored in the layout of a plan for four.

Needs `pip install orbax-checkpoint`.
"""

import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

import planner

jax.config.update("jax_num_cpu_devices", 8)


def train_step(params, x):
    loss, grads = jax.value_and_grad(lambda p: jnp.mean((jnp.tanh(x @ p["up"]) @ p["down"] - x) ** 2))(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


params = {"up": jnp.full((128, 512), 0.01), "down": jnp.full((512, 128), 0.01)}
x = jax.random.normal(jax.random.key(0), (64, 128))

eight = planner.plan(train_step, (params, x), donate_argnums=0)
params, loss = eight(params, x)
path = Path(tempfile.mkdtemp()) / "step_1"
with ocp.StandardCheckpointer() as saver:
    saver.save(path, params)

# The next day half of the machine is gone. The shapes of the state suffice for a plan.
shapes = jax.eval_shape(lambda: (params, x))
four = planner.plan(train_step, shapes, devices=jax.devices()[:4], donate_argnums=0)
wanted = jax.tree.map(
    lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
    shapes[0],
    four.in_shardings[0],
)
with ocp.StandardCheckpointer() as saver:
    restored = saver.restore(path, wanted)

restored, loss_after = four(restored, x)
print(f"loss {loss:.5f} on {eight.mesh.size} devices, {loss_after:.5f} on {four.mesh.size}")
assert float(loss_after) < float(loss)
