"""Loops within layers and over groups of layers: what can be saved does not depend on the checkpoints around them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import jax
import jax.extend.core as jex_core
import numpy as np
import pytest

from benchmarks.models import llama
from benchmarks.models.base import Model, Size
from benchmarks.models.checkpoints import Policy, with_policy
from planner.program.form import Form
from planner.program.jaxpr.remat.scopes import crossings, program_steps
from planner.program.tracing.trace import trace
from planner.program.tracing.traced import Program
from planner.transforms.apply import formed, without_checkpoints

LAYERS, SEQUENCE, BLOCK = 3, 24, 8


@cache
def _model(policy: Policy, scan: bool, block: int | None, size: Size) -> Model:
    config = replace(llama.SMALL, layers=LAYERS, sequence=SEQUENCE, query_block=block, scan=scan)
    return with_policy(llama.llama(config, batch=2, size=size), policy)


@cache
def _written(policy: Policy, scan: bool, block: int | None = BLOCK) -> Program:
    model = _model(policy, scan, block, "real")
    return trace(model.fn, model.args, donate_argnums=model.donate_argnums)


def _products(program: Program) -> Counter[object]:
    """How often a call computes products of matrices, by their shapes."""
    runs = Counter[object]()
    for step in program_steps(program):
        if step.kind == "dot_general":
            runs[step.results] += int(step.runs)
    return runs


def _most_stacked(program: Program) -> float:
    """The bytes of the largest value that may be saved of a layer."""
    return max(value.aval.bytes for crossing in crossings(program) for value in crossing.values if value.saved)


@pytest.mark.parametrize("scan", [True, False], ids=["scanned", "written_out"])
def test_scores_of_all_blocks_need_not_be_saved(scan: bool) -> None:
    program = _written("dots_saveable", scan)
    least = without_checkpoints(program)
    assert least is not None
    scores = 4 * 2 * llama.SMALL.heads * SEQUENCE * SEQUENCE
    assert _most_stacked(program) >= scores
    assert _most_stacked(least) < scores


def test_loops_that_keep_the_least_stay_as_they_are() -> None:
    assert without_checkpoints(_written("none", True)) is None


@pytest.mark.parametrize(("policy", "block"), [("dots_saveable", BLOCK), ("groups", None)])
def test_a_program_without_checkpoints_computes_the_same(policy: Policy, block: int | None) -> None:
    model = _model(policy, True, block, "small")
    program = _written(policy, True, block)
    least = formed(program, Form(without_checkpoints=True))
    flat = jax.tree.leaves(model.args)
    expected = jax.jit(jex_core.jaxpr_as_fun(program.jaxpr))(*flat)
    found = jax.jit(jex_core.jaxpr_as_fun(least.jaxpr))(*flat)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(one, float), np.asarray(other, float), rtol=2e-2, atol=1e-3)


def test_groups_of_layers_are_chosen_for_as_layers() -> None:
    least = without_checkpoints(_written("groups", True, None))
    assert least is not None
    alone = _written("as written", True, None)
    assert [crossing.length for crossing in crossings(least)] == [LAYERS]
    everything = [
        formed(program, Form(saved=(tuple(i for i, v in enumerate(crossings(program)[0].values) if v.forward),)))
        for program in (replace(least, form=Form(), written=None), alone)
    ]
    assert _products(everything[0]) == _products(everything[1])


def test_what_a_policy_saves_of_layers_written_out_may_be_computed_again() -> None:
    by_policy, whole = (crossings(_written(policy, False))[0] for policy in ("dots_saveable", "as written"))
    fixed = [sum(not value.repeatable for value in crossing.values) for crossing in (by_policy, whole)]
    assert fixed[0] == fixed[1]
