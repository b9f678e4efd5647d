"""Programs small enough to plan in a fraction of a second, and what tests of the public API do with plans of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import planner
from planner.compiler.release_notes import release_notes
from planner.compiler.targets.table import compiler_of
from planner.testing import assert_same_as_single_device

NEVER = planner.Options(check="never")
WIDTH = 64


def mlp(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Two layers."""
    hidden = jax.nn.relu(x @ params["w0"] + params["b0"])
    return hidden @ params["w1"]


def mlp_params(width: int = WIDTH) -> dict[str, jax.Array]:
    keys = jax.random.split(jax.random.key(0), 2)
    return {
        "w0": jax.random.normal(keys[0], (width, width)),
        "b0": jnp.ones((width,)),
        "w1": jax.random.normal(keys[1], (width, width)),
    }


def mlp_args() -> tuple[dict[str, jax.Array], jax.Array]:
    return mlp_params(), jnp.linspace(0.0, 1.0, 32 * WIDTH).reshape(32, WIDTH)


def train_step(state: dict[str, Any], x: jax.Array) -> tuple[dict[str, Any], jax.Array]:
    """One step with momentum and second moments: the optimizer holds twice the parameters."""

    def loss(params: dict[str, jax.Array]) -> jax.Array:
        return jnp.mean(mlp(params, x) ** 2)

    value, grads = jax.value_and_grad(loss)(state["params"])
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["m"], grads)
    v = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, state["v"], grads)
    params = jax.tree.map(lambda p, m, v: p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), state["params"], m, v)
    return {"params": params, "m": m, "v": v}, value


def train_args(width: int = WIDTH, batch: int = 32) -> tuple[dict[str, Any], jax.Array]:
    params = mlp_params(width)
    zeros = jax.tree.map(jnp.zeros_like, params)
    return {"params": params, "m": zeros, "v": jax.tree.map(jnp.zeros_like, params)}, jnp.ones((batch, width))


def shapes(args: Any) -> Any:
    """The same arguments without values."""
    return jax.eval_shape(lambda: args)


def _host(value: Any) -> np.ndarray[Any, Any]:
    is_key = jax.dtypes.issubdtype(jnp.asarray(value).dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(value) if is_key else value)


def assert_same(found: Any, expected: Any) -> None:
    """The two pytrees have one structure and the same values."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.shape == jnp.shape(b)
        np.testing.assert_allclose(_host(a), _host(b), rtol=2e-5, atol=1e-5)


def notes_of_placing(plan: planner.Plan) -> tuple[str, ...]:
    """The notes of a plan but for those on the release of the compiler that is installed."""
    own = release_notes(compiler_of(plan.decision.request.topology.chip))
    return tuple(note for note in plan.notes if note not in own)


def planned(fn: Callable[..., Any], args: Sequence[Any], **more: Any) -> planner.Plan:
    """A plan for the devices as they are, that computes what the function computes."""
    devices = more.get("devices", jax.devices())
    return assert_same_as_single_device(fn, args, **{"topology": f"cpu:{len(devices)}", **more})
