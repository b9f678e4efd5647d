"""Large broadcasts are made within the loops that read them."""

from __future__ import annotations

from typing import Any

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
from jax import lax

from planner.program.jaxpr.canonicalize.broadcasts_in_loops import LARGE_BYTES, with_broadcasts_in_loops

HEADS, SEQUENCE = 16, 512
SHAPE = (HEADS, SEQUENCE, SEQUENCE)


def _step(heads: int) -> Any:
    """A sum over passes that read a mask, broadcast to so many heads outside of the loop.

    The heads are weighted, because XLA:CPU of jaxlib 0.10.2 and later adds up a bare broadcast in a race of its threads.
    """

    def step(lengths: jax.Array, xs: jax.Array) -> jax.Array:
        mask = jnp.broadcast_to(jnp.arange(SEQUENCE) < lengths[:, None], (heads, SEQUENCE, SEQUENCE))
        weights = jnp.linspace(0, 1, heads)

        def add(total: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
            return total + jnp.where(mask, x, 0.0).sum((1, 2)) @ weights, None

        return lax.scan(add, jnp.float32(0), xs)[0]

    return step


def _operands(jaxpr: Any) -> list[tuple[int, ...]]:
    """The shapes that the loop of a program takes."""
    (loop,) = (eqn for eqn in jaxpr.jaxpr.eqns if eqn.primitive.name == "scan")
    return [atom.aval.shape for atom in loop.invars]


ARGS = (np.arange(SEQUENCE), np.linspace(0, 1, 3, dtype=np.float32))


def test_a_loop_takes_what_a_large_broadcast_is_made_of() -> None:
    traced = jax.make_jaxpr(_step(HEADS))(*ARGS)
    found = with_broadcasts_in_loops(traced)
    assert SHAPE in _operands(traced)
    assert SHAPE not in _operands(found)
    assert not any(eqn.outvars[0].aval.shape == SHAPE for eqn in found.jaxpr.eqns)
    (result,) = jex_core.jaxpr_as_fun(found)(*map(jnp.asarray, ARGS))
    np.testing.assert_allclose(result, _step(HEADS)(*ARGS), rtol=1e-6)


def test_a_small_broadcast_stays_outside() -> None:
    traced = jax.make_jaxpr(_step(1))(*ARGS)
    assert SEQUENCE**2 < LARGE_BYTES
    assert with_broadcasts_in_loops(traced) is traced


def test_what_is_no_larger_than_its_sources_stays_outside() -> None:
    def step(weights: jax.Array, xs: jax.Array) -> jax.Array:
        whole = weights < 0.5
        return lax.scan(lambda total, x: (total + jnp.where(whole, x, 0.0).sum(), None), jnp.float32(0), xs)[0]

    traced = jax.make_jaxpr(step)(np.zeros((2048, 2048), np.float32), ARGS[1])
    assert with_broadcasts_in_loops(traced) is traced
