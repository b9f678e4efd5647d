"""What users of Equinox, Flax and data loaders meet first: each error is a sentence that says what to do."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import planner
from planner.errors import ArgumentError
from tests.small import NEVER

X = jnp.ones((8, 4))


def _told(call: Any) -> str:
    with pytest.raises(ArgumentError) as caught:
        call()
    words = str(caught.value)
    assert len(words) < 400
    assert "\n" not in words
    return words


def test_functions_among_the_leaves_of_an_equinox_module() -> None:
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.MLP(4, 4, 8, 1, key=jax.random.key(0))

    def apply(model: Any, x: jax.Array) -> jax.Array:
        return jax.vmap(model)(x)

    words = _told(lambda: planner.plan(apply, (model, X), mesh={"x": 8}, options=NEVER))
    assert "argument model/activation is the function" in words
    assert "eqx.partition(module, eqx.is_array)" in words
    arrays, rest = eqx.partition(model, eqx.is_array)
    p = planner.plan(lambda arrays, x: apply(eqx.combine(arrays, rest), x), (arrays, X), mesh={"x": 8}, options=NEVER)
    assert jnp.allclose(p(arrays, X), apply(model, X), atol=1e-5)
    words = _told(lambda: p(model, X))
    assert "arrays/activation was planned as None, got the function" in words


def test_a_train_state_with_another_optimizer() -> None:
    optax, train_state = pytest.importorskip("optax"), pytest.importorskip("flax.training.train_state")

    def apply(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        return x @ params["w"]

    def state(optimizer: Any) -> Any:
        return train_state.TrainState.create(apply_fn=apply, params={"w": jnp.ones((4, 4))}, tx=optimizer)

    def step(state: Any, x: jax.Array) -> Any:
        grads = jax.grad(lambda params: state.apply_fn(params, x).sum())(state.params)
        return state.apply_gradients(grads=grads)

    first = state(optax.adam(1e-3))
    p = planner.plan(step, (first, X), mesh={"x": 8}, options=NEVER)
    p(p(first, X), X)
    words = _told(lambda: p(state(optax.adam(1e-3)), X))
    assert words == (
        "step was planned for other arguments: state.tx is another object than was planned; use the same object, or one "
        "that is equal; make a plan for these"
    )


def test_the_last_part_of_a_batch() -> None:
    def loss(params: jax.Array, batch: dict[str, jax.Array]) -> jax.Array:
        return jnp.mean((batch["x"] @ params - batch["y"]) ** 2)

    p = planner.plan(loss, (jnp.ones(4), {"x": X, "y": jnp.ones(8)}), mesh={"x": 8}, options=NEVER)
    words = _told(lambda: p(jnp.ones(4), {"x": X[:3], "y": jnp.ones(3)}))
    assert words == (
        "argument batch/x was planned as float32[8, 4], got float32[3, 4]; make a plan for these shapes as well, or, if it "
        "is the last part of a batch, drop it or pad dim 0 from 3 to 8 and leave out of the result what comes of the "
        "padding"
    )
