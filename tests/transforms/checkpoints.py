"""One small program, written with every kind of checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from tests.transforms.kernels import BATCH, KERNELS, LAYERS, WIDTH, Attention, Step

POLICIES = jax.checkpoint_policies


def _masked(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Attention with a mask that is the same in every layer."""
    scores = jnp.where(jnp.tril(jnp.ones((BATCH, BATCH), bool)), q @ k.T, -1e9)
    return jax.nn.softmax(scores) @ v


ATTENTIONS: Mapping[str, Attention] = {**KERNELS, "masked": _masked}

_per_layer = partial[Any](partial, jax.checkpoint)
CHECKPOINTS: Mapping[str, Callable[[Step], Step]] = {
    "none": lambda layer: layer,
    "full": jax.checkpoint,
    "no_barrier": _per_layer(prevent_cse=False),
    "dots": _per_layer(policy=POLICIES.dots_saveable),
    "names": _per_layer(policy=POLICIES.save_only_these_names("mixed")),
    "all_but_names": _per_layer(policy=POLICIES.save_anything_except_these_names("mixed")),
    "twice": lambda layer: jax.checkpoint(jax.checkpoint(layer)),
}
"""What is put around a layer."""


def _layer(attention: Attention, x: jax.Array, w: Any) -> tuple[jax.Array, None]:
    q, k, v = jnp.split(x @ w["up"] @ w["up"].T @ jnp.tile(w["down"][:WIDTH], (1, 3)), 3, axis=-1)
    mixed = checkpoint_name(attention(q * w["scale"], k, v), "mixed")
    return x + jnp.tanh(mixed @ w["up"]) @ w["down"], None


def step(attention: str, checkpoint: str, *, scanned: bool) -> Step:
    """A train step of layers with attention of this kind and checkpoints of this kind."""
    return step_of(CHECKPOINTS[checkpoint](partial(_layer, ATTENTIONS[attention])), LAYERS, scanned=scanned)


def step_of(layer: Any, layers: int, *, scanned: bool) -> Step:
    """The value and gradients of so many layers, scanned or one after the other."""

    def loss(params: Any, x: jax.Array) -> jax.Array:
        if scanned:
            return jnp.mean(lax.scan(layer, x, params)[0] ** 2)
        for n in range(layers):
            x, _ = layer(x, jax.tree.map(lambda leaf, n=n: leaf[n], params))
        return jnp.mean(x**2)

    return jax.value_and_grad(loss)
