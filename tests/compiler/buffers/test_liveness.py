"""Which intermediate results stand in memory, and how many of them at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from planner.compiler.buffers.buffer import Buffer
from planner.compiler.model import CompilerModel
from planner.compiler.program import compiled
from planner.compiler.targets.table import CPU, GPU, TPU
from planner.decisions.groups import group_ops
from planner.program.graph import Graph
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.trace import trace

STREAM = (64, 32)


def _most_alive(layers: int, *, remat: bool) -> int:
    """How many tensors of the residual stream's shape are in memory at once, in the gradient of written-out layers."""

    def layer(x: jax.Array, weight: jax.Array) -> jax.Array:
        normed = x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5)
        x = x + jnp.sin(normed @ weight) @ weight.T
        return x + jnp.sin(x @ weight) @ weight.T

    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for weight in weights:
            x = (jax.checkpoint(layer) if remat else layer)(x, weight)
        return jnp.sum(x * x)

    weight, x = jax.ShapeDtypeStruct((32, 128), jnp.float32), jax.ShapeDtypeStruct(STREAM, jnp.float32)
    graph = build_graph(trace(jax.grad(loss), ([weight] * layers, x)), while_trips=1.0)
    found = compiled(graph, group_ops(graph), TPU)
    change = np.zeros(found.steps + 2, int)
    for buffer in found.buffers:
        if graph.tensors[buffer.tensor].aval.shape == STREAM:
            change[buffer.start] += 1
            change[buffer.stop] -= 1
    return int(np.cumsum(change).max())


@pytest.mark.parametrize(("remat", "sums"), [(True, 1), (False, 2)], ids=["remat", "all kept"])
def test_residual_stream_is_stored_once_per_sum(remat: bool, sums: int) -> None:
    """Every layer more brings the sums that its backward pass starts from, not the terms of all sums before them."""
    assert _most_alive(12, remat=remat) - _most_alive(6, remat=remat) == 6 * sums


@pytest.mark.parametrize("narrow", [False, True], ids=["cast last", "computed in 16 bits"])
def test_what_two_gradients_read_is_computed_by_each_on_a_tpu(narrow: bool) -> None:
    """The gradient of a softmax, which the matmuls for both gradients of a product read."""

    def gradients(logits: jax.Array, x: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array]:
        grad = (jnp.exp(logits) - 0.5).astype(jnp.bfloat16)
        grad = grad * 2 if narrow else grad
        return jax.lax.dot_general(grad, x, (((0,), (0,)), ((), ()))), jax.lax.dot_general(
            grad, weight, (((1,), (1,)), ((), ()))
        )

    args = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in (((64, 96), "float32"), ((64, 32), "bfloat16"))]
    graph = build_graph(trace(gradients, (*args, jax.ShapeDtypeStruct((32, 96), "bfloat16"))), while_trips=1.0)
    for compiler, stored in ((TPU.without("softmax-window"), False), (CPU, True)):
        buffers = compiled(graph, group_ops(graph), compiler).buffers
        kept = [buffer.fraction for buffer in buffers if graph.tensors[buffer.tensor].aval.shape == (64, 96)]
        assert kept == [1.0] * stored


@pytest.mark.parametrize(("compiler", "stored"), [(GPU, False), (CPU, True)], ids=["gpu", "cpu"])
def test_two_matmuls_compute_an_activation_each_on_a_gpu(compiler: CompilerModel, stored: bool) -> None:
    def gradients(h: jax.Array, x: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array]:
        z = jnp.tanh(h)
        return x.T @ z, z @ weight.T

    args = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((64, 96), (64, 32), (32, 96))]
    graph = build_graph(trace(gradients, args), while_trips=1.0)
    buffers = compiled(graph, group_ops(graph), compiler).buffers
    assert any(graph.tensors[buffer.tensor].aval.shape == (64, 96) for buffer in buffers) is stored


