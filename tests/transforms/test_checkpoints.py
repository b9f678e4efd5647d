"""What a program's checkpoints are makes no difference to what can be saved."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import planner
from benchmarks.models.base import Model
from benchmarks.models.checkpoints import Policy, with_policy
from cost_models import parse_topology
from planner.program.form import Form
from planner.program.jaxpr.remat.scopes import crossings, program_steps
from planner.program.tracing.trace import trace
from planner.transforms.apply import formed
from planner.transforms.remat_choice import Front
from tests.problems import small_model
from tests.transforms.checkpoints import ATTENTIONS, CHECKPOINTS, step
from tests.transforms.loops import arguments

IN_PART = {(attention, policy) for attention in ("inner_loop", "branches") for policy in ("dots", "names")}
"""Of a loop or a branch the policy saves some of the results, so that the backward pass runs another loop or branch."""
CASES = [(a, c) for a in ATTENTIONS for c in CHECKPOINTS if c != "none" and (a, c) not in IN_PART]
ALIKE = 1.01
SOME: tuple[Policy, ...] = ("as written", "none", "dots_saveable")
CHIP = parse_topology("v5e:4x4").chip
VIEWS = ("reduce_precision", "name", "broadcast_in_dim", "reshape", "squeeze", "optimization_barrier")
"""What checkpoints add, and what may stand in loops or outside."""


@cache
def _with_all_saved(attention: str, checkpoint: str, scanned: bool) -> Counter[str]:
    """How often each kind of op runs where everything is saved."""
    program = trace(step(attention, checkpoint, scanned=scanned), arguments())
    everything = Front(crossings(program), CHIP).everything
    runs = Counter[str]()
    for one in program_steps(formed(program, Form(saved=everything.saved))):
        if one.kind not in VIEWS:
            runs[one.kind] += int(one.runs)
    return runs


@pytest.mark.parametrize("scanned", [True, False], ids=["scanned", "written_out"])
@pytest.mark.parametrize(("attention", "checkpoint"), CASES)
def test_with_all_saved_a_program_computes_no_more_than_without_checkpoints(
    attention: str, checkpoint: str, scanned: bool
) -> None:
    expected = _with_all_saved(attention, "none", scanned)
    assert not _with_all_saved(attention, checkpoint, scanned) - expected


def test_what_policies_mark_is_not_computed() -> None:
    """JAX marks what it saves by rounding it to the type that it has."""
    program = trace(step("masked", "dots", scanned=True), arguments())
    everything = Front(crossings(program), CHIP).everything
    assert "reduce_precision" in str(program.jaxpr)
    assert "reduce_precision" not in str(formed(program, Form(saved=everything.saved)).jaxpr)


def _seconds(fn: Any, args: Any, remat: Any) -> float:
    options = planner.Options(check="never", remat=remat, microbatches=1)
    return planner.plan(fn, args, topology="v5e:2x2", options=options).predicted.seconds


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=st.sampled_from(CASES), scanned=st.booleans())
def test_a_plan_with_all_saved_takes_no_longer_for_checkpoints(case: tuple[str, str], scanned: bool) -> None:
    attention, checkpoint = case
    without = _seconds(step(attention, "none", scanned=scanned), arguments(), "none")
    assert _seconds(step(attention, checkpoint, scanned=scanned), arguments(), "none") <= ALIKE * without


@pytest.mark.parametrize("name", [pytest.param("deep", marks=pytest.mark.slow), "llama"])
def test_plans_of_models_do_not_depend_on_their_checkpoints(name: str) -> None:
    models: list[Model] = [with_policy(small_model(name), policy) for policy in SOME]
    seconds = [_seconds(model.fn, model.args, "none") for model in models]
    assert max(seconds) <= ALIKE * min(seconds)
