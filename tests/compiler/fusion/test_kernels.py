"""Which ops a fusing compiler runs together, and what their kernels read and write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from planner.compiler.fusion.kernels import Kernel, kernels_of
from planner.compiler.model import CompilerModel
from planner.compiler.program import compiled
from planner.compiler.targets.table import GPU, TPU
from planner.decisions.groups import group_ops
from planner.program.graph import Graph
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.trace import trace

WEIGHT = jax.ShapeDtypeStruct((512, 1024), jnp.bfloat16)
X = jax.ShapeDtypeStruct((256, 512), jnp.bfloat16)


def _kernels(fn: Callable[..., Any], *args: Any, compiler: CompilerModel = TPU) -> tuple[Graph, list[Kernel]]:
    graph = build_graph(trace(fn, args), while_trips=1.0)
    grouping = group_ops(graph)
    found = kernels_of(compiled(graph, grouping, compiler))
    return graph, sorted((kernel for of in found.of_group.values() for kernel in of), key=lambda kernel: kernel.op)


def test_a_matmul_goes_on_with_its_result_and_writes_what_is_computed_of_it() -> None:
    def fn(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
        return jnp.tanh(x @ up) @ down.T

    graph, kernels = _kernels(fn, X, WEIGHT, WEIGHT)
    first, second = (kernel for kernel in kernels if graph.ops[kernel.op].kind == "dot_general")
    assert [[access.shape for access in of] for of in first.operands] == [[X.shape], [WEIGHT.shape]]
    # The first writes the tanh and not its own result; the transpose is no pass of its own.
    assert first.results == ((),)
    assert [access.shape for access in first.others] == [(256, 1024)]
    assert [[access.shape for access in of] for of in second.operands] == [[(256, 1024)], [WEIGHT.shape]]
    assert [access.home for of in second.operands for access in of] == ["product", "memory"]
    assert [access.home for of in second.results for access in of] == ["memory"]
    assert len(kernels) == 2


def test_passes_that_read_the_same_are_one_kernel() -> None:
    def fn(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        total = x + y
        return total, jnp.sin(total) * y

    _, (kernel,) = _kernels(fn, X, X)
    assert (kernel.operands, kernel.results) == ((), ())
    assert [access.shape for access in kernel.others] == [X.shape] * 4


def test_what_is_broadcast_before_a_loop_is_read_as_it_was_before() -> None:
    mask = jax.ShapeDtypeStruct((512,), jnp.float32)

    def fn(x: jax.Array, mask: jax.Array) -> jax.Array:
        wide = jnp.broadcast_to(mask, (4096, 512))
        return jax.lax.fori_loop(0, 8, lambda _, y: jnp.sort(y * wide, axis=0), x)

    _, kernels = _kernels(fn, jax.ShapeDtypeStruct((4096, 512), jnp.float32), mask)
    read = [access for kernel in kernels for access in kernel.others if access.shape == (4096, 512)]
    assert sum(access.times for access in read) == 2.0


def test_a_matmul_writes_the_type_that_it_makes() -> None:
    def fn(x: jax.Array, up: jax.Array) -> tuple[jax.Array, jax.Array]:
        wide = (x @ up).astype(jnp.float32)
        return wide.sum(0), jnp.sort(wide)

    graph, kernels = _kernels(fn, X, WEIGHT)
    first = next(kernel for kernel in kernels if graph.ops[kernel.op].kind == "dot_general")
    assert [access.itemsize * access.times for of in first.results for access in of] in ([2.0], [])


def test_a_matmul_adds_its_result_to_a_slice_of_an_accumulator() -> None:
    def fn(x: jax.Array, y: jax.Array) -> jax.Array:
        def trip(carry: Any, of: Any) -> Any:
            total, at = carry
            places = (at, 0, 0)
            before = lax.dynamic_slice(total, places, (1, *WEIGHT.shape))
            added = before + (of[0].T @ of[1])[None].astype(jnp.float32)
            return (lax.dynamic_update_slice(total, added, places), at + 1), None

        return lax.scan(trip, (jnp.zeros((4, *WEIGHT.shape)), 0), (x, y))[0][0]

    stacks = [jax.ShapeDtypeStruct((4, 256, width), jnp.bfloat16) for width in WEIGHT.shape]

    def moved(compiler: CompilerModel) -> list[tuple[str, list[tuple[int, ...]]]]:
        graph, kernels = _kernels(fn, *stacks, compiler=compiler)
        return [
            (
                graph.ops[one.op].kind,
                [access.shape for of in (*one.operands[2:], *one.results, one.others) for access in of],
            )
            for one in kernels
            if graph.ops[one.op].kind != "add"
        ]

    whole, update = (4, *WEIGHT.shape), (1, *WEIGHT.shape)
    assert moved(TPU) == [("dot_general", [update, update])]
    # A GPU's matmul writes its result, which the kernel of the update adds.
    (product, written), (other, shapes) = moved(GPU)
    assert (product, written[:1], other) == ("dot_general", [WEIGHT.shape], "dynamic_update_slice")
    assert shapes == [whole]


def test_a_matmul_fuses_ops_that_read_results_of_later_smaller_kernels() -> None:
    """Such as a bias of relative positions: what makes it runs before the matmul then."""

    def fn(x: jax.Array, up: jax.Array, of_bias: jax.Array) -> jax.Array:
        scores = x @ up
        bias = jnp.cumsum(of_bias @ up, 0)[:1]
        return jnp.tanh(scores + bias) @ up.T

    graph, kernels = _kernels(fn, X, WEIGHT, jax.ShapeDtypeStruct((8, 512), jnp.bfloat16))
    assert [graph.ops[kernel.op].kind for kernel in kernels] == ["dot_general", "dot_general", "cumsum", "dot_general"]
    assert [access.shape for access in kernels[0].others] == [(1, 1024), (256, 1024)]


@pytest.mark.parametrize("compiler", [TPU, GPU], ids=["tpu", "gpu"])
def test_what_waits_for_a_sum_of_all_rows_is_another_kernel_however_small_the_sum(compiler: CompilerModel) -> None:
    def fn(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        mean = jnp.mean(x, 0)
        return x - mean, mean

    x = jax.ShapeDtypeStruct((1 << 16, 64), jnp.float32)
    _, kernels = _kernels(fn, x, compiler=compiler)
    read = [sum(access.shape == x.shape for access in kernel.others) for kernel in kernels]
    assert sorted(filter(None, read)) == [1, 2]  # one sums, the other reads again and writes


@pytest.mark.parametrize("compiler", [TPU, GPU], ids=["tpu", "gpu"])
def test_what_waits_for_a_norm_of_several_arrays_reads_each_of_them_again(compiler: CompilerModel) -> None:
    """As gradients are that are clipped: a pass for the squares of each, and one that scales it."""

    def fn(*arrays: jax.Array) -> list[jax.Array]:
        gradients = [jnp.tanh(array) for array in arrays]
        norm = jnp.sqrt(sum(jnp.sum(gradient**2) for gradient in gradients))
        return [gradient / norm for gradient in gradients]

    arrays = [jax.ShapeDtypeStruct((1 << 10, width), jnp.float32) for width in (512, 1024, 2048)]
    _, kernels = _kernels(fn, *arrays, compiler=compiler)
    for array in arrays:
        read = [sum(access.shape == array.shape for access in kernel.others) for kernel in kernels]
        assert sorted(filter(None, read)) == [1, 2]


@pytest.mark.parametrize(("compiler", "goes_on"), [(TPU, True), (GPU, False)], ids=["tpu", "gpu"])
def test_convolutions_of_libraries_go_on_with_nothing(compiler: CompilerModel, goes_on: bool) -> None:
    def fn(x: jax.Array, w: jax.Array, v: jax.Array) -> jax.Array:
        layout = ("NHWC", "HWIO", "NHWC")

        def convolved(x: jax.Array, w: jax.Array) -> jax.Array:
            return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=layout)

        return convolved(jnp.maximum(convolved(x, w), 0), v)

    image, weight = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((64, 64, 64, 32), (3, 3, 32, 32)))
    graph, kernels = _kernels(fn, image, weight, weight, compiler=compiler)
    passes = [kernel for kernel in kernels if graph.ops[kernel.op].kind != "conv_general_dilated"]
    assert bool(passes) != goes_on
    assert not any(kernel.others for kernel in kernels if kernel not in passes)
