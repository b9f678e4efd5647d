"""Which arguments are taken for inputs that hosts bring, and which of their dims counts examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from planner.decisions.decision_graph import build_flow
from planner.decisions.groups import group_ops
from planner.decisions.host_inputs import concluded_inputs
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.trace import trace

Found = dict[str, int | None]


def inputs(fn: Callable[..., Any], *args: Any, donate: Sequence[int] = ()) -> Found:
    """The dims of examples of what is concluded to be an input, by name."""
    program = trace(fn, args, donate_argnums=tuple(donate))
    graph = build_graph(program)
    grouping = group_ops(graph)
    found = concluded_inputs(graph, grouping, build_flow(graph, grouping), program.leaves.values(), program.donated)
    return {graph.tensors[one.tensor].name: one.examples for one in found}


def s(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


PARAMS = {"in": s(16, 32), "out": s(32, 8)}
BATCH = {"x": s(64, 16), "y": s(64, 8), "weight": s()}


def forward(params: Any, x: Any) -> Any:
    return jax.nn.gelu(x @ params["in"]) @ params["out"]


def step(params: Any, batch: Any) -> Any:
    def loss(params: Any) -> Any:
        return jnp.mean((forward(params, batch["x"]) - batch["y"]) ** 2) * batch["weight"]

    return descend(loss, params)


def descend(loss: Callable[[Any], Any], params: Any) -> Any:
    """The parameters after a step, which the next call takes, and the loss."""
    value, gradients = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value


def test_the_batch_of_a_train_step_is_an_input_with_all_its_arrays() -> None:
    assert inputs(step, PARAMS, BATCH) == {"batch/x": 0, "batch/y": 0, "batch/weight": None}


def test_nothing_is_an_input_of_a_function_that_keeps_no_state() -> None:
    assert inputs(forward, PARAMS, s(64, 16)) == {}


def test_arguments_of_a_function_of_any_number_are_told_apart() -> None:
    assert inputs(lambda *args: step(*args), PARAMS, BATCH) == {"args/1/x": 0, "args/1/y": 0, "args/1/weight": None}


def test_the_weights_of_a_teacher_are_no_input() -> None:
    def distilled(params: Any, teacher: Any, x: Any) -> Any:
        return step(params, {"x": x, "y": forward(teacher, x), "weight": 1.0})

    for sizes in ({"in": s(16, 512), "out": s(512, 8)}, {"in": s(16, 4), "out": s(4, 8)}):
        assert inputs(distilled, PARAMS, sizes, s(64, 16)) == {"x": 0}


def test_the_weights_below_trained_adapters_are_no_input() -> None:
    def adapted(adapter: Any, weights: Any, x: Any, y: Any) -> Any:
        def loss(adapter: Any) -> Any:
            def layer(x: Any, both: Any) -> Any:
                (a, b), w = both
                return x + jnp.tanh(x @ w + x @ a @ b), None

            return jnp.mean((jax.lax.scan(layer, x, (adapter, weights))[0] - y) ** 2)

        return descend(loss, adapter)

    args = ((s(4, 16, 2), s(4, 2, 16)), s(4, 16, 16), s(64, 16), s(64, 16))
    assert inputs(adapted, *args) == {"x": 0, "y": 0}


@pytest.mark.parametrize("requests", [1, 8])
def test_the_weights_of_a_decoder_are_no_input_whatever_the_batch(requests: int) -> None:
    def decode(params: Any, cache: Any, x: Any) -> Any:
        cache = jnp.concatenate([cache[:, 1:], (x @ params["key"])[:, None]], axis=1)
        scores = jax.nn.softmax(jnp.einsum("bd,bsd->bs", x @ params["query"].T, cache))
        return jnp.einsum("bs,bsd->bd", scores, cache) @ params["up"].T @ params["down"].T, cache

    params = {"key": s(16, 16), "query": s(16, 16), "up": s(64, 16), "down": s(16, 64)}
    assert not {
        name for name in inputs(decode, params, s(requests, 32, 16), s(requests, 16), donate=(1,)) if "p" in name
    }


def test_examples_are_counted_by_the_dim_that_meets_the_weights_not_by_the_first() -> None:
    def in_parts(params: Any, x: Any, y: Any) -> Any:
        def part(params: Any, both: Any) -> Any:
            return step(params, {"x": both[0], "y": both[1], "weight": 1.0})

        return jax.lax.scan(part, params, (x, y))

    assert inputs(in_parts, PARAMS, s(4, 64, 16), s(4, 64, 8)) == {"x": 1, "y": 1}


def test_a_batch_that_the_program_cuts_into_parts_itself_is_counted_by_its_first_dim() -> None:
    def in_parts(params: Any, x: Any, y: Any) -> Any:
        def part(params: Any, both: Any) -> Any:
            return step(params, {"x": both[0], "y": both[1], "weight": 1.0})

        return jax.lax.scan(part, params, (x.reshape(4, 16, 16), y.reshape(4, 16, 8)))

    assert inputs(in_parts, PARAMS, s(64, 16), s(64, 8)) == {"x": 0, "y": 0}


def test_nodes_and_edges_of_a_graph_are_both_inputs() -> None:
    def message_passing(params: Any, graph: Any) -> Any:
        def loss(params: Any) -> Any:
            sent = jnp.tanh(graph["nodes"][graph["senders"]] @ params["edge"])
            received = jax.ops.segment_sum(sent, graph["receivers"], num_segments=32)
            return jnp.mean(((received + graph["nodes"]) @ params["node"]) ** 2)

        return descend(loss, params)

    graph = {"nodes": s(32, 16), "senders": s(96, dtype=jnp.int32), "receivers": s(96, dtype=jnp.int32)}
    found = inputs(message_passing, {"edge": s(16, 16), "node": s(16, 16)}, graph)
    assert found == {"graph/nodes": 0, "graph/senders": 0, "graph/receivers": 0}
