"""Mixed precision: float32 weights, bfloat16 computing; where casts stand decides what travels between devices."""

import jax
import jax.numpy as jnp

import planner

jax.config.update("jax_num_cpu_devices", 8)


def cast(tree, dtype):
    return jax.tree.map(lambda leaf: leaf.astype(dtype), tree)


def train_step(params, x, y):
    def loss(params):
        low = cast(params, jnp.bfloat16)
        hidden = jax.nn.relu(x.astype(jnp.bfloat16) @ low["up"])
        return jnp.mean(((hidden @ low["down"]).astype(jnp.float32) - y) ** 2)

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads), value


params = {"up": jnp.full((256, 1024), 0.01), "down": jnp.full((1024, 256), 0.01)}
x = jax.random.normal(jax.random.key(0), (256, 256))
y = jnp.sin(x)

plan = planner.plan(train_step, (params, x, y), donate_argnums=0)
params, loss = plan(params, x, y)
print(f"loss {loss:.4f}, weights are {params['up'].dtype}")
for one in plan.predicted.collectives:
    print(
        f"{one.kind} over {','.join(one.axes)}: {one.count:g} x {one.bytes / 1e3:.0f} kB of {one.dtype}, {one.source}"
    )
