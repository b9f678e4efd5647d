"""Which stacks loops read through a narrow copy made before them, and for how long it stands."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest

from planner.compiler.buffers.buffer import Buffer
from planner.compiler.program import compiled
from planner.compiler.schedule.last_uses import region_spans
from planner.compiler.simplify.convert_mover import NarrowReads
from planner.compiler.simplify.loop_invariant_converts import hoisted_casts
from planner.compiler.targets.table import TPU
from planner.decisions.groups import group_ops
from planner.program.graph import Graph
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.trace import trace

STACK = jax.ShapeDtypeStruct((4, 32, 32), jnp.float32)
X = jax.ShapeDtypeStruct((64, 32), jnp.bfloat16)
NARROW = 0.5

Body = Callable[[jax.Array, jax.Array], jax.Array]


def _scanned(body: Body) -> Graph:
    def step(stack: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda c, w: (body(c, w), None), x, stack)[0]

    return build_graph(trace(step, (STACK, X)), while_trips=1.0)


def _hoisted(graph: Graph) -> list[Buffer]:
    stands = compiled(graph, group_ops(graph), TPU).materialized
    return hoisted_casts(graph, NarrowReads(graph), region_spans(graph), stands)


def _cast(c: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.sin(c @ w.astype(jnp.bfloat16))


def _turned(c: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.sin(c @ w.T.reshape(32, 32).astype(jnp.bfloat16))


def _read_as_it_is_too(c: jax.Array, w: jax.Array) -> jax.Array:
    return _cast(c, w) + w.sum().astype(jnp.bfloat16)


def _computed_with_first(c: jax.Array, w: jax.Array) -> jax.Array:
    return _cast(c, w * 2)


@pytest.mark.parametrize(
    ("body", "hoisted"),
    [(_cast, True), (_turned, True), (_read_as_it_is_too, False), (_computed_with_first, False)],
    ids=["cast", "turned and cast", "read as it is too", "computed with first"],
)
def test_a_stack_that_is_read_through_a_cast_alone_stands_narrow_beside_itself(body: Body, hoisted: bool) -> None:
    graph = _scanned(body)
    spans = region_spans(graph)
    assert _hoisted(graph) == ([Buffer(graph.inputs[0], *spans[1], NARROW)] if hoisted else [])


def test_what_widens_is_not_hoisted() -> None:
    def step(stack: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda c, w: (c + w.astype(jnp.float32).sum(0), None), x, stack)[0]

    args = (jax.ShapeDtypeStruct(STACK.shape, jnp.bfloat16), jax.ShapeDtypeStruct(X.shape, jnp.float32))
    graph = build_graph(trace(step, args), while_trips=1.0)
    assert not _hoisted(graph)


def test_loops_share_a_copy_that_lives_until_the_last_of_them_ends() -> None:
    def loss(stack: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda c, w: (jax.checkpoint(_cast)(c, w), None), x, stack)[0].sum()

    graph = build_graph(trace(jax.grad(loss), (STACK, X)), while_trips=1.0)
    spans = region_spans(graph)
    loops = [span for span, region in zip(spans, graph.regions, strict=True) if region.kind == "scan"]
    assert len(loops) == 2
    (found,) = _hoisted(graph)
    assert found == Buffer(graph.inputs[0], loops[0][0], loops[1][1], NARROW)
    assert [b for b in compiled(graph, group_ops(graph), TPU).buffers if b.tensor == graph.inputs[0]] != []


def test_a_stack_of_stacks_is_narrowed_once_before_both_loops() -> None:
    def step(stack: jax.Array, x: jax.Array) -> jax.Array:
        def outer(c: jax.Array, inner: jax.Array) -> tuple[jax.Array, None]:
            return jax.lax.scan(lambda d, w: (_cast(d, w), None), c, inner)[0], None

        return jax.lax.scan(outer, x, stack)[0]

    graph = build_graph(trace(step, (jax.ShapeDtypeStruct((2, *STACK.shape), jnp.float32), X)), while_trips=1.0)
    spans = region_spans(graph)
    assert _hoisted(graph) == [Buffer(graph.inputs[0], *spans[1], NARROW)]


def test_a_stack_that_is_made_narrow_has_no_narrow_copy() -> None:
    """What one loop stacks and the next reads narrow is stacked so."""

    def step(stack: jax.Array, x: jax.Array) -> jax.Array:
        _, made = jax.lax.scan(lambda c, w: (c, jnp.sin(w) @ w), x, stack)
        return jax.lax.scan(lambda c, w: (_cast(c, w), None), x, made)[0]

    graph = build_graph(trace(step, (STACK, X)), while_trips=1.0)
    (made,) = graph.of_kinds(("loop_stack",))
    assert made.results[0] not in [tensor for tensor, *_ in _hoisted(graph)]
