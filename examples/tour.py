# %% [markdown]
# # A tour of Meshwright
#
# Ten minutes on a laptop: eight virtual CPU devices, a train step, and everything that a plan can tell of it. Run it as a
# script, `python examples/tour.py`, or cell by cell.

# %%
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import planner

jax.config.update("jax_num_cpu_devices", 8)
folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## A function for one device
#
# Nothing in it says how it is split.


# %%
def predict(params, x):
    for layer in params["layers"]:
        x = x + jax.nn.gelu(x @ layer["up"]) @ layer["down"]
    return x @ params["out"]


def train_step(state, x, y):
    def loss(params):
        return jnp.mean((predict(params, x) - y) ** 2)

    value, grads = jax.value_and_grad(loss)(state["params"])
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["momentum"], grads)
    params = jax.tree.map(lambda p, m: p - 0.01 * m, state["params"], momentum)
    return {"params": params, "momentum": momentum}, value


def init(key, width=256, hidden=1024, layers=3):
    def weight(i, rows, columns):
        return jax.random.normal(jax.random.fold_in(key, i), (rows, columns)) * rows**-0.5

    blocks = [{"up": weight(2 * i, width, hidden), "down": weight(2 * i + 1, hidden, width)} for i in range(layers)]
    params = {"layers": blocks, "out": weight(99, width, 16)}
    return {"params": params, "momentum": jax.tree.map(jnp.zeros_like, params)}


state = init(jax.random.key(0))
x = jax.random.normal(jax.random.key(1), (512, 256))
y = jnp.sin(x[:, :16])

# %% [markdown]
# ## Plan it
#
# The mesh and the spec of every array are found, the program is compiled, and run beside the single device.

# %%
plan = planner.plan(train_step, (state, x, y), donate_argnums=0, memory_limit="1GB")
print(plan)

# %% [markdown]
# ## Run it
#
# A plan is called as the function is. The state is donated, so each call takes what the last one gave.

# %%
args = (state, x, y)
print(plan.verify(*args))
for _ in range(3):
    state, loss = plan(state, x, y)
    print(f"loss {loss:.4f}")
print(state["params"]["layers"][0]["up"].sharding.spec)

# %% [markdown]
# ## Why this plan?
#
# What an array could have had instead, and the one reason why each costs more.

# %%
name = "state/params/layers/0/up"
print(plan.explain(name))
print(plan.draw(name))

# %% [markdown]
# ## What if?
#
# Another spec, mesh or memory limit, priced without tracing and without a search.

# %%
print(plan.what_if({"state/params/*": P()}))

# %% [markdown]
# ## Memory against time

# %%
front = planner.pareto(train_step, (state, x, y), points=3, donate_argnums=0, memory_limit="1GB")
print(front)

# %% [markdown]
# ## Keep it
#
# A saved plan is bound without a search, in this process or another. `compare` says where two plans differ.

# %%
plan.save(folder / "plan.json")
again = planner.load(folder / "plan.json").bind(train_step, (state, x, y))
print(planner.compare(plan, again).same)
data_parallel = planner.plan(
    train_step,
    (state, x, y),
    mesh={"data": 8},
    pins={"state/*": P(), "x": P("data"), "y": P("data")},
    donate_argnums=0,
    memory_limit="1GB",
)
print(planner.compare(plan, data_parallel))

# %% [markdown]
# ## What do your own shardings cost?

# %%
mesh = jax.make_mesh((8,), ("data",))
own = (jax.NamedSharding(mesh, P()), jax.NamedSharding(mesh, P("data")), jax.NamedSharding(mesh, P("data")))
print(planner.audit(train_step, (state, x, y), in_shardings=own))

# %% [markdown]
# ## Chips that are not here

# %%
shapes = jax.eval_shape(lambda: (state, x, y))
never = planner.Options(check="never")
print(planner.compare_topologies(train_step, shapes, ["v5e:2x2", "h100:8"], donate_argnums=0, options=never))

# %% [markdown]
# ## As a decorator
#
# `planner.jit` plans at the call, once per shapes, and lays everything out as the first plan does.

# %%
evaluate = planner.jit(predict, like=plan)
print(evaluate(state["params"], x).shape, evaluate(state["params"], x[:200]).shape, len(evaluate.plans))

# %% [markdown]
# ## For later
#
# A page that needs no network, the step for Perfetto, and the figures for a tracker of experiments.

# %%
plan.report(folder / "plan.html")
plan.trace(folder / "step.json")
print(sorted(path.name for path in folder.iterdir()))
print({name: plan.summary[name] for name in ("status", "devices", "seconds", "peak_bytes")})
