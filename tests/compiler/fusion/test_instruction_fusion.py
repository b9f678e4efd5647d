"""What a GPU's compiler makes of matmuls and what is around them, where a TPU's computes it on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import planner
from planner.compiler.analysis import model_of
from planner.compiler.fusion.instruction_fusion import partial_broadcasts, varying_dims
from planner.compiler.fusion.kernels import Access, Kernel, kernels_of
from planner.compiler.layout.uncoalesced_transposes import (
    TRANSACTION_BYTES,
    is_tiled,
    swaps_across,
    uncoalesced_transposes,
)
from planner.compiler.program import compiled
from planner.compiler.targets.table import GPU, TPU
from planner.decisions.groups import group_ops
from planner.program.graph import Graph
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.trace import trace
from tests.small import NEVER

WEIGHT = jax.ShapeDtypeStruct((512, 1024), jnp.bfloat16)
X = jax.ShapeDtypeStruct((256, 512), jnp.bfloat16)
WIDE = (256, 1024)


def _kernels(fn: Callable[..., Any], *args: Any) -> tuple[Graph, list[Kernel]]:
    graph = build_graph(trace(fn, args), while_trips=1.0)
    grouping = group_ops(graph)
    found = kernels_of(compiled(graph, grouping, GPU))
    return graph, sorted((kernel for of in found.of_group.values() for kernel in of), key=lambda kernel: kernel.op)


def _moved(kernels: list[Kernel]) -> list[Access]:
    return [access for kernel in kernels for of in (*kernel.operands, *kernel.results, kernel.others) for access in of]


def test_a_matmul_reads_what_stands_in_memory() -> None:
    def fn(x: jax.Array, y: jax.Array, up: jax.Array) -> jax.Array:
        return (x * y) @ up

    graph, kernels = _kernels(fn, X, X, WEIGHT)
    assert [graph.ops[kernel.op].kind for kernel in kernels] == ["mul", "dot_general"]
    assert [access.shape for access in kernels[0].others] == [X.shape] * 3


def test_a_convolution_computes_no_operand() -> None:
    image, window = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((8, 32, 32, 64), (3, 3, 64, 64)))

    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(
            jax.nn.relu(x), w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    graph, kernels = _kernels(fn, image, window)
    assert [graph.ops[kernel.op].kind for kernel in kernels] == ["max", "conv_general_dilated"]


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
    """By devices that hold several elements of the short dim; of one, what is left is done in tiles."""
    x = jax.ShapeDtypeStruct((4096, 32, 64, 4), jnp.float32)
    _, kernels = _kernels(lambda x: jnp.sin(jnp.transpose(jnp.cos(x), (0, 3, 2, 1))) + 1, x)
    read = [(access.times, access.several) for access in _moved(kernels) if access.shape == x.shape]
    assert sorted(read) == [(1.0, ()), (1.0, ()), (1.0, ()), (15.0, (3,))]


@pytest.mark.parametrize(
    ("fn", "stands"),
    [
        (lambda h: jnp.maximum(h, 0) * 0.5, False),
        (lambda h: jnp.tanh(h.astype(jnp.float32)), False),
        (lambda h: h * jnp.tanh(h), True),
        (lambda h: h * h, True),
    ],
)
def test_a_matmul_computes_an_operand_of_one_array(fn: Callable[[jax.Array], jax.Array], *, stands: bool) -> None:
    def step(x: jax.Array, up: jax.Array, down: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = fn(x @ up)
        return h @ down, h.T @ x.astype(h.dtype)

    down = jax.ShapeDtypeStruct((1024, 512), jnp.bfloat16)
    graph = build_graph(trace(step, (X, WEIGHT, down)), while_trips=1.0)
    program = compiled(graph, group_ops(graph), GPU)
    made = {b.tensor for b in program.buffers if graph.ops[graph.tensors[b.tensor].producer or 0].kind != "dot_general"}
    assert any(graph.tensors[tensor].aval.shape == WIDE for tensor in made) == stands


@pytest.mark.parametrize("made", [False, True])
def test_a_matmul_narrows_an_argument_and_nothing_that_others_made(made: bool) -> None:
    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        return (jnp.tanh(x + 1) if made else x).astype(jnp.bfloat16) @ w

    wide = jax.ShapeDtypeStruct(X.shape, jnp.float32)
    _, kernels = _kernels(fn, wide, WEIGHT)
    read = [(access.shape, access.itemsize) for access in kernels[-1].operands[0]]
    assert read == [(X.shape, 2.0 if made else 4.0)]
    assert len(kernels) == 1 + made


@pytest.mark.parametrize(
    ("bias", "several"),
    [((8, 1, 128, 128), (0, 1)), ((1, 4, 128, 128), (1, 0)), ((1, 1, 128, 128), None), ((1, 1, 1, 1), None)],
)
def test_a_broadcast_along_a_part_of_a_batch_is_in_memory(
    bias: tuple[int, ...], several: tuple[int, ...] | None
) -> None:
    """That of a bias for each head, or each example, of 8 with 4 heads; not what is broadcast along both."""

    def fn(q: jax.Array, k: jax.Array, b: jax.Array) -> jax.Array:
        return jax.nn.softmax(jnp.einsum("bhqd,bhkd->bhqk", q, k) + jnp.broadcast_to(b, (8, 4, 128, 128)), -1)

    heads = jax.ShapeDtypeStruct((8, 4, 128, 64), jnp.float32)
    graph = build_graph(trace(fn, (heads, heads, jax.ShapeDtypeStruct(bias, jnp.float32))), while_trips=1.0)
    (product,) = graph.of_kinds(("dot_general",))
    found = list(partial_broadcasts(graph, product, varying_dims(graph)))
    assert found == ([] if several is None else [(4.0, several)])


@pytest.mark.parametrize(("groups", "bad"), [(8, True), (32, False)])
def test_what_a_matmul_makes_is_transposed_as_the_next_one_reads_it(groups: int, *, bad: bool) -> None:
    """Scores of (length, queries, groups) are wanted in reverse, and read as (length, groups, queries)."""

    def mixed(queries: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
        scores = jnp.exp(jnp.einsum("qgd,kd->gqk", queries, keys))
        return jnp.einsum("gqk,kd->gqd", scores, values)

    shapes = (512, groups, 64), (8192, 64), (8192, 64)
    graph = build_graph(trace(mixed, [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]), while_trips=1.0)
    turned = [op.id for op in graph.of_kinds(("transpose",)) if op.params["permutation"] == (2, 1, 0)]
    assert len(turned) == 1
    assert (turned[0] in uncoalesced_transposes(graph)) == bad
    assert is_tiled((8192, 512, groups), (2, 1, 0))


@pytest.mark.parametrize(
    ("computed", "times"),
    [(lambda x, _: x, 1), (lambda x, y: x * y, 1), (lambda x, _: jnp.tanh(x), TRANSACTION_BYTES / 4)],
)
def test_a_transpose_that_is_a_whole_kernel_is_done_in_tiles(computed: Callable[..., jax.Array], times: float) -> None:
    """Of an argument, and of a product of two, which is stored; what is computed of one array is read in its place."""

    def gradient(queries: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.einsum("kqg,qgd->kd", jnp.transpose(computed(x, y), (2, 1, 0)), queries)

    shapes = (512, 4, 64), (4, 512, 2048), (4, 512, 2048)
    graph = build_graph(
        trace(gradient, [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]), while_trips=1.0
    )
    assert list(uncoalesced_transposes(graph).values()) == [(times, (0,))]


@pytest.mark.parametrize(
    ("shape", "order", "swapped"),
    [
        ((8, 4, 512, 8192), (0, 3, 2, 1), True),
        ((8, 4, 512, 8192), (0, 3, 1, 2), False),
        ((8, 4, 512, 8192), (0, 2, 3, 1), False),
        ((8, 4, 8192), (0, 2, 1), False),
        ((4, 2, 512, 64, 128), (3, 4, 2, 0, 1), True),
        ((4, 1, 1, 8192), (3, 1, 2, 0), False),
    ],
)
def test_triton_takes_what_swaps_dims_across_others(
    shape: tuple[int, ...], order: tuple[int, ...], *, swapped: bool
) -> None:
    """Dims that stay side by side count as one, and those of one element not at all."""
    assert swaps_across(shape, order) == swapped


def _decoded(stack: jax.Array, new: jax.Array, query: jax.Array, product: str) -> tuple[jax.Array, jax.Array]:
    """A cache of (layers, batch, length, heads, width) in a loop's carry, updated and read in every trip."""

    def step(carry: tuple[jax.Array, jax.Array], layer: jax.Array) -> tuple[tuple[jax.Array, jax.Array], None]:
        cache, total = carry
        cache = jax.lax.dynamic_update_slice(cache, new, (layer, 0, 7, 0, 0))
        mine = jax.lax.dynamic_index_in_dim(cache, layer, keepdims=False)
        if mine.dtype == jnp.int8:
            mine = mine.astype(query.dtype) * jnp.abs(query).max()
        return (cache, total + jnp.sum(jnp.einsum(product, mine, query).astype(jnp.float32))), None

    (stack, total), _ = jax.lax.scan(step, (stack, jnp.zeros(())), jnp.arange(stack.shape[0]))
    return stack, total


