"""What a TPU's compiler stores of softmaxes: centred rows, and the gradient of scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from planner.compiler.fusion.kernels import kernels_of
from planner.compiler.model import CompilerModel
from planner.compiler.program import CompiledProgram, compiled
from planner.compiler.targets.table import TPU
from planner.decisions.groups import group_ops
from planner.program.graph import Graph
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.trace import trace


def analysed(
    fn: Callable[..., Any], *shapes: tuple[int, ...], compiler: CompilerModel = TPU
) -> tuple[Graph, CompiledProgram]:
    args = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    graph = build_graph(trace(fn, args), while_trips=1.0)
    return graph, compiled(graph, group_ops(graph), compiler)


def attention(scaled: bool, rows: tuple[int, ...] = (8, 4, 256, 64), *, narrowed: bool = False) -> Callable[..., Any]:
    """Whose weights are in the type of the values where they are `narrowed`."""
    batch = "bh"[: len(rows) - 2]

    def fn(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        scores = jnp.einsum(f"{batch}qd,{batch}kd->{batch}qk", q, k).astype(jnp.float32)
        rows = jax.nn.softmax(scores / 8.0 if scaled else scores, -1)
        rows = rows.astype(v.dtype) if narrowed else rows
        return jnp.einsum(f"{batch}qk,{batch}kd->{batch}qd", rows, v)

    return fn


def stored(graph: Graph, program: CompiledProgram, kind: str) -> list[bool]:
    return [program.materialized[t] for op in graph.of_kinds((kind,)) for t in op.results]


QKV = [(8, 4, 256, 64)] * 3


def test_the_centred_row_stands_and_not_its_greatest_element() -> None:
    graph, program = analysed(attention(scaled=True), *QKV)
    assert stored(graph, program, "sub") == [True]
    assert stored(graph, program, "reduce_max") == [False]


def test_the_matmul_goes_on_to_the_centred_row() -> None:
    graph, program = analysed(attention(scaled=True), *QKV)
    kernels = kernels_of(program)
    first, second = sorted((kernel for of in kernels.of_group.values() for kernel in of), key=lambda kernel: kernel.op)
    (centred,) = (t for op in graph.of_kinds(("sub",)) for t in op.results)
    assert first.results == ((),), "the scores themselves are not written"
    assert centred in [access.tensor for access in first.others]
    assert centred in [access.tensor for access in second.operands[1] + second.operands[0]]


@pytest.mark.parametrize("length", [256, 8192])
def test_a_pass_centres_rows_of_which_narrow_weights_are_made(length: int) -> None:
    graph, program = analysed(attention(scaled=True, narrowed=True), (8, 4, 256, 64), *[(8, 4, length, 64)] * 2)
    kernels = kernels_of(program)
    made, centring, used = sorted(
        (kernel for of in kernels.of_group.values() for kernel in of), key=lambda kernel: kernel.op
    )
    (row,) = (t for op in graph.of_kinds(("div",)) for t in op.results if program.materialized[t])
    (centred,) = (t for op in graph.of_kinds(("sub",)) for t in op.results)
    assert row in [access.tensor for access in made.others]
    assert {row, centred} <= {access.tensor for access in centring.others}
    assert centred in [access.tensor for of in used.operands for access in of]


@pytest.mark.parametrize(
    "case",
    [
        (attention(scaled=False), QKV, TPU),
        (attention(scaled=True), QKV, TPU.without("softmax-window")),
        (attention(scaled=True, rows=(256, 64)), [(256, 64)] * 3, TPU),
        (attention(scaled=True), [(1, 1, 8192, 64)] * 3, TPU),
        (attention(scaled=True, narrowed=True), [(1, 1, 12288, 64)] * 3, TPU),
    ],
    ids=["widened", "another compiler", "two dims", "long rows", "long narrowed rows"],
)
def test_other_rows_are_centred_by_whoever_reads_them(case: Any) -> None:
    fn, shapes, fusion = case
    graph, program = analysed(fn, *shapes, compiler=fusion)
    assert stored(graph, program, "reduce_max") == [True]
    assert stored(graph, program, "sub") == [False]


def test_what_is_read_elsewhere_stands_too() -> None:
    def fn(q: jax.Array, k: jax.Array, v: jax.Array) -> Any:
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k).astype(jnp.float32) / 8.0
        return jax.nn.logsumexp(scores, -1), attention(scaled=True)(q, k, v)

    graph, program = analysed(fn, *QKV)
    assert sorted(stored(graph, program, "reduce_max")) == [False, True]


def test_the_gradient_of_scores_is_stored_for_both_matmuls_that_read_it() -> None:
    def fn(q: jax.Array, k: jax.Array, v: jax.Array) -> Any:
        return jax.grad(lambda *of: attention(scaled=True)(*of).astype(jnp.float32).sum(), (0, 1))(q, k, v)

    def read_by_two(graph: Graph, program: CompiledProgram) -> list[bool]:
        casts = [t for op in graph.of_kinds(("convert_element_type",)) for t in op.results]
        return [program.materialized[t] for t in casts if len(graph.consumers[t]) == 2]

    assert any(read_by_two(*analysed(fn, *QKV)))
    assert not any(read_by_two(*analysed(fn, *QKV, compiler=TPU.without("softmax-window"))))


@pytest.mark.parametrize(("narrowed", "length"), [(True, 256), (False, 256), (True, 12288)])
def test_weights_stand_from_the_forward_to_the_backward_pass_where_they_are_narrow(narrowed: bool, length: int) -> None:
    def loss(q: jax.Array, k: jax.Array, v: jax.Array, w: jax.Array) -> jax.Array:
        out = attention(scaled=True, narrowed=narrowed)(q, k, v).astype(jnp.bfloat16) @ w
        return jnp.square(out.astype(jnp.float32)).sum()

    graph, program = analysed(jax.grad(loss, (0, 1, 2)), QKV[0], *[(8, 4, length, 64)] * 2, (64, 64))
    weights = next(op.operands for op in graph.of_kinds(("dot_general",))[1:])
    (of_scores,) = (t for t in weights if graph.tensors[t].aval.shape == (8, 4, 256, length))
    assert len([reader for reader, _ in graph.consumers[of_scores] if graph.ops[reader].kind == "dot_general"]) == 2
    assert program.materialized[of_scores] == (narrowed and length == 256), "rows that are too long are computed anew"


def test_a_cheap_gradient_is_computed_by_both() -> None:
    def fn(x: jax.Array, w: jax.Array) -> Any:
        def loss(x: jax.Array, w: jax.Array) -> jax.Array:
            return jax.nn.relu((x @ w).astype(jnp.float32)).sum()

        return jax.grad(loss, (0, 1))(x, w)

    graph, program = analysed(fn, (256, 512), (512, 1024))
    casts = [t for op in graph.of_kinds(("convert_element_type",)) for t in op.results]
    assert not any(program.materialized[t] for t in casts if len(graph.consumers[t]) == 2)


def test_a_gradient_of_scores_is_not_written_over_what_has_another_type() -> None:
    def fn(q: jax.Array, k: jax.Array, v: jax.Array) -> Any:
        return jax.grad(lambda *of: attention(scaled=True)(*of).astype(jnp.float32).sum(), (0, 1))(q, k, v)

    graph, program = analysed(fn, *QKV)
    casts = [t for op in graph.of_kinds(("convert_element_type",)) for t in op.results]
    kept = next(t for t in casts if program.materialized[t] and len(graph.consumers[t]) == 2)
    centred = graph.of_kinds(("sub",))[0].results[0]
    start = next(b.start for b in program.buffers if b.tensor == kept)
    assert next(b.stop for b in program.buffers if b.tensor == centred) == start + 1


@pytest.mark.parametrize("narrow", [True, False])
def test_the_gradient_of_logits_is_computed_by_both_its_matmuls_unless_it_is_narrow(narrow: bool) -> None:
    def loss(weight: jax.Array, x: jax.Array) -> jax.Array:
        made = jnp.bfloat16 if narrow else jnp.float32
        logits = jnp.einsum("bsm,mv->bsv", x, weight, preferred_element_type=made).astype(jnp.float32)
        return jnp.mean(jax.nn.logsumexp(logits, -1) - logits[..., 0])

    graph, program = analysed(jax.grad(loss, (0, 1)), (512, 2048), (4, 256, 512))
    logits = graph.of_kinds(("dot_general",))[0].results[0]
    made = [t for op in graph.ops for t in op.results]
    alike = [t for t in made if graph.tensors[t].aval.shape == graph.tensors[logits].aval.shape]
    assert len([t for t in alike if program.materialized[t]]) == 1 + narrow
    assert program.materialized[logits]