@pytest.mark.parametrize(
    ("activation", "per_layer"),
    [
        (jax.nn.relu, 1),
        (jnp.tanh, 1),
        (jax.nn.swish, 1),
        (jax.nn.gelu, 1),
        (partial(jax.nn.gelu, approximate=False), 2),
    ],
    ids=["relu", "tanh", "swish", "gelu by tanh", "gelu by erf"],
)
def test_matmuls_compute_activations_but_error_functions(
    activation: Callable[[jax.Array], jax.Array], per_layer: int
) -> None:
    """Of every layer of a perceptron the backward pass needs one tensor, and what is made of it by an error function."""

    def stored(layers: int) -> int:
        def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
            for weight in weights:
                x = activation(x @ weight)
            return jnp.sum(x.astype(jnp.float32) ** 2)

        weight, x = jax.ShapeDtypeStruct((32, 32), jnp.bfloat16), jax.ShapeDtypeStruct(STREAM, jnp.bfloat16)
        graph = build_graph(trace(jax.grad(loss), ([weight] * layers, x)), while_trips=1.0)
        return sum(graph.tensors[one.tensor].aval.shape == STREAM for one in _alive_at_most(graph))

    assert stored(12) - stored(6) == 6 * per_layer


def _alive_at_most(graph: Graph) -> list[Buffer]:
    """The buffers that are in memory where most of those of the stream's shape are."""
    buffers = compiled(graph, group_ops(graph), TPU).buffers
    alive = [[one for one in buffers if one.start <= time < one.stop] for time in range(len(graph.ops) + 1)]
    return max(alive, key=lambda found: sum(graph.tensors[one.tensor].aval.shape == STREAM for one in found))


def _forces(x: jax.Array, masses: jax.Array) -> jax.Array:
    """A power for every pair, times the difference of their places in three dims."""
    apart = x[None] - x[:, None]
    return ((masses * ((apart**2).sum(-1) + 1e-3) ** -1.5)[..., None] * apart).sum(1)


def _in_steps(x: jax.Array, masses: jax.Array) -> jax.Array:
    even = 2 * x + masses[:, None]
    return even[::2] * even[1::2]


def _put_apart(x: jax.Array, masses: jax.Array) -> jax.Array:
    zero = jnp.float32(0)
    return lax.pad(2 * x, zero, ((0, 1, 1), (0, 0, 0))) + lax.pad(x * x, zero, ((1, 0, 1), (0, 0, 0)))


@pytest.mark.parametrize(
    ("fn", "on_tpu", "on_gpu"),
    [
        # The squared distances, and of a TPU the powers that every dim of the places would take anew.
        (_forces, [(64, 64), (64, 64)], [(64, 64)]),
        # Slices in steps, and what they are taken of; of paddings between elements what is put apart.
        (_in_steps, [(64, 3), (32, 3), (32, 3)], []),
        (_put_apart, [(64, 3), (64, 3), (128, 3), (128, 3)], []),
    ],
)
def test_what_a_pass_does_not_compute_on_the_way_stands(
    fn: Callable[..., jax.Array], on_tpu: list[tuple[int, ...]], on_gpu: list[tuple[int, ...]]
) -> None:
    args = jax.ShapeDtypeStruct((64, 3), jnp.float32), jax.ShapeDtypeStruct((64,), jnp.float32)
    graph = build_graph(trace(fn, args), while_trips=1.0)
    for compiler, expected in ((TPU, on_tpu), (GPU, on_gpu)):
        stands = compiled(graph, group_ops(graph), compiler).materialized
        between = [t for t, found in enumerate(stands) if found and t not in {*graph.inputs, *graph.outputs}]
        shapes = [graph.tensors[t].aval.shape for t in between if graph.tensors[t].aval.size > 64]
        assert sorted(shapes) == sorted(expected)


@pytest.mark.parametrize("compiler", [GPU, TPU], ids=["gpu", "tpu"])
def test_transposed_operands_of_a_loop_are_materialized(compiler: CompilerModel) -> None:
    """A lookup of words, in the order of time: every trip reads the rows of one, not the table."""

    def fn(table: jax.Array, ids: jax.Array) -> jax.Array:
        def step(state: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
            return jnp.tanh(state + x), None

        return lax.scan(step, jnp.zeros((8, 32)), jnp.swapaxes(2 * table[ids], 0, 1))[0]

    args = jax.ShapeDtypeStruct((64, 32), jnp.float32), jax.ShapeDtypeStruct((8, 16), jnp.int32)
    graph = build_graph(trace(fn, args), while_trips=1.0)
    found = compiled(graph, group_ops(graph), compiler)
    words = {op.results[0] for op in graph.of_kinds(("mul", "transpose"))}
    (loop,) = (op.region for op in graph.of_kinds(("tanh",)))
    (buffer,) = (one for one in found.buffers if one.tensor in words and one.fraction == 1)
    assert buffer.stop >= found.spans[loop][1]