def _cache(query: tuple[int, ...], dtype: Any) -> tuple[jax.ShapeDtypeStruct, ...]:
    stack, new = (jax.ShapeDtypeStruct((layers, 8, length, 8, 64), dtype) for layers, length in ((3, 128), (1, 1)))
    return stack, new, jax.ShapeDtypeStruct(query, jnp.bfloat16)


KEPT, SUMMED = ("bkhd,bhd->bhk", (8, 8, 64)), ("bkhd,bhk->bhd", (8, 8, 128))
"""Products of a cache that keep its length, and that sum over it."""


@pytest.mark.parametrize(("product", "several"), [(KEPT, None), (SUMMED, 3)])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.int8])
def test_a_cache_is_turned_for_the_whole_loop(
    product: tuple[str, tuple[int, ...]], several: int | None, dtype: Any
) -> None:
    """For matmuls that keep its length; for others only where a device holds several heads."""
    args = _cache(product[1], dtype)
    graph = build_graph(
        trace(lambda s, n, q: _decoded(s, n, q, product[0]), args, donate_argnums=(0,)), while_trips=1.0
    )
    program = compiled(graph, group_ops(graph), GPU)
    found = program.transposed
    assert [(graph.ops[op].kind, dim) for op, dim in found.items()] == [("loop_carry_in", several)]
    assert [program.in_place.extra_traffic.get(op) for op in found] == ([4.0] if several is None else [None])
    assert [program.transposes.get(op) for op in found] == ([None] if several is None else [(4.0, several)])
    assert [b.several for b in program.buffers if b.tensor == graph.inputs[0]] == [
        () if several is None else (several,)
    ]


