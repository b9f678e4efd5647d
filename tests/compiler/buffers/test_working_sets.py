"""The working sets of arrays that are written into others, on gradients that are summed over microbatches."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from planner.compiler.analysis import Model, model_of
from planner.compiler.targets.table import TPU
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.trace import trace

WIDTH = 256


def _summed(layers: int) -> Model:
    """Gradients of the weights of every layer, added to their sums over eight microbatches."""

    def step(total: jax.Array, weights: jax.Array, batch: jax.Array) -> jax.Array:
        def add(total: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
            def layer(n: int, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
                total, x = carry
                gradient = lax.dynamic_index_in_dim(total, n) + (x.T @ x)[None]
                return lax.dynamic_update_slice(total, gradient, (n, 0, 0)), jnp.tanh(x @ weights)

            return lax.fori_loop(0, layers, layer, (total, x))[0], None

        return lax.scan(add, total * 0.5, batch)[0] * 2

    shapes = (layers, WIDTH, WIDTH), (WIDTH, WIDTH), (8, 512, WIDTH)
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return model_of(build_graph(trace(step, args), while_trips=1.0), pinned_outputs=set(), kept=set(), compiler=TPU)


@pytest.mark.parametrize("layers", [4, 64])
def test_what_is_written_into_an_array_has_the_working_set_of_the_whole(layers: int) -> None:
    model = _summed(layers)
    (update,) = model.graph.of_kinds(("dynamic_update_slice",))
    part = update.operands[1]
    written = [
        access
        for of in (model.kernels.of_group.values() if model.kernels else ())
        for kernel in of
        for access in kernel.others
        if access.tensor == part
    ]
    assert written
    assert all(access.at_once >= layers for access in written)


def test_an_updated_slice_stays_where_its_stack_does() -> None:
    """A cache that is made in the program: the layers update a row of their slice and read all of it."""

    def layer(x: jax.Array, cache: jax.Array) -> tuple[jax.Array, jax.Array]:
        cache = lax.dynamic_update_slice(cache, x[:1], (3, 0))
        return jnp.tanh(x @ cache.T @ cache), cache

    def step(x: jax.Array, caches: jax.Array) -> tuple[jax.Array, jax.Array]:
        x, caches = lax.scan(layer, x, caches * 2)
        return x, jnp.sin(caches).sum(0)

    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((8, WIDTH), (16, 1024, WIDTH))]
    model = model_of(build_graph(trace(step, args), while_trips=1.0), pinned_outputs=set(), kept=set(), compiler=TPU)
    (update,) = model.graph.of_kinds(("dynamic_update_slice",))
    sets, whole = model.compiled.working_sets, update.operands[0]
    assert sets.per_byte(update.results[0]) == sets.per_byte(whole) >= 16
