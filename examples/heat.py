"""A scientific program: heat on a torus, by finite differences, whose halo exchanges nobody writes."""

import jax
import jax.numpy as jnp

import planner

jax.config.update("jax_num_cpu_devices", 8)


def step(plate, _):
    around = sum(jnp.roll(plate, shift, axis) for shift in (-1, 1) for axis in (0, 1))
    return plate + 0.2 * (around - 4 * plate), None


def simulate(plate):
    plate, _ = jax.lax.scan(step, plate, length=50)
    return plate


plate = jnp.zeros((1024, 1024)).at[256:768, 256:768].set(100.0)
plan = planner.plan(simulate, (plate,), donate_argnums=0)
print(plan.draw())
for one in plan.predicted.collectives:
    print(f"{one.kind} over {','.join(one.axes)}: {one.count:g} x {one.bytes / 1e3:.3g} kB, {one.source}")
total = plate.sum()
plate = plan(plate)
print(f"hottest {plate.max():.1f}, heat {total:.4g} before and {plate.sum():.4g} after")
