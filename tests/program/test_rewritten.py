"""Complex numbers are summed by their parts, and arrays taken apart by slices."""

from __future__ import annotations

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
from jax import lax

from planner.program.jaxpr.bodies import equations_of
from planner.program.jaxpr.canonicalize.rewritten import rewritten


def _spectra(factors: jax.Array, xs: jax.Array) -> jax.Array:
    def add(total: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return total + (x * factors).sum((0, 1)), x.real.sum()

    return lax.scan(add, jnp.zeros(factors.shape, factors.dtype), xs)[0]


ARGS = (np.exp(1j * np.linspace(0, 3, 8)).astype(np.complex64), np.full((2, 4, 6, 8), 1 + 2j, np.complex64))


def test_a_sum_in_a_loop_is_of_real_numbers() -> None:
    traced = jax.make_jaxpr(_spectra)(*ARGS)
    found = rewritten(traced)
    summed = [eqn.outvars[0].aval for eqn in equations_of(found) if eqn.primitive.name == "reduce_sum"]
    assert [(aval.shape, aval.dtype) for aval in summed] == [((8,), np.float32), ((8,), np.float32), ((), np.float32)]
    (result,) = jex_core.jaxpr_as_fun(found)(*map(jnp.asarray, ARGS))
    np.testing.assert_allclose(result, _spectra(*ARGS), rtol=1e-6)


def test_sums_of_real_numbers_stay() -> None:
    traced = jax.make_jaxpr(lambda x: x.sum(0))(np.ones((4, 4), np.float32))
    assert rewritten(traced) is traced


def test_what_is_taken_apart_is_sliced() -> None:
    def fn(x: jax.Array) -> jax.Array:
        query, key, value = x
        return query * key + value

    x = np.arange(24, dtype=np.float32).reshape(3, 2, 4)
    found = rewritten(jax.make_jaxpr(fn)(x))
    assert {eqn.primitive.name for eqn in equations_of(found)} == {"slice", "squeeze", "mul", "add"}
    (result,) = jex_core.jaxpr_as_fun(found)(jnp.asarray(x))
    np.testing.assert_array_equal(result, fn(x))
