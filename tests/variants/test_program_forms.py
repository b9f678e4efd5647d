"""Each form of a program is made once, and what crosses in it is found once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import planner.variants.problem_variants as problem_variants
from planner.program.form import Form
from planner.program.jaxpr.remat.lifted_checkpoints import with_checkpoints_lifted
from planner.program.jaxpr.remat.scopes import scope_of
from planner.program.tracing.arguments import aval_of
from planner.program.tracing.trace import trace
from planner.program.tracing.traced import Program
from planner.variants.problem_variants import ProgramForms
from tests.transforms.checkpoints import CHECKPOINTS, step_of

LAYERS = 3


def _program(checkpoint: str) -> Program:
    def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        return x + jnp.tanh(jax.nn.gelu(x @ w) @ w.T), None

    step = step_of(CHECKPOINTS[checkpoint](layer), LAYERS, scanned=False)
    return trace(step, (jnp.ones((LAYERS, 8, 16)), jnp.ones((4, 8))))


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
