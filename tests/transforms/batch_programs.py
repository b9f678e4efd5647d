"""Train steps and others whose batch may be taken in parts, or may not: small, each with one thing that matters here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.experimental import pallas as pl

from planner.rules.kernels.rule_for import rule_for

Params = dict[str, jax.Array]
BATCH, WIDTH, TOKENS, VOCABULARY = 8, 16, 6, 12


def params() -> Params:
    keys = iter(jax.random.split(jax.random.key(0), 8))
    return {
        "embedding": jax.random.normal(next(keys), (VOCABULARY, WIDTH)) * 0.3,
        "layers": jax.random.normal(next(keys), (2, WIDTH, WIDTH)) * 0.3,
        "scale": jnp.ones((2, WIDTH)),
        "head": jax.random.normal(next(keys), (WIDTH, VOCABULARY)) * 0.3,
    }


def rows() -> jax.Array:
    return jax.random.normal(jax.random.key(1), (BATCH, WIDTH))


def tokens() -> jax.Array:
    return jax.random.randint(jax.random.key(2), (BATCH, TOKENS), 0, VOCABULARY)


def mask() -> jax.Array:
    return (jnp.arange(BATCH * TOKENS).reshape(BATCH, TOKENS) % 5 != 0).astype(jnp.float32)


def layer(x: jax.Array, w: tuple[jax.Array, jax.Array]) -> jax.Array:
    weights, scale = w
    normed = x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale
    return x + jax.nn.gelu(normed @ weights)


def logits(p: Params, ids: jax.Array) -> jax.Array:
    """A scan over layers, each computed again for the gradient."""
    x = p["embedding"][ids]
    x, _ = lax.scan(lambda x, w: (jax.checkpoint(layer)(x, w), None), x, (p["layers"], p["scale"]))
    return x @ p["head"]


def losses(p: Params, ids: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits(p, ids)[:, :-1], ids[:, 1:])


def updated(p: Params, loss: Callable[[Params], jax.Array]) -> tuple[Params, jax.Array]:
    value, grads = jax.value_and_grad(loss)(p)
    return jax.tree.map(lambda w, g: w - 0.1 * g, p, grads), value


# ---------------------------------------------------------------- may be taken in parts


def scanned(p: Params, ids: jax.Array) -> Any:
    return updated(p, lambda p: losses(p, ids).mean())


def masked(p: Params, ids: jax.Array, m: jax.Array) -> Any:
    """The number of tokens that count is known of the whole batch only."""
    return updated(p, lambda p: jnp.sum(losses(p, ids) * m[:, 1:]) / jnp.maximum(jnp.sum(m[:, 1:]), 1.0))


def masked_within_remat(p: Params, ids: jax.Array, m: jax.Array) -> Any:
    loss = jax.checkpoint(lambda p: jnp.sum(losses(p, ids) * m[:, 1:]) / jnp.sum(m[:, 1:]))
    return updated(p, loss)


def clipped_adamw(state: Any, ids: jax.Array) -> Any:
    p, opt = state
    tx = optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(1e-3))
    value, grads = jax.value_and_grad(lambda p: losses(p, ids).mean())(p)
    updates, opt = tx.update(grads, opt, p)
    return (optax.apply_updates(p, updates), opt), {"loss": value, "norm": optax.tree.norm(grads)}


def adam_state() -> Any:
    tx = optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(1e-3))
    return params(), tx.init(params())


def dropped_out(p: Params, ids: jax.Array, key: jax.Array) -> Any:
    """Bits drawn for the whole batch, in every layer and behind them."""

    def loss(p: Params) -> jax.Array:
        def step(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
            weights, scale, key = w
            kept = jax.random.bernoulli(key, 0.7, x.shape)
            return layer(jnp.where(kept, x / 0.7, 0.0), (weights, scale)), None

        keys = jax.random.split(key, 3)
        x, _ = lax.scan(jax.checkpoint(step), p["embedding"][ids], (p["layers"], p["scale"], keys[:2]))
        x = jnp.where(jax.random.bernoulli(keys[2], 0.5, x.shape), x, 0.0)
        return jnp.mean((x @ p["head"]) ** 2)

    return updated(p, loss)


def examples(p: Params, ids: jax.Array) -> Any:
    """What is returned for every example, and of all of them: a mean, a greatest, an order."""
    found = losses(p, ids).mean(-1)
    answers = jnp.argmax(logits(p, ids), -1)
    return {"losses": found, "worst": found.max(), "order": jnp.argsort(found), "right": jnp.mean(answers == ids)}


def loss_scaled(p: Params, ids: jax.Array, scale: jax.Array) -> Any:
    """An update that is left out where a gradient is not finite."""
    value, grads = jax.value_and_grad(lambda p: losses(p, ids).mean() * scale)(p)
    grads = jax.tree.map(lambda g: g / scale, grads)
    finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(grads)]))
    new = lax.cond(finite, lambda: jax.tree.map(lambda w, g: w - 0.1 * g, p, grads), lambda: p)
    return new, value / scale, finite


def regularised(p: Params, ids: jax.Array) -> Any:
    return updated(p, lambda p: losses(p, ids).mean() + 0.1 * sum(jnp.sum(w * w) for w in jax.tree.leaves(p)))


def narrow(p: Params, x: jax.Array) -> Any:
    """Gradients in bfloat16, whose sums are taken in float32."""

    def loss(p: Params) -> jax.Array:
        small = jax.tree.map(lambda w: w.astype(jnp.bfloat16), p)
        return jnp.mean(
            (jax.nn.gelu(x.astype(jnp.bfloat16) @ small["layers"][0]) @ small["head"]).astype(jnp.float32) ** 2
        )

    return updated(p, loss)


def recurrent(p: Params, ids: jax.Array) -> Any:
    """A scan over time, whose gradient adds up in its carry; the batch is not the leading dim inside."""

    def loss(p: Params) -> jax.Array:
        def step(h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            h = jnp.tanh(x + h @ p["layers"][0])
            return h, h

        xs = jnp.swapaxes(p["embedding"][ids], 0, 1)
        _, hs = lax.scan(step, jnp.zeros((ids.shape[0], WIDTH)), xs)
        return jnp.mean((hs @ p["head"]) ** 2)

    return updated(p, loss)


def convolved(p: Params, x: jax.Array) -> Any:
    """Rows as images, flattened with the batch as the major factor of a dim."""

    def loss(p: Params) -> jax.Array:
        image = x.reshape(-1, 4, 4, 1)
        kernel = p["layers"][0][:9, :4].reshape(3, 3, 1, 4)
        found = jax.nn.relu(
            lax.conv_general_dilated(image, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        )
        return jnp.mean(found.reshape(-1, 4) ** 2)

    return updated(p, loss)


def looped(p: Params, x: jax.Array) -> jax.Array:
    """A loop until a counter says so, and one branch of several, by a number that is no part of the batch."""

    def more(carry: tuple[jax.Array, jax.Array]) -> jax.Array:
        return carry[0] < 3

    def step(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        i, h = carry
        return i + 1, lax.switch(i % 2, [jnp.sin, lambda h: h @ p["layers"][0]], h)

    return lax.while_loop(more, step, (jnp.int32(0), x))[1]


def summed_before(p: Params, x: jax.Array) -> Any:
    """Rows normalised by statistics of the data alone, which take little."""
    normed = (x - x.mean(0)) / (x.std(0) + 1e-5)
    return updated(p, lambda p: jnp.mean((normed @ p["layers"][0]) ** 2))


def gamma(x: jax.Array, key: jax.Array) -> jax.Array:
    """Every element is drawn by its place in the whole."""
    return jnp.sin(x) * jax.random.gamma(key, jnp.ones(x.shape[:1]))[:, None]


def without_elements(x: jax.Array) -> jax.Array:
    return jnp.concatenate([jnp.sin(x)[:, :0], jnp.cos(x)], 1)


def orthogonalised(p: Params, x: jax.Array) -> Any:
    """An optimizer that multiplies matrices, more than the model does."""

    def step(w: jax.Array, g: jax.Array) -> jax.Array:
        for _ in range(4 if w.ndim == 3 else 0):
            g = 1.5 * g - 0.5 * g @ jnp.swapaxes(g, 1, 2) @ g
        return w - 0.1 * g

    value, grads = jax.value_and_grad(lambda p: jnp.mean(jnp.tanh(x @ p["layers"][0]) ** 2))(p)
    return jax.tree.map(step, p, grads), value


def doubled_rows(x: jax.Array) -> jax.Array:
    def kernel(x: Any, out: Any) -> None:
        out[...] = 2 * x[...]

    spec = pl.BlockSpec((1, x.shape[1]), lambda i: (i, 0))
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(kernel, grid=x.shape[:1], in_specs=[spec], out_specs=spec, out_shape=shape, interpret=True)(x)


def _opaque_product(x: jax.Array, y: jax.Array) -> jax.Array:
    shape = jax.ShapeDtypeStruct((x.shape[0], y.shape[1]), x.dtype)
    return jax.pure_callback(lambda x, y: np.asarray(x) @ np.asarray(y), shape, x, y)


_product = rule_for(_opaque_product, "b i, i j -> b j | reduce i")


@jax.custom_vjp
def kernels(x: jax.Array, w: jax.Array) -> jax.Array:
    """A Pallas kernel, and one with a rule of its user's, which sums over the batch for the gradient."""
    return _product(doubled_rows(x), w)