@pytest.mark.parametrize(("product", "alone", "several"), [(KEPT, 2.0, 2.0), (SUMMED, 1.0, 2.0)])
def test_heads_that_are_alone_on_their_device_lie_in_any_order(
    product: tuple[str, tuple[int, ...]], alone: float, several: float
) -> None:
    args = _cache(product[1], jnp.bfloat16)
    times: list[float] = []
    for spec, other in ((P(None, None, None, "x"), P(None, "x")), (P(None, "x"), P("x"))):
        plan = planner.plan(
            lambda s, n, q: _decoded(s, n, q, product[0]),
            args,
            topology="h100:8",
            mesh={"x": 8},
            pins={"s": spec, "n": spec, "q": other, "out/0": spec},
            donate_argnums=0,
            options=planner.Options(check="never"),
        )
        times.append(plan.predicted.peak_bytes / (args[0].size * 2 / 8))
    assert times == [pytest.approx(alone, abs=0.5), pytest.approx(several, abs=0.5)]


def test_a_gather_is_part_of_the_passes_that_read_it() -> None:
    table, where = jax.ShapeDtypeStruct((4096, 512), jnp.float32), jax.ShapeDtypeStruct((8192,), jnp.int32)
    _, kernels = _kernels(lambda t, i, j: jnp.tanh(t[i] * t[j]), table, where, where)
    assert not any(kernel.operands for kernel in kernels)
    # What is picked of the table is read, and the result written.
    assert sum(access.times for access in _moved(kernels) if access.shape == (8192, 512)) == 2.0


def test_a_copy_of_a_parameter_does_not_live_until_its_update() -> None:
    def step(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        loss, gradient = jax.value_and_grad(lambda w: jnp.sum(jnp.sin(jnp.sin(x @ w) @ w.T)))(w)
        return w - 0.1 * gradient, loss

    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((512, 512), (4096, 512))]
    for compiler in (TPU, GPU):
        graph = build_graph(trace(step, args, donate_argnums=(0,)), while_trips=1.0)
        model = model_of(graph, pinned_outputs=set(), kept=set(), compiler=compiler)
        stops = [
            stop
            for transfer, stop in zip(model.copied.transfers, model.copied.targets.stops.tolist(), strict=True)
            if transfer.tensor == graph.inputs[0] and model.flow.nodes[transfer.target].kind == "copy"
        ]
        last = max(op.id for op in graph.ops if op.kind == "dot_general")
        assert (max(stops) > last + 1) == (compiler == TPU)


def _predicted(fn: Callable[..., Any], *shapes: tuple[int, ...]) -> planner.Plan:
    args = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    return planner.plan(fn, args, topology="h100:8", mesh={"x": 1}, options=planner.Options(check="never"))


def test_products_beyond_the_measured_ones_take_their_rate() -> None:
    """Of few columns: the latency counts as often as the rows are those of a measured product."""
    times = [_predicted(jnp.dot, (rows, 256), (256, 256)).predicted.compute_seconds for rows in (4096, 64 * 4096)]
    assert times[1] / times[0] == pytest.approx(64, rel=1e-3)
    assert times[0] > 5.5e-6


@pytest.mark.parametrize("topology", ["v5e:2x4", "h100:8"])
def test_arrays_without_elements_are_planned(topology: str) -> None:
    def scanned(x: Any) -> Any:
        return jax.lax.associative_scan(jnp.multiply, jnp.exp(x), axis=1).sum()

    plan = planner.plan(
        jax.grad(scanned), (jax.ShapeDtypeStruct((64, 2, 256), jnp.float32),), topology=topology, options=NEVER
    )
    assert plan.predicted.seconds > 0
