"""What a GPU's compiler makes of matmuls and what is around them, where a TPU's computes it on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import planner
from planner.any_mesh.bad_transposes import is_tiled
from planner.any_mesh.fusion import ON_GPU
from planner.any_mesh.groups import group_ops
from planner.any_mesh.kernels import Access, Kernel, kernels_of
from planner.any_mesh.liveness import analyse
from planner.program.graph import Graph
from planner.program.jaxpr.flatten import build_graph
from planner.program.trace import trace

WEIGHT = jax.ShapeDtypeStruct((512, 1024), jnp.bfloat16)
X = jax.ShapeDtypeStruct((256, 512), jnp.bfloat16)
WIDE = (256, 1024)


def _kernels(fn: Callable[..., Any], *args: Any) -> tuple[Graph, list[Kernel]]:
    graph = build_graph(trace(fn, args), while_trips=1.0)
    grouping = group_ops(graph)
    found = kernels_of(graph, grouping, analyse(graph, grouping, ON_GPU), ON_GPU)
    return graph, sorted((kernel for of in found.of_group.values() for kernel in of), key=lambda kernel: kernel.op)


def _moved(kernels: list[Kernel]) -> list[Access]:
    return [access for kernel in kernels for of in (*kernel.operands, *kernel.results, kernel.others) for access in of]


def test_a_matmul_reads_what_stands_in_memory() -> None:
    def fn(x: jax.Array, y: jax.Array, up: jax.Array) -> jax.Array:
        return (x * y) @ up

    graph, kernels = _kernels(fn, X, X, WEIGHT)
    assert [graph.ops[kernel.op].kind for kernel in kernels] == ["mul", "dot_general"]
    assert [access.shape for access in kernels[0].others] == [X.shape] * 3


@pytest.mark.parametrize("readers", [1, 2])
def test_a_matmul_goes_on_with_what_nothing_else_reads(readers: int) -> None:
    def fn(x: jax.Array, up: jax.Array) -> jax.Array:
        made = x @ up
        return jnp.tanh(made) * made if readers == 2 else jnp.tanh(made)

    def program(x: jax.Array, up: jax.Array) -> jax.Array:
        return jnp.sort(fn(x, up))

    graph, kernels = _kernels(program, X, WEIGHT)
    kinds = [graph.ops[kernel.op].kind for kernel in kernels]
    assert kinds == (["dot_general", "sort"] if readers == 1 else ["dot_general", "mul", "sort"])


def _normed(x: jax.Array) -> jax.Array:
    return x * (x.sum(-1, keepdims=True) + (x * x).sum(-1, keepdims=True))


def test_a_softmax_goes_over_its_rows_once_and_side_by_side_sums_do_not() -> None:
    wide = jax.ShapeDtypeStruct((4096, 4096), jnp.float32)
    _, (softmax,) = _kernels(lambda x: jax.nn.softmax(jnp.sin(x)), wide)
    assert sum(access.shape == wide.shape for access in softmax.others) == 2
    _, norm = _kernels(lambda x: _normed(jnp.sin(x)), wide)
    assert sum(access.shape == wide.shape for access in _moved(norm)) == 3


def test_the_slice_of_a_stack_is_copied_for_a_matmul() -> None:
    def fn(x: jax.Array, stack: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda carry, w: (carry @ w, None), x, stack)[0]

    _, kernels = _kernels(fn, X, jax.ShapeDtypeStruct((4, 512, 512), jnp.bfloat16))
    assert sum(access.times for access in _moved(kernels) if access.shape == (512, 512)) == 3.0


@pytest.mark.parametrize(
    ("shape", "permutation", "tiled"),
    [
        ((8, 4096, 512, 4), (0, 3, 2, 1), False),
        ((8, 4096, 512, 4), (0, 2, 3, 1), True),
        ((8, 8192, 8), (0, 2, 1), True),
        ((8, 64, 8), (0, 2, 1), False),
        ((8, 64, 2, 8), (0, 2, 1, 3), True),
        ((8, 4096, 1, 4), (0, 2, 1, 3), True),
    ],
)
def test_transposes_are_done_in_tiles_where_what_lies_innermost_is_long(
    shape: tuple[int, ...], permutation: tuple[int, ...], *, tiled: bool
) -> None:
    assert is_tiled(shape, permutation) == tiled


def test_other_transposes_are_read_an_element_at_a_time() -> None:
    x = jax.ShapeDtypeStruct((4096, 2, 64, 4), jnp.float32)
    _, kernels = _kernels(lambda x: jnp.sin(jnp.transpose(jnp.cos(x), (0, 3, 2, 1))) + 1, x)
    read = [access.times for access in _moved(kernels) if access.shape == x.shape]
    assert sorted(read) == [1.0, 1.0, 16.0]


def _predicted(fn: Callable[..., Any], *shapes: tuple[int, ...]) -> planner.Plan:
    args = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    return planner.plan(fn, args, topology="h100:8", mesh={"x": 1}, options=planner.Options(check="never"))


def test_products_beyond_the_measured_ones_take_their_rate() -> None:
    """Of few columns: the latency counts as often as the rows are those of a measured product."""
    times = [_predicted(jnp.dot, (rows, 256), (256, 256)).predicted.compute_seconds for rows in (4096, 64 * 4096)]
    assert times[1] / times[0] == pytest.approx(64, rel=1e-3)
    assert times[0] > 5.5e-6
