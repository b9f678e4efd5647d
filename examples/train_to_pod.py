# %% [markdown]
# # From a laptop to a pod
#
# A Flax nnx model and Optax, written for one device: trained on eight virtual CPU devices, then planned for 16 TPUs that
# are not here. Needs `pip install flax optax`.

# %%
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import planner

jax.config.update("jax_num_cpu_devices", 8)

# %% [markdown]
# ## The model and the step


# %%
class Classifier(nnx.Module):
    def __init__(self, width, rngs):
        self.first = nnx.Linear(784, width, rngs=rngs)
        self.second = nnx.Linear(width, width, rngs=rngs)
        self.last = nnx.Linear(width, 10, rngs=rngs)

    def __call__(self, images):
        return self.last(nnx.relu(self.second(nnx.relu(self.first(images)))))


def train_step(model, optimizer, images, labels):
    def loss(model):
        return optax.softmax_cross_entropy_with_integer_labels(model(images), labels).mean()

    value, grads = nnx.value_and_grad(loss)(model)
    optimizer.update(model, grads)
    return value


def start(width, batch):
    model = Classifier(width, nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)
    images = jax.random.normal(jax.random.key(0), (batch, 784))
    return model, optimizer, images, jnp.arange(batch) % 10


# %% [markdown]
# ## Train on the devices at hand

# %%
args = start(width=256, batch=256)
plan = planner.plan(train_step, args)
for _ in range(5):
    loss = plan(*args)  # model and optimizer are updated in place
    print(f"loss {loss:.4f}")

# %% [markdown]
# ## Plan for a pod
#
# The same step with a wider model and a larger batch: shapes suffice. On the pod, `bind` takes the saved plan without a
# search.

# %%
large = jax.eval_shape(lambda: start(width=8192, batch=16384))
pod = planner.plan(train_step, large, topology="v5e:4x4", options=planner.Options(check="never"))
path = Path(tempfile.mkdtemp()) / "pod.json"
pod.save(path)
print(pod.mesh, pod.certificate.status)
print(f"{pod.predicted.seconds * 1e3:.1f} ms per step, {pod.predicted.peak_bytes / 1e9:.2f} GB per chip")
