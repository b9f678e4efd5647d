"""What a TPU's compiler stores of softmaxes: centred rows, and the gradient of scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from cost_models import parse_topology
from planner.compiler.fusion.kernels import kernels_of
from planner.compiler.model import CompilerModel
from planner.compiler.program import CompiledProgram, compiled
from planner.compiler.targets.table import compiler_of
from planner.decisions.groups import group_ops
from planner.program.graph import Graph
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.trace import trace
from tests.compiler.probes.fusion import grouped_attention

V5E = compiler_of(parse_topology("v5e:2x4").chip)


def analysed(
    fn: Callable[..., Any], *shapes: tuple[int, ...], compiler: CompilerModel = V5E
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


@pytest.mark.parametrize(("length", "stacked"), [(8192, False), (256, True), (256, False)])
def test_a_pass_centres_rows_of_which_narrow_weights_are_made(length: int, stacked: bool) -> None:
    """Where rows are long, or queries and keys are parts of one array; elsewhere the matmul does."""

    def fn(q: jax.Array, k: jax.Array, v: jax.Array, w: jax.Array) -> jax.Array:
        if stacked:
            q, k, v = jnp.einsum("bhqd,tde->tbhqe", q, w)
        return attention(scaled=True, narrowed=True)(q, k, v)

    graph, program = analysed(fn, (8, 4, 256, 64), *[(8, 4, length, 64)] * 2, (3, 64, 64))
    made, *centring, used = sorted(
        (kernel for of in kernels_of(program).of_group.values() for kernel in of), key=lambda kernel: kernel.op
    )[stacked:]
    alone = length == 256 and not stacked
    rows = [t for op in graph.of_kinds(("div",)) for t in op.results if program.materialized[t]]
    (centred,) = (t for op in graph.of_kinds(("sub",)) for t in op.results)
    assert len(rows) == len(centring) == (not alone)
    assert {*rows, *([centred] if alone else [])} <= {access.tensor for access in made.others}
    assert all({*rows, centred} <= {access.tensor for access in kernel.others} for kernel in centring)
    assert centred in [access.tensor for of in used.operands for access in of]


@pytest.mark.parametrize(
    "case",
    [
        (attention(scaled=False), QKV, V5E),
        (attention(scaled=True), QKV, V5E.without("softmax-window")),
        (attention(scaled=True, rows=(256, 64)), [(256, 64)] * 3, V5E),
        (attention(scaled=True), [(1, 1, 8192, 64)] * 3, V5E),
        (attention(scaled=True, narrowed=True), [(1, 1, 12288, 64)] * 3, V5E),
    ],
    ids=["widened", "another compiler", "two dims", "long rows", "long narrowed rows"],
)
def test_other_rows_are_centred_by_whoever_reads_them(case: Any) -> None:
    fn, shapes, fusion = case
    graph, program = analysed(fn, *shapes, compiler=fusion)
    assert stored(graph, program, "reduce_max") == [True]
    assert stored(graph, program, "sub") == [False]


@pytest.mark.parametrize(("length", "times", "more"), [(2048, -1, 0), (3072, 1, 1), (8192, 1, 1)])
def test_scores_with_groups_of_heads_are_centred_where_no_dim_is_one(length: int, times: int, more: int) -> None:
    """By the matmul, which spares a pass, or by a pass, that writes them beside the row."""
    graph, program = analysed(grouped_attention, (2, 512, 2, 8, 128), *[(2, length, 2, 128)] * 2)
    (window,) = program.windows.values()
    assert (window.times, window.several) == (times, (0, 1, 2, 3, 4))
    moved = [a for of in kernels_of(program).of_group.values() for kernel in of for a in kernel.others if a.several]
    assert [(access.times, access.several) for access in moved] == [(times, (0, 1, 2, 3, 4))]
    assert graph.tensors[moved[0].tensor].aval.size == 2 * 2 * 8 * 512 * length
    assert [buffer.several for buffer in program.buffers if buffer.several] == [(0, 1, 2, 3, 4)] * more


def test_rows_computed_again_are_centred_by_their_matmul_up_to_another_length() -> None:
    def fn(q: jax.Array, k: jax.Array, v: jax.Array) -> Any:
        again = jax.checkpoint(grouped_attention)
        return jax.grad(lambda *arrays: (again(*arrays).astype(jnp.float32) ** 2).sum(), (0, 1, 2))(q, k, v)

    for length, forward, recomputed in ((3072, 1, -1), (4096, 1, 0), (8192, 1, 1)):
        _, program = analysed(fn, (2, 512, 2, 8, 128), *[(2, length, 2, 128)] * 2)
        assert [window.times for _, window in sorted(program.windows.items())] == [forward, recomputed]


def test_what_is_read_elsewhere_stands_too() -> None:
    def fn(q: jax.Array, k: jax.Array, v: jax.Array) -> Any:
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k).astype(jnp.float32) / 8.0
        return jax.nn.logsumexp(scores, -1), attention(scaled=True)(q, k, v)

    graph, program = analysed(fn, *QKV)
    assert sorted(stored(graph, program, "reduce_max")) == [False, True]


def _layer(*, narrowed: bool, made: Any = jnp.bfloat16) -> Callable[..., jax.Array]:
    """An attention with scores that are `made` in a type, and the product behind it."""

    def layer(q: jax.Array, k: jax.Array, v: jax.Array, w: jax.Array) -> jax.Array:
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k, preferred_element_type=made).astype(jnp.float32)
        rows = jax.nn.softmax(scores / 8.0, -1)
        out = jnp.einsum("bhqk,bhkd->bhqd", rows.astype(v.dtype) if narrowed else rows, v)
        return out.astype(jnp.bfloat16) @ w

    return layer


def _gradients(layer: Callable[..., jax.Array], *, of: tuple[int, ...]) -> Callable[..., Any]:
    return jax.grad(lambda *args: jnp.square(layer(*args).astype(jnp.float32)).sum(), of)


def _read_twice(graph: Graph, program: CompiledProgram) -> list[tuple[int, bool]]:
    """Of the arrays of the shape of scores that two products read: the bytes of an element, and whether they stand."""
    avals = [tensor.aval for tensor in graph.tensors]
    products = {op.id for op in graph.of_kinds(("dot_general",))}
    return [
        (avals[t].itemsize, program.materialized[t])
        for t, readers in enumerate(graph.consumers)
        if avals[t].shape == (8, 4, 256, 256) and len(products & {reader for reader, _ in readers}) == 2
    ]


@pytest.mark.parametrize("narrowed", [True, False])
@pytest.mark.parametrize("made", [jnp.bfloat16, jnp.float32])
def test_the_gradient_of_scores_is_stored_where_two_products_read_more_without_it(narrowed: bool, made: Any) -> None:
    """In bfloat16 it takes a third or a quarter of what it is computed from, in float32 as much as most of that."""
    graph, program = analysed(_gradients(_layer(narrowed=narrowed, made=made), of=(0, 1)), *QKV, (64, 64))
    narrow = made == jnp.bfloat16
    assert _read_twice(graph, program) == [(2 if narrow else 4, narrow)]


@pytest.mark.parametrize("again", [True, False])
def test_narrow_weights_stand_where_the_backward_pass_computes_and_reads_them_twice(again: bool) -> None:
    """The product of the gradient makes them on the way; otherwise the forward pass reads them before there is one."""

    layer = _layer(narrowed=True, made=jnp.float32)
    fn = _gradients(jax.checkpoint(layer) if again else layer, of=(0, 1, 2, 3))
    graph, program = analysed(fn, *QKV, (64, 64))
    assert (2, again) in _read_twice(graph, program)


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
def test_the_gradient_of_logits_is_computed_by_both_its_matmuls(narrow: bool) -> None:
    def loss(weight: jax.Array, x: jax.Array) -> jax.Array:
        made = jnp.bfloat16 if narrow else jnp.float32
        logits = jnp.einsum("bsm,mv->bsv", x, weight, preferred_element_type=made).astype(jnp.float32)
        return jnp.mean(jax.nn.logsumexp(logits, -1) - logits[..., 0])

    graph, program = analysed(jax.grad(loss, (0, 1)), (512, 2048), (4, 256, 512))
    logits = graph.of_kinds(("dot_general",))[0].results[0]
    made = [t for op in graph.ops for t in op.results]
    alike = [t for t in made if graph.tensors[t].aval.shape == graph.tensors[logits].aval.shape]
    assert len([t for t in alike if program.materialized[t]]) == 1
    assert program.materialized[logits]


@pytest.mark.parametrize("narrowed", [True, False])
def test_of_capped_scores_no_weights_are_stored(narrowed: bool) -> None:
    """Of scores that a tanh bounds, whose gradient reads them again: centred, too, where weights are narrow."""

    def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k, preferred_element_type=jnp.float32)
        rows = jax.nn.softmax(50.0 * jnp.tanh(scores / 50.0), -1)
        read = (rows.astype(v.dtype), v) if narrowed else (rows, v.astype(jnp.float32))
        return jnp.sum(jnp.einsum("bhqk,bhkd->bhqd", *read).astype(jnp.float32) ** 2)

    graph, program = analysed(jax.grad(loss, (0, 1, 2)), *QKV)
    size = 8 * 4 * 256 * 256
    made = [
        op.kind
        for op in graph.ops
        for t in op.results
        if program.materialized[t] and graph.tensors[t].aval.size == size
    ]
    assert made == ["dot_general", *(["sub"] if narrowed else []), "dot_general"]
