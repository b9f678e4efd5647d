"""Which products a GPU's compiler runs later than their place in the program, and what stands in memory until then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from planner.compiler.model import CompilerModel
from planner.compiler.program import CompiledProgram, compiled
from planner.compiler.targets.table import GPU, TPU
from planner.decisions.groups import group_ops
from planner.program.graph import Graph
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.trace import trace

TABLE = jax.ShapeDtypeStruct((4096, 256), jnp.float32)
LAYERS = jax.ShapeDtypeStruct((3, 256, 256), jnp.float32)
TOKENS = jax.ShapeDtypeStruct((512,), jnp.int32)


def _trained(*, tied: bool, scanned: bool) -> Callable[..., Any]:
    """The gradients of a model of layers between an embedding and a head, which may be one."""

    def loss(table: jax.Array, head: jax.Array, layers: jax.Array, tokens: jax.Array) -> jax.Array:
        x = table[tokens]
        if scanned:
            x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, layers)
        else:
            for n in range(layers.shape[0]):
                x = jnp.tanh(x @ layers[n])
        return jnp.mean(jax.nn.logsumexp(x @ (table if tied else head).T, axis=-1))

    return jax.grad(loss, argnums=(0, 1, 2))


def _analysed(compiler: CompilerModel = GPU, *, tied: bool, scanned: bool) -> tuple[Graph, CompiledProgram]:
    graph = build_graph(trace(_trained(tied=tied, scanned=scanned), (TABLE, TABLE, LAYERS, TOKENS)), while_trips=1.0)
    return graph, compiled(graph, group_ops(graph), compiler)


def _of_head(graph: Graph) -> tuple[int, int]:
    """The product that is the head's gradient, and what it reads of the logits."""
    op = next(op for op in graph.of_kinds(("dot_general",)) if graph.tensors[op.results[0]].aval.shape == TABLE.shape)
    return op.id, next(t for t in op.operands if graph.tensors[t].aval.size == 512 * 4096)


def test_the_gradient_of_a_head_waits_for_the_loop_behind_it() -> None:
    graph, program = _analysed(tied=False, scanned=True)
    product, logits = _of_head(graph)
    last = max(op.id for op in graph.ops if op.region)
    assert program.scheduled_at == {product: last + 1}
    assert max(buffer.stop for buffer in program.buffers if buffer.tensor == logits) > last
    made = graph.ops[product].results[0]
    assert [buffer.start for buffer in program.buffers if buffer.tensor == made] == [last + 1]
    assert not _analysed(TPU, tied=False, scanned=True)[1].scheduled_at


def test_the_gradient_of_a_tied_head_waits_for_that_of_the_embedding() -> None:
    graph, program = _analysed(tied=True, scanned=False)
    product, logits = _of_head(graph)
    (added,) = (op.id for op in graph.of_kinds(("add_any",)) if graph.tensors[op.results[0]].aval.shape == TABLE.shape)
    assert program.scheduled_at[product] == added
    assert max(buffer.stop for buffer in program.buffers if buffer.tensor == logits) > added


def test_the_gradient_of_a_layer_waits_for_the_next_product_but_one() -> None:
    graph, program = _analysed(tied=False, scanned=False)
    product, _ = _of_head(graph)
    behind = [op.id for op in graph.of_kinds(("dot_general",)) if op.id > product]
    chain = [op for op in behind if graph.tensors[graph.ops[op].results[0]].aval.shape == (512, 256)]
    assert program.scheduled_at[product] == chain[1] + 1
    assert set(program.scheduled_at) - {product} <= set(behind) - set(chain)


def test_where_values_are_computed_again_it_waits_for_all_products() -> None:
    def fn(table: jax.Array, head: jax.Array, layers: jax.Array, tokens: jax.Array) -> Any:
        return _trained(tied=False, scanned=False)(table, head, layers, jax.lax.optimization_barrier(tokens))

    graph = build_graph(trace(fn, (TABLE, TABLE, LAYERS, TOKENS)), while_trips=1.0)
    product, _ = _of_head(graph)
    behind = [op.id for op in graph.of_kinds(("dot_general",)) if op.id > product]
    chain = [op for op in behind if graph.tensors[graph.ops[op].results[0]].aval.shape == (512, 256)]
    assert compiled(graph, group_ops(graph), GPU).scheduled_at[product] == chain[-1] + 1


def test_what_a_loop_waits_for_runs_before_it() -> None:
    graph = build_graph(
        trace(
            lambda x, w, layers: jax.lax.scan(lambda y, u: (jnp.tanh(y @ u), None), x @ w, layers)[0],
            (*[jax.ShapeDtypeStruct((256, 256), jnp.float32)] * 2, LAYERS),
        ),
        while_trips=1.0,
    )
    assert not compiled(graph, group_ops(graph), GPU).scheduled_at


def test_the_sum_of_a_gradient_that_a_matmul_makes_runs_behind_all_matmuls() -> None:
    """Its kernel is one of its own; what a pass makes is summed by that pass."""

    def loss(biases: jax.Array, x: jax.Array, layers: jax.Array) -> jax.Array:
        x = (jnp.sin(x) + biases[0]) @ layers[0] + biases[1]
        return jnp.sum(jnp.sin((x @ layers[1] + biases[2]) @ layers[2]))

    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((3, 256), (512, 256), (3, 256, 256))]
    graph = build_graph(trace(jax.grad(loss, argnums=(0, 1)), args), while_trips=1.0)
    program = compiled(graph, group_ops(graph), GPU)
    end = max(op.id for op in graph.of_kinds(("dot_general",))) + 1
    sums = [op for op in graph.of_kinds(("reduce_sum",)) if graph.tensors[op.results[0]].aval.shape == (256,)]
    late = [op for op in sums if op.id in program.scheduled_at]
    assert 0 < len(late) < len(sums)
    for op in late:
        assert program.scheduled_at[op.id] == end
        assert max(buffer.stop for buffer in program.buffers if buffer.tensor == op.operands[0]) >= end
