"""Loops within layers and over groups of layers: what can be saved does not depend on the checkpoints around them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.models import llama
from benchmarks.models.base import Model, Size
from benchmarks.models.checkpoints import Policy, with_policy
from planner.program.form import Form
from planner.program.jaxpr.canonicalize.joined_loops import with_loops_joined
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


def _grouped(weights: tuple[jax.Array, jax.Array], x: jax.Array) -> jax.Array:
    """A loss of layers in groups, which all read one bias that is trained as well."""
    matrices, bias = weights

    def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        return x + jnp.tanh(jnp.tanh(x @ w + bias) @ w.T), None

    group = jax.checkpoint(lambda x, own: jax.lax.scan(jax.checkpoint(layer), x, own))
    return jnp.sum(jax.lax.scan(lambda x, own: (group(x, own)[0], None), x, matrices)[0] ** 2)


def test_a_gradient_that_groups_sum_from_zero_is_one_sum_over_all_layers() -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    weights = jax.random.normal(keys[0], (2, 3, 16, 16)) / 4, jax.random.normal(keys[1], (16,))
    args = weights, jax.random.normal(keys[2], (8, 16))
    program = trace(jax.value_and_grad(_grouped), args)
    least = without_checkpoints(program)
    assert least is not None
    (found,) = crossings(least)
    assert found.length == 6
    expected = jax.tree.leaves(jax.value_and_grad(_grouped)(*args))
    computed = jex_core.jaxpr_as_fun(least.jaxpr)(*jax.tree.leaves(args))
    for a, b in zip(computed, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("kept", "loops"), [(1.0, 1), (0.5, 2)], ids=["sum", "decaying"])
def test_only_sums_go_on_from_group_to_group(kept: float, loops: int) -> None:
    def member(total: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        return (total if kept == 1.0 else kept * total) + jnp.sin(w), None

    def of_groups(x: jax.Array) -> jax.Array:
        def group(total: jax.Array, own: jax.Array) -> tuple[jax.Array, None]:
            return total + jax.lax.scan(member, jnp.zeros(x.shape[2:]), own)[0], None

        return jax.lax.scan(group, x[0, 0], x)[0]

    x = jax.random.normal(jax.random.key(0), (2, 3, 5))
    joined = with_loops_joined(jax.make_jaxpr(of_groups)(x))
    assert str(joined).count("scan[") == loops
    np.testing.assert_allclose(jex_core.jaxpr_as_fun(joined)(x)[0], of_groups(x), rtol=1e-6)
