"""Each form of a program is made once, and what crosses in it is found once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import planner
import planner.variants.problem_variants as problem_variants
from planner.program.form import Form
from planner.program.jaxpr.remat.lifted_checkpoints import with_checkpoints_lifted
from planner.program.jaxpr.remat.scopes import scope_of
from planner.program.tracing.arguments import aval_of
from planner.program.tracing.trace import trace
from planner.program.tracing.traced import Program
from planner.transforms.batch import batch_of
from planner.variants.problem_variants import ProgramForms
from tests.small import NEVER
from tests.transforms.checkpoints import CHECKPOINTS, step_of

LAYERS = 3


ARGUMENTS = jnp.ones((LAYERS, 8, 16)), jnp.ones((4, 8))


def _step(checkpoint: str) -> Callable[..., Any]:
    def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        return x + jnp.tanh(jax.nn.gelu(x @ w) @ w.T), None

    return step_of(CHECKPOINTS[checkpoint](layer), LAYERS, scanned=False)


def _program(checkpoint: str) -> Program:
    return trace(_step(checkpoint), ARGUMENTS)


def test_what_crosses_is_found_once_for_all_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    walked: list[Program] = []

    def counted(program: Program) -> object:
        walked.append(program)
        return scope_of(program)

    monkeypatch.setattr(problem_variants, "scope_of", counted)
    forms = ProgramForms(written=_program("none"))
    (crossing,) = forms.crossings(Form())
    needed = tuple(i for i, value in enumerate(crossing.values) if value.needed)
    for saved in (needed, needed[:1]):
        assert forms.program(Form(saved=(saved,))).form.saved == (saved,)
    assert len(walked) == 1


def test_the_program_without_checkpoints_is_made_once() -> None:
    forms = ProgramForms(written=_program("full"))
    assert forms.start(Form(without_checkpoints=True)) is forms.without_checkpoints
    assert forms.without_checkpoints is not None


def test_a_program_without_loops_and_checkpoints_stays_as_it_is() -> None:
    assert with_checkpoints_lifted(_program("none")) is None


def test_equal_types_have_one_aval() -> None:
    one, other = (aval_of(jax.ShapeDtypeStruct((2, 3), jnp.bfloat16)) for _ in range(2))
    assert one is other


def test_the_batch_is_sought_where_parts_of_it_may_help(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no chip has room for arrays and memory is not short, no plan is one in parts, nor is a bound one of them."""
    sought: list[Program] = []

    def counted(program: Program) -> object:
        sought.append(program)
        return batch_of(program)

    monkeypatch.setattr(problem_variants, "batch_of", counted)
    for topology in ("cpu:2", "v5e:2x2"):
        plan = planner.plan(_step("none"), ARGUMENTS, topology=topology, options=NEVER)
        assert plan.certificate.any_form is not None
        assert bool(sought) == (topology != "cpu:2")
