"""Stacks of a loop inside that a loop adds to its carry: added slice by slice by the loop inside, with the same results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from planner.program.jaxpr.bodies import equations_of
from planner.program.jaxpr.canonicalize.added_stacks import with_stacks_added

PARTS, LAYERS, WIDTH, BATCH = 4, 3, 8, 2
RANDOM = np.random.default_rng(0)
W = RANDOM.standard_normal((LAYERS, WIDTH, WIDTH)).astype(np.float32)
X = RANDOM.standard_normal((PARTS, BATCH, WIDTH)).astype(np.float32)
Step = Callable[[jax.Array, jax.Array], jax.Array]


def _loss(w: jax.Array, x: jax.Array) -> jax.Array:
    layers = w.astype(jnp.bfloat16)
    h, _ = lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x.astype(jnp.bfloat16), layers)
    return jnp.mean(h.astype(jnp.float32) ** 2)


def _loss_of_groups(w: jax.Array, x: jax.Array) -> jax.Array:
    """Of layers in groups: as many of one layer as there are layers."""

    def group(h: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        return lax.scan(lambda h, w: (jnp.tanh(h @ w), None), h, w)[0], None

    return jnp.mean(lax.scan(group, x, w)[0] ** 2)


def _in_groups(w: jax.Array, x: jax.Array) -> Any:
    return _accumulated(jax.grad(_loss_of_groups))(w[:, None], x)


def _forward(w: jax.Array, x: jax.Array) -> jax.Array:
    """A stack that a forward loop makes."""
    return lax.scan(lambda h, w: (jnp.tanh(h @ w), w + h.sum()), x, w)[1]


def _two(w: jax.Array, x: jax.Array) -> jax.Array:
    return jax.grad(_loss)(w, x) + jax.grad(_loss)(w, 2 * x)


def _scaled_before(w: jax.Array, x: jax.Array) -> jax.Array:
    scale = jnp.exp2(jnp.floor(x[0, 0]))
    return jax.grad(_loss)(w, x) * scale


def _scaled_late(w: jax.Array, x: jax.Array) -> jax.Array:
    """Scaled by what is known once the loop has run."""
    of_weights, of_x = jax.grad(_loss, (0, 1))(w, x)
    return of_weights * of_x.sum()


def _accumulated(gradient: Step, *, add: Callable[..., Any] | None = None, then: Any = None) -> Callable[..., Any]:
    """A loop over microbatches that adds up gradients."""

    def step(w: jax.Array, x: jax.Array) -> Any:
        def part(total: jax.Array, x: jax.Array) -> Any:
            found = gradient(w, x)
            return total + found if add is None else add(total, found, x), None if then is None else then(total, found)

        return lax.scan(part, 0 * gradient(w, x[0]), x)

    return step


ADDED: dict[str, Callable[..., Any]] = {
    "gradients": _accumulated(jax.grad(_loss)),
    "of groups": _in_groups,
    "a forward loop": _accumulated(_forward),
    "called": _accumulated(jax.jit(jax.grad(_loss))),
    "scaled": _accumulated(jax.grad(_loss), add=lambda total, found, x: found / PARTS + total),
    "scaled by what is known before": _accumulated(_scaled_before),
    "by a checkpoint": _accumulated(
        jax.grad(lambda w, x: lax.scan(jax.checkpoint(lambda h, w: (jnp.tanh(h @ w), None)), x, w)[0].sum())
    ),
}
OTHERWISE: dict[str, Callable[..., Any]] = {
    "the total is read": _accumulated(jax.grad(_loss), then=lambda total, found: total.sum()),
    "the stack is read": _accumulated(jax.grad(_loss), then=lambda total, found: found.max()),
    "two stacks": _accumulated(_two),
    "not slice by slice": _accumulated(jax.grad(_loss), add=lambda total, found, x: total + found[::-1]),
    "scaled by what is known later": _accumulated(_scaled_late),
    "no sum": _accumulated(jax.grad(_loss), add=lambda total, found, x: total * found),
}


def _updates(jaxpr: Any) -> int:
    return sum(eqn.primitive.name == "dynamic_update_slice" for eqn in equations_of(jaxpr))


@pytest.mark.parametrize("name", ADDED)
def test_slices_are_added_in_the_loop_that_makes_them(name: str) -> None:
    before = jax.make_jaxpr(ADDED[name])(W, X)
    after = with_stacks_added(before)
    assert (_updates(before), _updates(after)) == (0, 1)
    one, other = (jax.jit(jex_core.jaxpr_as_fun(jaxpr))(W, X) for jaxpr in (before, after))
    for mine, expected in zip(one, other, strict=True):
        np.testing.assert_array_equal(mine, expected)
    assert with_stacks_added(after) is after


@pytest.mark.parametrize("name", OTHERWISE)
def test_stacks_with_other_readers_are_not_rewritten(name: str) -> None:
    before = jax.make_jaxpr(OTHERWISE[name])(W, X)
    assert with_stacks_added(before) is before