kernels.defvjp(
    lambda x, w: (kernels(x, w), (x, w)),
    lambda saved, g: (doubled_rows(_product(g, saved[1].T)), _product(doubled_rows(saved[0]).T, g)),
)


def in_kernels(p: Params, x: jax.Array) -> Any:
    def loss(p: Params) -> jax.Array:
        y, _ = lax.scan(lambda x, w: (jnp.tanh(kernels(x, w)), None), x, p["layers"])
        return jnp.mean((y @ p["head"]) ** 2)

    return updated(p, loss)


PARTED: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "adamw, clipped": (clipped_adamw, lambda: (adam_state(), tokens())),
    "branch on gradients": (loss_scaled, lambda: (params(), tokens(), jnp.float32(8.0))),
    "convolution": (convolved, lambda: (params(), rows())),
    "dropout": (dropped_out, lambda: (params(), tokens(), jax.random.key(3))),
    "draws by place": (gamma, lambda: (rows(), jax.random.key(3))),
    "examples returned": (examples, lambda: (params(), tokens())),
    "loops and branches": (looped, lambda: (params(), rows())),
    "mask": (masked, lambda: (params(), tokens(), mask())),
    "mask within remat": (masked_within_remat, lambda: (params(), tokens(), mask())),
    "narrow sums": (narrow, lambda: (params(), rows())),
    "optimizer of matmuls": (orthogonalised, lambda: (params(), rows())),
    "recurrence": (recurrent, lambda: (params(), tokens())),
    "regularised": (regularised, lambda: (params(), tokens())),
    "scan over layers": (scanned, lambda: (params(), tokens())),
    "statistics of data": (summed_before, lambda: (params(), rows())),
    "without elements": (without_elements, lambda: (rows(),)),
    "kernels": (in_kernels, lambda: (params(), rows())),
}
"""By what matters: a function and its arguments."""


