"""Whatever is saved and whatever computed again, the results are the same."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cost_models import parse_topology
from planner.errors import ArgumentError
from planner.program.form import Form
from planner.program.jaxpr.remat.scopes import crossings
from planner.program.tracing.trace import trace
from planner.program.tracing.traced import Program
from planner.transforms.apply import formed
from planner.transforms.remat_choice import Front
from tests.transforms.choices import drawn_choice, saves
from tests.transforms.loops import LAYERS, PROGRAMS, arguments
from tests.zoo import zoo_science

CHIP = parse_topology("v5e:4x4").chip


@cache
def _expected(name: str) -> tuple[Program, list[Any]]:
    program = trace(PROGRAMS[name](), arguments())
    return program, _results(program)


def _results(program: Program) -> list[Any]:
    return jax.jit(jex_core.jaxpr_as_fun(program.jaxpr))(*jax.tree.leaves(arguments()), *program.constants)


@pytest.mark.parametrize("name", PROGRAMS)
@settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_choice_computes_the_same(name: str, data: st.DataObject) -> None:
    program, expected = _expected(name)
    found = crossings(program)
    assert found
    other = formed(program, Form(saved=tuple(drawn_choice(data, crossing) for crossing in found)))
    for here, there in zip(expected, _results(other), strict=True):
        np.testing.assert_allclose(here, there, rtol=1e-4, atol=1e-5 * max(1.0, float(np.abs(there).max())))


def test_what_a_checkpoint_computes_again_is_known_to_be_the_same() -> None:
    (written,) = crossings(trace(PROGRAMS["checkpointed"](), arguments()))
    assert written.length == LAYERS
    assert [value.name for value in written.values if value.saved] == ["carry"]
    matmuls = [value for value in written.values if any(step.kind == "dot_general" for step in value.steps)]
    assert len(matmuls) == 1
    assert all(value.forward and value.repeated for value in matmuls)
    (other,) = crossings(trace(PROGRAMS["plain"](), arguments()))
    assert not any(value.repeated and value.steps[0].kind == "dot_general" for value in other.values)


def test_policies_and_names_are_seen() -> None:
    (by_policy,) = crossings(trace(PROGRAMS["with_policy"](), arguments()))
    assert [v.steps[0].kind for v in by_policy.values if v.saved and v.steps] == ["dot_general"]
    (by_name,) = crossings(trace(PROGRAMS["by_name"](), arguments()))
    assert "hidden" in [value.name for value in by_name.values if value.saved]


def test_random_numbers_are_not_drawn_twice_where_they_were_drawn_once() -> None:
    (crossing,) = crossings(trace(PROGRAMS["dropped"](), arguments()))
    drawn = [value for value in crossing.values if any(step.kind == "random_bits" for step in value.steps)]
    # The checkpoint draws them again, as it is written.
    assert all(value.repeatable and value.repeated for value in drawn)


def test_loops_in_loops_and_two_loops_are_found() -> None:
    assert len(crossings(trace(PROGRAMS["two_loops"](), arguments()))) == 2
    assert len(crossings(trace(PROGRAMS["accumulated"](), arguments()))) == 1


def test_a_program_without_a_backward_loop_has_no_crossings() -> None:
    def forward(params: Any, x: jax.Array) -> Any:
        return jax.lax.scan(lambda c, w: (c @ w @ w.T, None), x, params["up"])[0]

    assert crossings(trace(forward, arguments())) == ()


def test_values_of_another_program_are_refused() -> None:
    program = trace(PROGRAMS["plain"](), arguments())
    with pytest.raises(ArgumentError, match="no such values"):
        formed(program, Form(saved=((10_000,),)))
    with pytest.raises(ArgumentError, match="no such values"):
        formed(program, Form(saved=(None, (0,))))


def test_loops_that_hold_constants_cross_nothing() -> None:
    """As those have that `checkify` writes."""
    assert crossings(trace(*zoo_science.PROGRAMS["checked"]())) == ()


@pytest.mark.parametrize("name", ["flash", "pallas", "inner_loop", "branches", "looped"])
@pytest.mark.parametrize("layers", ["", "_written_out"])
def test_values_after_a_kernel_can_be_saved(name: str, layers: str) -> None:
    """Where all is saved nothing heavy is computed again, also what the forward pass does not read."""
    program, expected = _expected(name + layers)
    found = crossings(program)
    everything = Front(found, CHIP).everything
    for crossing, repeated in zip(found, everything.repeated, strict=True):
        again = {step.kind for i in repeated for step in crossing.values[i].steps if crossing.values[i].forward}
        assert again.isdisjoint({"dot_general", "pallas_call", "tanh", "exp", "reduce_max"})
    other = formed(program, Form(saved=everything.saved))
    for here, there in zip(expected, _results(other), strict=True):
        # Sums in another order; in float64 the results of loops that hold loops are the same to the bit.
        np.testing.assert_allclose(here, there, rtol=1e-4, atol=1e-5 * max(1.0, float(np.abs(there).max())))
    kernels = str(other.jaxpr).count("pallas_call[")
    assert kernels == (0 if name != "pallas" else LAYERS if layers else 1)


def test_a_loop_that_reads_what_another_has_carried_to_its_end() -> None:
    """The first loop cannot be handed it."""
    (crossing,) = crossings(trace(PROGRAMS["read_later"](), arguments()))
    assert [value.name for value in crossing.values] == ["carry"]


def test_derivatives_saved_of_what_the_loss_computes_too_are_computed_behind_it() -> None:
    weights, batch = [jnp.full((16, 16), 0.1 + 0.01 * n) for n in range(3)], jnp.arange(64.0).reshape(4, 16) / 64

    def scaled(x: jax.Array) -> jax.Array:
        return x * jax.lax.rsqrt(jnp.maximum(0.0, jnp.mean(x**2, axis=-1, keepdims=True)) + 1e-3)

    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for w in weights:
            x = x + jnp.tanh(scaled(x) @ w)
        return jnp.mean(jnp.sin(scaled(x)))

    step = jax.value_and_grad(loss)
    program = trace(step, (weights, batch))
    (found,) = crossings(program)
    other = formed(program, Form(saved=(saves(found, range(len(found.values))),)))
    results = jax.jit(jex_core.jaxpr_as_fun(other.jaxpr))(*weights, batch, *other.constants)
    for here, there in zip(jax.tree.leaves(step(weights, batch)), results, strict=True):
        np.testing.assert_allclose(here, there, rtol=1e-4, atol=1e-5)
