"""Reading a failure: a model that does not fit, a pin that cannot be, and a shape that has no plan."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import planner
from planner.errors import InfeasibleError, PinError


def train_step(params, x):
    def loss(params):
        for weight in params:
            x_next = jnp.tanh(x @ weight)
        return jnp.mean(x_next**2)

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))


shapes = ([jax.ShapeDtypeStruct((8192, 8192), jnp.float32)] * 4, jax.ShapeDtypeStruct((4096, 8192), jnp.float32))
keywords = {"topology": "v5e:2x2", "donate_argnums": 0, "options": planner.Options(check="never")}

# What conflicts, the least memory that would do, and what would help.
try:
    planner.plan(train_step, shapes, memory_limit="200MB", **keywords)
except InfeasibleError as error:
    print(f"InfeasibleError: {error}\n")
    for offer in error.offers:
        print(f"- {offer.text}")

# A pattern that matches nothing names what there is.
try:
    planner.plan(train_step, shapes, pins={"parms/*": P("x")}, **keywords)
except PinError as error:
    print(f"\nPinError: {error}")

# With the memory that the error names there is a plan; its notes say what it took.
plan = planner.plan(train_step, shapes, memory_limit="2GB", **keywords)
print(f"\n{plan.predicted.peak_bytes / 1e9:.2f} GB per device, {plan.certificate.status}")
print(*plan.notes, sep="\n")
