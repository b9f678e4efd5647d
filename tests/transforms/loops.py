"""Small programs with a forward and a backward loop, to be computed in other forms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from tests.transforms import checkpoints, kernels

Step = Callable[..., Any]
LAYERS, WIDTH, BATCH = 3, 8, 4


def _params() -> dict[str, jax.Array]:
    keys = jax.random.split(jax.random.key(0), 3)
    return {
        "up": jax.random.normal(keys[0], (LAYERS, WIDTH, 2 * WIDTH)) * 0.3,
        "down": jax.random.normal(keys[1], (LAYERS, 2 * WIDTH, WIDTH)) * 0.3,
        "scale": jax.random.normal(keys[2], (LAYERS, WIDTH)),
    }


def _block(x: jax.Array, layer: Any) -> tuple[jax.Array, None]:
    h = x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5) * layer["scale"]
    h = checkpoint_name(jax.nn.gelu(h @ layer["up"]), "hidden")
    return x + h @ layer["down"], None


def _step(block: Step) -> Step:
    def loss(params: Any, x: jax.Array) -> jax.Array:
        return jnp.mean(lax.scan(block, x, params)[0] ** 2)

    return jax.value_and_grad(loss)


def plain() -> Step:
    """No checkpoint."""
    return _step(_block)


def checkpointed() -> Step:
    """A checkpoint per layer."""
    return _step(jax.checkpoint(_block, prevent_cse=False))


def with_policy() -> Step:
    """A checkpoint per layer that saves the results of matmuls."""
    return _step(jax.checkpoint(_block, policy=jax.checkpoint_policies.dots_saveable))


def by_name() -> Step:
    """A checkpoint per layer that saves a named value."""
    return _step(jax.checkpoint(_block, policy=jax.checkpoint_policies.save_only_these_names("hidden")))


def dropped() -> Step:
    """Dropout, with a key per layer."""

    def block(x: jax.Array, layer: Any) -> tuple[jax.Array, None]:
        weights, key = layer
        kept = jax.random.bernoulli(key, 0.5, x.shape)
        return _block(jnp.where(kept, x * 2, 0.0), weights)

    def loss(params: Any, x: jax.Array) -> jax.Array:
        keys = jax.random.split(jax.random.key(7), LAYERS)
        return jnp.sum(lax.scan(jax.checkpoint(block), x, (params, keys))[0] ** 2)

    return jax.value_and_grad(loss)


def nested() -> Step:
    """A loop within a loop, both with checkpoints."""

    @jax.checkpoint
    def piece(part: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.tanh(part @ x.T) @ x

    def block(x: jax.Array, layer: Any) -> tuple[jax.Array, None]:
        mixed = lax.map(lambda part: piece(part, x), x.reshape(2, BATCH // 2, WIDTH)).reshape(x.shape)
        return _block(x + mixed, layer)

    return _step(jax.checkpoint(block))


def accumulated() -> Step:
    """The step in a loop over parts of the batch."""
    inner = checkpointed()

    def step(params: Any, x: jax.Array) -> Any:
        def add(total: Any, part: jax.Array) -> tuple[Any, jax.Array]:
            loss, gradient = inner(params, part)
            return jax.tree.map(jnp.add, total, gradient), loss

        zeros = jax.tree.map(jnp.zeros_like, params)
        return lax.scan(add, zeros, x.reshape(2, BATCH // 2, WIDTH))

    return step


def two_loops() -> Step:
    """An encoder, and a decoder that reads what the encoder made in every layer."""

    def loss(params: Any, x: jax.Array) -> jax.Array:
        seen, _ = lax.scan(jax.checkpoint(_block), x, params)

        def decode(y: jax.Array, layer: Any) -> tuple[jax.Array, None]:
            return _block(y + jax.nn.softmax(y @ seen.T) @ seen, layer)

        y, _ = lax.scan(jax.checkpoint(decode), x[::-1], params)
        return jnp.mean(y**2)

    return jax.value_and_grad(loss)


def carried() -> Step:
    """A recurrent cell with two carries, run backwards."""

    def loss(params: Any, x: jax.Array) -> jax.Array:
        def cell(carry: Any, xs: jax.Array) -> Any:
            h, c = carry
            c = jax.nn.sigmoid(h + xs) * c + jnp.tanh(xs @ params["up"][0][:, :WIDTH])
            h = jnp.tanh(c)
            return (h, c), h

        start = (jnp.zeros(WIDTH), jnp.zeros(WIDTH))
        return jnp.sum(lax.scan(cell, start, x, reverse=True)[1] ** 2)

    return jax.value_and_grad(loss)


def _layers(block: Step, count: int = 3) -> Step:
    def loss(params: Any, x: jax.Array) -> jax.Array:
        for n in range(count):
            x, _ = block(x, jax.tree.map(lambda leaf, n=n: leaf[n], params))
        return jnp.mean(x**2)

    return jax.value_and_grad(loss)


def written_out() -> Step:
    """Layers one after the other, no checkpoint."""
    return _layers(_block)


def written_out_checkpointed() -> Step:
    """Layers one after the other, a checkpoint for each."""
    return _layers(jax.checkpoint(_block))


def written_out_masked() -> Step:
    """Layers one after the other that all read one mask, with dropout."""

    def loss(params: Any, x: jax.Array) -> jax.Array:
        mask = jnp.tril(jnp.ones((BATCH, BATCH), bool))
        keys = jax.random.split(jax.random.key(3), LAYERS)
        for n in range(LAYERS):
            scores = jnp.where(mask, x @ x.T, -1e9)
            kept = jax.random.bernoulli(keys[n], 0.5, scores.shape)
            x = x + jnp.where(kept, jax.nn.softmax(scores) * 2, 0.0) @ x
            x, _ = _block(x, jax.tree.map(lambda leaf, n=n: leaf[n], params))
        return jnp.mean(x**2)

    return jax.value_and_grad(loss)


WRITTEN_OUT = (written_out, written_out_checkpointed, written_out_masked)
_MADE = (plain, checkpointed, with_policy, by_name, dropped, nested, accumulated, two_loops, carried, *WRITTEN_OUT)
_STEPS = {
    f"{attention}_{checkpoint}": partial(checkpoints.step, attention, checkpoint, scanned=True)
    for attention, checkpoint in (("masked", "twice"), ("flash", "twice"), ("flash", "dots"), ("inner_loop", "names"))
}
PROGRAMS: Mapping[str, Callable[[], Step]] = {**{made.__name__: made for made in _MADE}, **kernels.PROGRAMS, **_STEPS}


def arguments() -> tuple[Any, jax.Array]:
    """Arguments of every program."""
    return _params(), jax.random.normal(jax.random.key(1), (BATCH, WIDTH))
