"""Pallas kernels that nothing reads are dead code, like all else."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from planner.program.jaxpr.bodies import equations_of
from planner.program.jaxpr.dead_code import without_dead_code, without_dead_kernels
from planner.program.tracing.trace import trace
from planner.transforms.apply import in_microbatches
from planner.transforms.batch import batch_of
from tests.transforms.batch_programs import doubled_rows

X = jax.ShapeDtypeStruct((8, 16), jnp.float32)


@jax.custom_vjp
def _differentiable(x: jax.Array) -> jax.Array:
    return doubled_rows(x)


_differentiable.defvjp(lambda x: (doubled_rows(x), None), lambda _, g: (doubled_rows(g),))


def _names(jaxpr: Any) -> list[str]:
    return [eqn.primitive.name for eqn in equations_of(jaxpr)]


def _unread(x: jax.Array) -> jax.Array:
    doubled_rows(jnp.sin(x))
    return jnp.cos(x)


def _unread_in_loop(x: jax.Array) -> jax.Array:
    return lax.fori_loop(0, 3, lambda _, x: _unread(x), x)


@pytest.mark.parametrize("fn", [_unread, _unread_in_loop])
def test_kernels_that_nothing_reads_are_dropped_with_what_they_read(fn: Any) -> None:
    traced = jax.make_jaxpr(fn)(X)
    kept = _names(without_dead_code(traced.jaxpr))
    assert "cos" in kept
    assert not {"pallas_call", "sin"} & set(kept)


def test_kernels_that_are_read_stay() -> None:
    traced = jax.make_jaxpr(lambda x: doubled_rows(x) + 1)(X)
    assert without_dead_kernels(traced) is traced


def test_a_traced_program_has_no_dead_kernels() -> None:
    assert "pallas_call" not in _names(trace(_unread, (X,)).jaxpr)


def test_microbatches_leave_no_kernel_of_the_whole_batch() -> None:
    """The layers before the loop would read what only the loop's own copies of them need."""

    def step(weights: list[jax.Array], x: jax.Array) -> list[jax.Array]:
        def loss(weights: list[jax.Array]) -> jax.Array:
            h = x
            for weight in weights:
                h = jnp.tanh(_differentiable(h) @ weight)
            return jnp.mean(h**2)

        return jax.tree.map(lambda w, g: w - g, weights, jax.grad(loss)(weights))

    program = trace(step, ([jax.ShapeDtypeStruct((16, 16), jnp.float32)] * 3, X))
    made = in_microbatches(program, 2, batch_of(program))
    calls = [eqn for eqn in equations_of(made.jaxpr) if eqn.primitive.name == "pallas_call"]
    assert {eqn.invars[0].aval.shape for eqn in calls} == {(4, 16)}
    weights, x = [np.eye(16, dtype=np.float32)] * 3, np.linspace(0, 1, 128, dtype=np.float32).reshape(8, 16)
    found = jax.core.eval_jaxpr(made.jaxpr.jaxpr, made.jaxpr.consts, *weights, x)
    for one, other in zip(found, step(list(map(jnp.asarray, weights)), jnp.asarray(x)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
