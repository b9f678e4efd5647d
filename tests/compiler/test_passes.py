"""The tables of passes: every pass is declared whole, once per target, and what it writes are columns of a program."""

from __future__ import annotations

from dataclasses import fields
from typing import get_args

import jax
import jax.numpy as jnp
import pytest

from benchmarks.pass_page import PAGE, page
from planner.compiler.model import CompilerModel, PassName
from planner.compiler.program import CompiledProgram, compiled
from planner.compiler.targets.table import COMPILERS
from planner.decisions.groups import group_ops
from planner.program.graph import Graph
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.trace import trace

COLUMNS = {field.name for field in fields(CompiledProgram)}


def attention() -> Graph:
    """The gradient of an attention whose weights are narrowed."""

    def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        scores = jnp.einsum("bqd,bkd->bqk", q, k).astype(jnp.float32) / 8.0
        return jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores, -1).astype(v.dtype), v).astype(jnp.float32).sum()

    args = [jax.ShapeDtypeStruct((8, 256, 64), jnp.bfloat16)] * 3
    return build_graph(trace(jax.grad(loss, (0, 1, 2)), args), while_trips=1.0)


@pytest.mark.parametrize("compiler", COMPILERS.values(), ids=COMPILERS)
def test_every_pass_is_declared_whole(compiler: CompilerModel) -> None:
    names = [one.name for one in compiler.passes]
    assert len(names) == len(set(names))
    for one in compiler.passes:
        assert one.name in get_args(PassName)
        assert one.does.endswith(".")
        assert one.evidence.release
        assert one.evidence.seen
        assert set(one.writes) <= COLUMNS
        assert bool(one.writes) == (one.run is not None)


def test_every_name_is_that_of_a_pass() -> None:
    assert {one.name for compiler in COMPILERS.values() for one in compiler.passes} == set(get_args(PassName))


@pytest.mark.parametrize("compiler", COMPILERS.values(), ids=COMPILERS)
def test_a_pass_writes_the_columns_that_it_says_and_no_others(compiler: CompilerModel) -> None:
    graph = attention()
    program = compiled(graph, group_ops(graph), compiler.without(*(one.name for one in compiler.passes)))
    for one in compiler.passes:
        if one.run is not None:
            before = {name: repr(getattr(program, name)) for name in COLUMNS - {"graph", "grouping", "narrow"}}
            one.run(program)
            changed = {name for name, text in before.items() if repr(getattr(program, name)) != text}
            assert changed <= {*one.writes, "materialized_by"}, one.name


def test_a_program_knows_which_pass_materialized_a_tensor() -> None:
    graph, tpu = attention(), COMPILERS["tpu"]
    program, without = (compiled(graph, group_ops(graph), of) for of in (tpu, tpu.without("softmax-window")))
    found = {tensor for tensor, name in program.materialized_by.items() if name == "softmax-window"}
    assert found
    assert all(program.materialized[tensor] != without.materialized[tensor] for tensor in found)


def test_the_page_of_passes_is_that_of_the_tables() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m benchmarks.pass_page"
