"""Are programs planned for chips that are not here? See `targets`; `make fuzz` draws many more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import pytest

import planner
from tests.programs.builder import Do
from tests.programs.drawn import cases
from tests.programs.programs import Case, Description
from tests.programs.targets import TARGETS, failure_for

KNOWN: Mapping[str, Case] = {
    # What a pass of a loop moves was divided by the number of its passes.
    "a scan over nothing": (Description((((0,), "float32"),), (Do("scan", body=(Do("unary"),)),)), {"x": 2}),
    # Flattened, the two dims of a product with itself are one index twice: it was split once for both places together.
    "a flattened product with itself": (
        Description((((8, 16), "float32"),), (Do("dot"), Do("dynamic_slice", d=4))),
        {},
    ),
}


def half_a_square(x: jax.Array, y: jax.Array) -> jax.Array:
    return 0.5 * y @ jnp.tanh(x @ y)


def filtered(a: jax.Array, xs: jax.Array) -> jax.Array:
    return jax.vmap(lambda x, y: jnp.outer(x, y) @ (y - a @ x))(xs, jnp.sin(xs))


WRITTEN: Mapping[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    # A product of a number and a vector contracts nothing and has an operand without dims.
    "a gradient of a product of vectors": (jax.grad(half_a_square, argnums=(0, 1)), ((64, 64), (64,))),
    # A matmul that reads a transpose keeps no dim of it.
    "matrices times vectors in a batch": (filtered, ((32, 32), (64, 32))),
}


@pytest.mark.parametrize("topology", TARGETS)
@pytest.mark.parametrize("name", KNOWN)
def test_what_once_failed(name: str, topology: str) -> None:
    assert failure_for(KNOWN[name], topology) is None


@pytest.mark.parametrize("topology", TARGETS)
@pytest.mark.parametrize("name", WRITTEN)
def test_programs_written_by_hand(name: str, topology: str) -> None:
    fn, shapes = WRITTEN[name]
    args = tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    assert planner.plan(fn, args, topology=topology, options=planner.Options(check="never")).predicted.seconds > 0


@pytest.mark.parametrize("topology", TARGETS[::2])
@hypothesis.settings(max_examples=12)
@hypothesis.given(cases())
def test_random_programs_are_planned(topology: str, case: Case) -> None:
    assert failure_for(case, topology) is None
