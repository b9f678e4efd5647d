"""A program in microbatches computes what it computes as written; one that cannot be is refused with the op."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.extend.core import check_jaxpr

from planner.errors import ArgumentError
from planner.program.batch_parts import Part
from planner.program.form import AS_WRITTEN, Form
from planner.program.jaxpr.flatten import build_graph
from planner.program.jaxpr.microbatch.slicing import put_back, stacked, taken
from planner.program.jaxpr.rewrite import plain
from planner.program.tracing.trace import trace
from planner.program.tracing.traced import Program
from planner.transforms.apply import formed
from planner.transforms.batch import Refused, batch_of
from tests.transforms.batch_programs import BATCH, PARTED, REFUSED, params, rows, scanned, tokens, updated


def results(program: Program, args: Any) -> list[Any]:
    return jax.jit(plain(program))(*jax.tree.leaves(args), *program.constants)


def assert_close(found: list[Any], expected: list[Any], rtol: float) -> None:
    for mine, its in zip(found, expected, strict=True):
        assert (mine.shape, mine.dtype) == (its.shape, its.dtype)
        if np.issubdtype(its.dtype, np.floating):
            its = np.asarray(its, np.float64)
            np.testing.assert_allclose(
                np.asarray(mine, np.float64), its, rtol=rtol, atol=rtol * max(np.abs(its).max(), 1e-3)
            )
        else:
            np.testing.assert_array_equal(mine, its)


def in_parts(program: Program, count: int) -> Program:
    found = formed(program, Form(microbatches=count))
    check_jaxpr(getattr(found.jaxpr, "jaxpr", found.jaxpr))
    return found


@pytest.mark.parametrize("name", PARTED)
def test_results_are_the_same(name: str) -> None:
    fn, made = PARTED[name]
    args = made()
    program = trace(fn, args)
    found = in_parts(program, 4)
    assert found.form == Form(microbatches=4)
    assert found.as_written.jaxpr is program.jaxpr
    assert found.as_written.form == AS_WRITTEN
    assert (found.arguments, found.results, found.in_tree, found.out_tree) == (
        program.arguments,
        program.results,
        program.in_tree,
        program.out_tree,
    )
    assert_close(results(found, args), results(program, args), 1e-2 if name == "narrow sums" else 2e-5)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(name=st.sampled_from(sorted(PARTED)), count=st.sampled_from((1, 2, 4, 8)))
def test_any_number_of_parts_will_do(name: str, count: int) -> None:
    fn, made = PARTED[name]
    args = made()
    program = trace(fn, args)
    assert_close(
        results(in_parts(program, count), args), results(program, args), 1e-2 if name == "narrow sums" else 2e-5
    )


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_with_the_op(name: str) -> None:
    fn, made, why = REFUSED[name]
    with pytest.raises(ArgumentError, match=f"cannot run as 2 microbatches: .*{why}"):
        formed(trace(fn, made()), Form(microbatches=2))


def test_a_batch_that_does_not_divide_is_told_with_what_would_do() -> None:
    with pytest.raises(ArgumentError, match="has 8 examples; give one of 1, 2, 4, 8"):
        formed(trace(scanned, (params(), tokens())), Form(microbatches=3))


def test_a_function_without_a_batch_is_told() -> None:
    assert batch_of(trace(lambda x: x + 1, (1.0,))) == Refused(
        why="none of its arguments has a dim that could be a batch"
    )


def test_a_part_holds_of_every_so_many_examples_one() -> None:
    """So that what splits the batch over devices splits every part alike."""
    x = np.arange(2 * 24).reshape(2, 24)
    how: Any = {"part": Part(dim=1, before=3, after=2), "extent": 4, "count": 2}
    parts = stacked(x, **how)
    assert np.asarray(parts[1, 0]).tolist() == [2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23]
    np.testing.assert_array_equal(put_back(parts, **how), x)
    for j in range(2):
        np.testing.assert_array_equal(taken(x, j, **how), parts[j])


def test_what_scales_sums_is_run_once_behind_all_parts() -> None:
    """Momentum reads a gradient twice, and one sum of it is kept."""

    def step(p: Any, m: Any, x: jax.Array) -> Any:
        _, grads = jax.value_and_grad(lambda w: (jax.nn.relu(x @ w) ** 2).mean())(p)
        return p - 0.1 * grads, 0.9 * m + 0.3 * grads

    w = params()["layers"][0]
    graph = build_graph(in_parts(trace(step, (w, w, rows())), 4))
    assert (
        sum(op.kind == "loop_carry_out" and graph.tensors[op.results[0]].aval.shape == w.shape for op in graph.ops) == 1
    )


def test_zeros_of_the_size_of_the_batch_are_made_part_by_part() -> None:
    def step(w: jax.Array, x: jax.Array) -> Any:
        return updated({"w": w}, lambda p: (jax.numpy.maximum(x @ p["w"], jax.numpy.zeros(x.shape)) ** 2).mean())

    graph = build_graph(in_parts(trace(step, (params()["layers"][0], rows())), 4))
    (multiplied, *_) = [op for op in graph.ops if op.kind == "max"]
    assert graph.tensors[multiplied.operands[1]].aval.shape[:1] == (BATCH // 4,)
    whole = [
        op
        for op in graph.ops
        if op.kind == "broadcast_in_dim" and graph.tensors[op.results[0]].aval.shape[:1] == (BATCH,)
    ]
    assert not whole