# ---------------------------------------------------------------- may not


def batch_norm(p: Params, x: jax.Array) -> Any:
    def loss(p: Params) -> jax.Array:
        h = x @ p["layers"][0]
        h = (h - h.mean(0)) * lax.rsqrt(h.var(0) + 1e-5)
        return jnp.mean((h @ p["head"]) ** 2)

    return updated(p, loss)


def contrastive(p: Params, x: jax.Array) -> Any:
    """Every example against all others of the batch."""

    def loss(p: Params) -> jax.Array:
        a, b = x @ p["layers"][0], x @ p["layers"][1]
        return optax.softmax_cross_entropy_with_integer_labels(a @ b.T, jnp.arange(x.shape[0])).mean()

    return updated(p, loss)


def hardest(p: Params, ids: jax.Array) -> Any:
    """The mean of the greatest losses of the batch."""
    return updated(p, lambda p: lax.top_k(losses(p, ids).mean(-1), 4)[0].mean())


def capacity(p: Params, x: jax.Array) -> Any:
    """An expert takes the first examples that are sent to it, counted over the batch."""

    def loss(p: Params) -> jax.Array:
        chosen = jax.nn.one_hot(jnp.argmax(x @ p["head"], -1), VOCABULARY)
        place = jnp.cumsum(chosen, 0) * chosen
        kept = jnp.sum(jnp.where(place <= 2, chosen, 0.0), -1, keepdims=True)
        return jnp.mean(((x * kept) @ p["layers"][0]) ** 2)

    return updated(p, loss)


def one_by_one(p: Params, x: jax.Array) -> jax.Array:
    """What an example leaves is taken by the next."""
    return lax.scan(lambda h, row: (jnp.tanh(h @ p["layers"][0] + row),) * 2, jnp.zeros(WIDTH), x)[1]


def accumulated(p: Params, ids: jax.Array) -> Any:
    """A program that takes its batch in two parts itself."""

    def step(grads: Params, part: jax.Array) -> tuple[Params, None]:
        return jax.tree.map(jnp.add, grads, jax.grad(lambda p: losses(p, part).mean())(p)), None

    return lax.scan(step, jax.tree.map(jnp.zeros_like, p), ids.reshape(2, -1, TOKENS))[0]


REFUSED: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]], str]] = {
    "accumulated": (accumulated, lambda: (params(), tokens()), "reshape at .*takes the whole batch at once"),
    "batch norm": (
        batch_norm,
        lambda: (params(), rows()),
        "reduce_sum at .*batch_programs.py.* sums over the batch.*dot_general",
    ),
    "capacity": (capacity, lambda: (params(), rows()), "cumsum at .*takes the whole batch at once"),
    "contrastive": (contrastive, lambda: (params(), rows()), "dot_general at .*takes the whole batch at once"),
    "hardest examples": (hardest, lambda: (params(), tokens()), "takes the whole batch at once"),
    "one by one": (one_by_one, lambda: (params(), rows()), "loop_slice at .*takes the whole batch at once"),
}
"""By why: a function, its arguments, and what the reason says."""
