"""LoRA: base weights that stay as they are, small adapters that are trained; donated is the adapters' state alone."""

import jax
import jax.numpy as jnp

import planner

jax.config.update("jax_num_cpu_devices", 8)
WIDTH, HIDDEN, RANK = 256, 1024, 8


def forward(base, adapters, x):
    for layer, adapter in zip(base, adapters, strict=True):
        x = x + jax.nn.gelu(x @ layer["up"] + (x @ adapter["a"]) @ adapter["b"]) @ layer["down"]
    return x


def train_step(adapters, base, x, y):
    loss, grads = jax.value_and_grad(lambda a: jnp.mean((forward(base, a, x) - y) ** 2))(adapters)
    return jax.tree.map(lambda a, g: a - 0.5 * g, adapters, grads), loss


def weight(i, rows, columns):
    return jax.random.normal(jax.random.key(i), (rows, columns)) * rows**-0.5


base = [{"up": weight(2 * i, WIDTH, HIDDEN), "down": weight(2 * i + 1, HIDDEN, WIDTH)} for i in range(2)]
adapters = [{"a": weight(100 + i, WIDTH, RANK), "b": jnp.zeros((RANK, HIDDEN))} for i in range(2)]
x = jax.random.normal(jax.random.key(7), (128, WIDTH))
y = jnp.roll(x, 1, axis=1)

plan = planner.plan(train_step, (adapters, base, x, y), donate_argnums=0)
for name in ("base/0/up", "adapters/0/a", "adapters/0/b"):
    print(plan.draw(name))
first = None
for _ in range(5):
    adapters, loss = plan(adapters, base, x, y)
    first = loss if first is None else first
print(f"loss {first:.4f} -> {loss:.4f}")
assert loss < first
