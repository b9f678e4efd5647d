"""What the language models in plain JAX have in common: f32 parameters by their shapes, and the train step around them."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from benchmarks.models.base import Model, Size, Tree, arguments, matrices_only, seed, trained


def parameters(shapes: Tree, key: jax.Array) -> Tree:
    """f32 arrays of these shapes (tuples in a tree): ones where the name says "norm", else of standard deviation 0.02."""
    leaves, tree = jax.tree.flatten_with_path(shapes, is_leaf=lambda node: isinstance(node, tuple))
    values = [
        jnp.ones(shape)
        if "norm" in jax.tree_util.keystr(path)
        else 0.02 * jax.random.normal(jax.random.fold_in(key, n), shape)
        for n, (path, shape) in enumerate(leaves)
    ]
    return jax.tree.unflatten(tree, values)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """The mean of logsumexp(logits) - logits[label], picked by comparison so that the vocabulary may be split."""
    picked = jnp.where(labels[..., None] == jnp.arange(logits.shape[-1]), logits, 0.0).sum(axis=-1)
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked)


def language_model(
    name: str,
    forward: Callable[[Tree, jax.Array], jax.Array],
    shapes: Tree,
    *,
    vocabulary: int,
    sequence: int,
    batch: int,
    size: Size,
    clipped: bool = True,
    notes: str = "",
) -> Model:
    """A train step of AdamW on `batch` sequences; the batch is {"ids", "labels"}, each of shape (batch, sequence).

    `forward(params, ids)` returns the bf16 hidden states of shape (batch, sequence, width); parameters of the `shapes` have
    a "head" of shape (width, vocabulary). Gradients are `clipped` by their global norm; norms do not decay.
    """
    adamw = optax.adamw(3e-4, b1=0.9, b2=0.95, weight_decay=0.1, mask=matrices_only)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), adamw) if clipped else adamw

    def loss(params: Tree, batch: Tree) -> jax.Array:
        hidden = forward(params, batch["ids"])
        head = params["head"].astype(jnp.bfloat16)
        return cross_entropy(jnp.dot(hidden, head, preferred_element_type=jnp.float32), batch["labels"])

    def make() -> tuple[Tree, ...]:
        key_ids, key = jax.random.split(seed())
        tokens = jax.random.randint(key_ids, (batch, sequence + 1), 0, vocabulary)
        params = parameters(shapes, key)
        return params, optimizer.init(params), {"ids": tokens[:, :-1], "labels": tokens[:, 1:]}

    return trained(
        name,
        loss,
        optimizer,
        arguments(make, size),
        batch=batch,
        tokens=batch * sequence,
        notes=notes,
    )
