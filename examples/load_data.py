"""A data loader fed by the plan: each device gets its part of the batch, in the layout that the plan expects.

Needs `pip install grain`; any iterator of host arrays does as well.
"""

import grain
import jax
import jax.numpy as jnp
import numpy as np

import planner

jax.config.update("jax_num_cpu_devices", 8)


def train_step(params, batch):
    def loss(params):
        return jnp.mean((jax.nn.relu(batch["x"] @ params["up"]) @ params["down"] - batch["y"]) ** 2)

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.5 * g, params, grads), value


def example(i):
    x = np.random.default_rng(i).normal(size=256).astype(np.float32)
    return {"x": x, "y": np.sin(x[:128])}


loader = grain.MapDataset.range(8192).map(example).batch(1024)

params = {"up": jax.random.normal(jax.random.key(0), (256, 128)) / 16, "down": jnp.zeros((128, 128))}
plan = planner.plan(train_step, (params, loader[0]), donate_argnums=0, options=planner.Options(inputs=["batch"]))
_, in_batch = plan.in_shardings
print(in_batch["x"].spec, f"{plan.predicted.fed_bytes / 1e3:.0f} kB per device and call")

# `device_put` returns at once: the next batch is on its way while the step before it runs.
placed = (jax.device_put(batch, in_batch) for batch in loader)
for batch in placed:
    params, loss = plan(params, batch)
print(f"loss {loss:.5f}")
