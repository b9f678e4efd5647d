"""What a TPU's compiler spares a program of its moves, and that prices, predictions and the op graph know it alike."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import planner
from cost_models import CHIPS, Roofline, parse_topology
from planner.compiler.analysis import Model, model_of
from planner.compiler.collectives.lowering import as_lowered
from planner.compiler.collectives.overlap import HIDDEN
from planner.compiler.emission.options import uses_sparse_cores
from planner.compiler.model import CompilerModel
from planner.compiler.targets.table import CPU, GPU, TPU, compiler_of
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.trace import trace
from planner.verify.aot import unavailable_reason

NEVER = planner.Options(check="never")
WIDTH, ROWS = 1024, 8192


def shape(*extents: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(extents, jnp.bfloat16)


def model(fn: Any, *args: Any, compiler: CompilerModel = TPU) -> Model:
    return model_of(build_graph(trace(fn, args)), pinned_outputs=frozenset(), kept=frozenset(), compiler=compiler)


def reassociated(fn: Any, *args: Any) -> list[int]:
    return sorted(model(fn, *args).savings.reassociated.values())


X, W = shape(ROWS, WIDTH), shape(WIDTH, WIDTH)


def test_sums_that_are_only_added_are_one() -> None:
    assert reassociated(lambda a, b, u, v: a @ u + b @ v, X, X, W, W) == [2, 2]
    assert reassociated(lambda a, u, v, w: (a @ u + a @ v) + a @ w, X, W, W, W) == [3, 3, 3]


def test_sums_that_something_else_reads_stay_apart() -> None:
    assert not reassociated(lambda a, u, v: jnp.tanh(a @ u) + a @ v, X, W, W)
    assert not reassociated(lambda a, u: a @ u + a, X, W)

    def read_twice(a: Any, u: Any, v: Any) -> Any:
        first = a @ u
        return first + a @ v, jnp.tanh(first)

    assert not reassociated(read_twice, X, W, W)


@pytest.mark.parametrize(
    ("chip", "width", "hidden"),
    [("v5e", WIDTH, False), ("v6e", WIDTH, True), ("h100", 16 * WIDTH, True), ("h100", WIDTH, False)],
)
def test_sums_that_no_matmul_waits_for_are_hidden_by_those_behind_them(chip: str, width: int, hidden: bool) -> None:
    """On GPUs small ones are combined with what is summed last, behind which there is nothing."""

    def gradients(w: Any, x: Any) -> Any:
        hidden = jnp.tanh(x @ w[0])
        return x.T @ hidden, hidden @ w[1]

    weights = (shape(width, width),) * 2
    graph = build_graph(trace(gradients, (weights, shape(ROWS, width))))
    found = model_of(graph, pinned_outputs=frozenset(), kept=frozenset(), compiler=compiler_of(CHIPS[chip]))
    product = graph.of_kinds(("dot_general",))[1].results[0]
    (summed,) = (t.id for t in found.flow.transfers if t.reduced and t.tensor == product)
    assert found.savings.overlap_flops.get(summed, 0.0) == (2 * ROWS * width**2 if hidden else 0.0)


def test_sums_of_gpus_that_are_combined_begin_with_the_last_of_them() -> None:
    """Of four gradients of 50 MB two are combined, and have each half of the matmuls behind the second of them."""

    def gradients(w: Any, x: Any) -> Any:
        return [x.T @ (x @ one) for one in w]

    width = 5 * WIDTH
    graph = build_graph(trace(gradients, ([shape(width, width)] * 4, shape(ROWS, width))))
    found = model_of(graph, pinned_outputs=frozenset(), kept=frozenset(), compiler=compiler_of(CHIPS["h100"]))
    products = [op.results[0] for op in graph.of_kinds(("dot_general",))][1::2]
    sums = {t.tensor: t.id for t in found.flow.transfers if t.reduced}
    hidden = [found.savings.overlap_flops.get(sums[product], 0.0) for product in products]
    each = 2 * ROWS * width**2
    assert hidden == [2 * each, 2 * each, 0.0, 0.0]


def test_sums_that_no_matmul_waits_for_are_combined() -> None:
    def loss(w: Any, x: Any) -> Any:
        return jnp.sum(jnp.tanh(jnp.tanh(x @ w[0]) @ w[1]).astype(jnp.float32))

    def step(w: Any, x: Any) -> Any:
        return jax.tree.map(lambda w, g: w - g, w, jax.grad(loss)(w, x))

    found = model(step, (W, W), X)
    graph = found.graph
    combined = [t for t in found.flow.transfers if t.id in found.savings.latency]
    assert {graph.tensors[t.tensor].aval.shape for t in combined} >= {(WIDTH, WIDTH)}
    others = {graph.tensors[t.tensor].aval.shape for t in found.flow.transfers if t.reduced and t not in combined}
    assert others == {(ROWS, WIDTH)}


def test_sums_that_wait_for_as_many_sums_are_combined() -> None:
    """Those of a mean and a mean of squares; not the sum of what these make, nor those that are merged before."""

    def normalized(x: Any, w: Any) -> Any:
        x = (x - x.mean(0)) * jax.lax.rsqrt((x * x).mean(0))
        return jnp.tanh(x @ w).sum(0) @ w

    found = model(normalized, X, W)
    sums = [t for t in found.flow.transfers if t.reduced and found.graph.tensors[t.tensor].aval.shape == (WIDTH,)]
    assert [found.savings.latency.get(t.id) for t in sums[:3]] == [0.5, 0.5, None]
    merged = model(lambda a, b, u, v: jnp.tanh(a @ u + b @ v) @ v, X, X, W, W).savings
    assert merged.reassociated
    assert merged.latency.keys().isdisjoint(merged.reassociated)


def test_sums_of_products_that_matmuls_wait_for_are_priced_apart() -> None:
    """Whether queries and keys are sums, and over which devices, is decided apart."""
    found = model(lambda x, q, k: jnp.tanh(x @ q) @ jnp.tanh(x @ k).T, X, W, W)
    awaited = [op.results[0] for op in found.graph.of_kinds(("dot_general",))][:2]
    assert {t.tensor for t in found.flow.transfers if t.reduced} >= set(awaited)
    assert all(t.id not in found.savings.latency for t in found.flow.transfers if t.tensor in awaited)


def test_sums_that_only_the_next_trip_waits_for_are_combined() -> None:
    """Those of what a trip leaves in the carry with those of what it stacks: libtpu makes one all-reduce of both."""

    def carried(x: Any, w: Any) -> Any:
        return jax.lax.scan(lambda h, _: (jnp.tanh(h @ w), h @ w), x, None, length=3)

    found = model(carried, X, W)
    assert [found.savings.latency.get(t.id) for t in found.flow.transfers if t.reduced] == [0.5, 0.5]


def test_gradients_of_a_loop_of_steps_share_one_latency() -> None:
    def loss(weights: Any, x: Any) -> Any:
        return sum(jnp.sum(jnp.tanh(x @ w).astype(jnp.float32)) for w in weights)

    def step(weights: Any, x: Any) -> Any:
        return jax.tree.map(lambda w, g: w - g, weights, jax.grad(loss)(weights, x)), None

    def steps(weights: Any, batches: Any) -> Any:
        return jax.lax.scan(step, weights, batches)[0]

    found = model(steps, [W, W], shape(4, ROWS, WIDTH))
    sums = [t for t in found.flow.transfers if t.reduced and found.graph.tensors[t.tensor].aval.shape == W.shape]
    assert len(sums) == 2
    assert all(found.savings.latency[t.id] <= 0.5 for t in sums)


def test_a_gather_moves_what_its_readers_want() -> None:
    """A TPU multiplies float32 as bfloat16, and gathers it so."""
    weights = jax.ShapeDtypeStruct((WIDTH, 2 * WIDTH), jnp.float32)
    rows = jax.ShapeDtypeStruct((64 * ROWS, WIDTH), jnp.float32)

    def product(x: Any, w: Any) -> Any:
        return x @ w

    for topology, share in (("v5e:2x2", 0.5), ("h100:4", 1.0)):
        plan = planner.plan(
            product,
            (rows, weights),
            topology=topology,
            mesh={"x": 4},
            pins={"x": P("x"), "w": P("x"), "out": P("x")},
            options=NEVER,
        )
        (gather,) = plan.predicted.collectives
        assert gather.kind == "all-gather"
        assert gather.bytes == share * 4 * WIDTH * 2 * WIDTH
        # What virtual CPU devices are given to move is not narrowed.
        (whole,) = as_lowered(plan.predicted.collectives, CPU, lambda kind, *_: kind)
        assert whole.bytes == 4 * WIDTH * 2 * WIDTH


def scanned(x: Any, weights: Any) -> Any:
    return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w.astype(jnp.bfloat16)), None), x, weights)[0]


def in_pairs(x: Any, weights: Any) -> Any:
    """Two matmuls in every trip, of which the second has something to be gathered beside."""

    def body(h: Any, pair: Any) -> Any:
        first, second = (w.astype(jnp.bfloat16) for w in pair)
        return jnp.tanh(jnp.tanh(h @ first) @ second), None

    return jax.lax.scan(body, x, weights)[0]


def test_weights_are_fetched_ahead_and_activations_are_not() -> None:
    stack = jax.ShapeDtypeStruct((4, WIDTH, WIDTH), jnp.float32)
    assert not model(scanned, X, stack).savings.overlap_flops
    assert model(scanned, X, stack, compiler=GPU).savings.overlap_flops
    found = model(in_pairs, X, (stack, stack))
    graph = found.graph
    ahead = {graph.tensors[t.tensor].aval.shape for t in found.flow.transfers if t.id in found.savings.overlap_flops}
    others = {
        graph.tensors[t.tensor].aval.shape for t in found.flow.transfers if t.id not in found.savings.overlap_flops
    }
    assert (WIDTH, WIDTH) in ahead
    assert (ROWS, WIDTH) in others - ahead
    flops = 2.0 * ROWS * WIDTH * WIDTH
    assert set(found.savings.overlap_flops.values()) == {flops}
    # Of more than what hides the gather nobody needs to know.
    assert set(replace(found, hiding=(flops / 2, 0.0)).savings.overlap_flops.values()) == {flops / 2}
    assert not replace(found, hiding=(0.0, 0.0)).savings.overlap_flops


def test_a_gather_of_a_tpu_loop_runs_beside_the_matmul_before_its_own() -> None:
    def layers(x: Any, weights: Any) -> Any:
        def body(x: Any, of: Any) -> Any:
            for w in of:
                x = jnp.tanh(x @ w)
            return x, None

        return jax.lax.scan(body, x, weights)[0]

    stacks = [shape(4, WIDTH, 2 * WIDTH), shape(4, 2 * WIDTH, WIDTH), shape(4, WIDTH, WIDTH)]
    found = model(layers, X, stacks)
    hidden: dict[tuple[int, ...], float] = {}
    for transfer in found.flow.transfers:
        size = found.graph.tensors[transfer.tensor].aval.shape
        hidden[size] = max(hidden.get(size, 0.0), found.savings.overlap_flops.get(transfer.id, 0.0))
    one = 2.0 * ROWS * WIDTH**2
    assert [hidden[stack.shape[1:]] for stack in stacks] == [0.0, 2 * one, 2 * one]


def test_matmuls_that_are_reached_on_two_paths_count_once_and_those_behind_them_do_not() -> None:
    def fn(scale: Any, x: Any, u: Any, v: Any) -> Any:
        h = scale + jnp.tanh(jnp.tanh(x @ u) @ v)
        return (h @ u) @ v, (h + jnp.tanh(h)) @ v

    found = model(fn, shape(WIDTH), X, W, W)
    graph = found.graph
    (row,) = (op.results[0] for op in graph.ops if op.kind == "broadcast_in_dim")
    (read,) = (t.id for t in found.flow.transfers if t.tensor == row)
    assert found.savings.overlap_flops[read] == 2 * 2.0 * ROWS * WIDTH**2


def test_outside_of_loops_weights_are_fetched_beside_the_matmuls_before() -> None:
    def layers(x: Any, weights: Any) -> Any:
        for w in weights:
            x = jnp.tanh(x @ w)
        return x

    found = model(layers, X, [shape(WIDTH, WIDTH), shape(WIDTH, WIDTH), shape(WIDTH, 2 * WIDTH)])
    hidden = {t.tensor: found.savings.overlap_flops.get(t.id, 0.0) for t in found.flow.transfers}
    one = 2.0 * ROWS * WIDTH**2
    assert [hidden[tensor] for tensor in found.graph.inputs[1:]] == [0.0, one, 2 * one]


def test_a_gather_that_a_pass_reads_as_well_is_not_hidden() -> None:
    """As an optimizer's, which scales the update of a weight by the weight itself; one for the matmul alone is."""

    def step(x: Any, u: Any, v: Any) -> Any:
        return jnp.tanh(x @ u) @ v, jnp.sum(jnp.square(v))

    found = model(step, X, W, W)
    gathers = [t.id for t in found.flow.transfers if t.tensor == found.graph.inputs[2]]
    hidden = [found.savings.overlap_flops.get(gather, 0.0) for gather in gathers]
    assert sorted(hidden) == [0.0, 0.0, 2.0 * ROWS * WIDTH**2]


@pytest.mark.parametrize(("chip", "hidden"), [("h100", True), ("v5e", False)])
def test_only_on_gpus_an_update_reads_a_weight_as_it_is_stored(chip: str, hidden: bool) -> None:
    """There the gather for the matmul is hidden, though the update reads the weight as well."""

    def step(weights: Any, x: Any) -> Any:
        def loss(weights: Any) -> Any:
            return jnp.sum(jnp.tanh(jnp.tanh(x @ weights[0]) @ weights[1]))

        return jax.tree.map(lambda w, g: w - g, weights, jax.grad(loss)(weights))

    graph = build_graph(trace(step, ((W, W), X), donate_argnums=0))
    found = model_of(graph, pinned_outputs=frozenset(), kept=frozenset(), compiler=compiler_of(CHIPS[chip]))
    fetched = {node for _, node in found.flow.fetched}
    (gather,) = (t.id for t in found.flow.transfers if t.tensor == graph.inputs[1] and t.target in fetched)
    assert (gather in found.savings.overlap_flops) is hidden


@pytest.mark.parametrize("topology", ["v5e:2x2", "v5p:2x2x1"])
def test_gathers_of_weights_are_hidden(topology: str) -> None:
    """Rows and weights both split: every trip gathers its weights, the second beside a matmul that takes longer."""
    args = (X, (shape(4, WIDTH, WIDTH),) * 2)
    plan = planner.plan(
        in_pairs,
        args,
        topology=topology,
        mesh={"x": 4},
        pins={"x": P("x"), "weights": P(None, "x")},
        options=NEVER,
    )
    (second,) = {gather.tensor for gather in plan.predicted.collectives if gather.count == 4}
    chips = parse_topology(topology)
    links = chips.links((4,)) or ()
    shown = 0.0
    for gather in plan.predicted.collectives:
        assert gather.kind == "all-gather"
        latency_s, seconds_per_byte = Roofline(topology=chips).collective_affine(gather.kind, links)
        hidden = HIDDEN if gather.tensor == second else 0.0
        shown += (1 - hidden) * gather.count * (latency_s + gather.bytes * seconds_per_byte)
    assert plan.predicted.communication_seconds == pytest.approx(shown, rel=1e-6)
    total = math.fsum(a.get("seconds", 0.0) for *_, a in (*plan.graph.nodes(data=True), *plan.graph.edges(data=True)))
    assert total == pytest.approx(plan.predicted.seconds, rel=1e-6)


def test_gathers_that_are_compiled_to_all_reduces_are_not_hidden() -> None:
    """Over all of 64 devices on a torus of three dims."""
    pins = {"x": P("x"), "weights": P(None, "x")}
    args = (shape(64 * ROWS, WIDTH), shape(4, WIDTH, WIDTH))
    plan = planner.plan(scanned, args, topology="v5p:4x4x4", mesh={"x": 64}, pins=pins, options=NEVER)
    (summed,) = plan.predicted.collectives
    assert (summed.kind, summed.emitted) == ("all-reduce", "all-gather")
    assert (plan.predicted.hidden_seconds > 0) == uses_sparse_cores("v5p")
    total = math.fsum(a.get("seconds", 0.0) for *_, a in (*plan.graph.nodes(data=True), *plan.graph.edges(data=True)))
    assert total == pytest.approx(plan.predicted.seconds, rel=1e-6)
    assert plan.certificate.value == pytest.approx(total, rel=1e-3)


@pytest.mark.parametrize("topology", ["v5p:2x2x1", "v6e:2x2"])
def test_sums_in_loops_are_hidden_where_sparse_cores_do_them(topology: str) -> None:
    """The gradient of each layer's weights is summed beside the matmul of that trip which carries the gradient on."""

    def backward(g: Any, saved: Any, weights: Any) -> Any:
        def body(g: Any, layer: Any) -> Any:
            h, w = layer
            of_weights = h.T @ g
            return g @ w.T, of_weights

        return jax.lax.scan(body, g, (saved, weights))[1]

    args = (X, shape(4, ROWS, WIDTH), shape(4, WIDTH, WIDTH))
    pins = {"g": P("x"), "saved": P(None, "x"), "weights": P(), "out": P()}
    plan = planner.plan(backward, args, topology=topology, mesh={"x": 4}, pins=pins, options=NEVER)
    assert plan.predicted.communication_seconds > 0
    assert (plan.predicted.hidden_seconds > 0) == uses_sparse_cores(topology.split(":")[0])


def two_products(a: Any, b: Any, u: Any, v: Any) -> Any:
    return jnp.tanh(a @ u + b @ v)


@pytest.mark.skipif(bool(unavailable_reason("tpu")), reason=unavailable_reason("tpu") or "libtpu is there")
def test_libtpu_sums_once() -> None:
    specs = {"a": P(None, "x"), "b": P(None, "x"), "u": P("x"), "v": P("x"), "out": P("x")}
    a, u = shape(ROWS, 16 * WIDTH), shape(16 * WIDTH, WIDTH)
    plan = planner.plan(two_products, (a, a, u, u), topology="v5e:2x2", mesh={"x": 4}, pins=specs, options=NEVER)
    found = plan.verify().collectives
    assert found.predicted_bytes == pytest.approx(found.compiled_bytes, rel=0.05)
    assert found.compiled_bytes == pytest.approx(2.0 * ROWS * WIDTH, rel=0.05)


@pytest.mark.skipif(bool(unavailable_reason("tpu")), reason=unavailable_reason("tpu") or "libtpu is there")
def test_libtpu_sums_a_term_alone_where_the_other_is_whole() -> None:
    """One product is split along what it contracts and summed onto its rows, the other is split along its rows."""
    specs = {"a": P(None, "x"), "b": P("x"), "u": P("x"), "v": P(), "out": P("x")}
    a, u = shape(ROWS, 16 * WIDTH), shape(16 * WIDTH, WIDTH)
    b, v = shape(ROWS, WIDTH), shape(WIDTH, WIDTH)
    plan = planner.plan(two_products, (a, b, u, v), topology="v5e:2x2", mesh={"x": 4}, pins=specs, options=NEVER)
    (collective,) = plan.predicted.collectives
    assert (collective.kind, collective.count) == ("reduce-scatter", 1)
    found = plan.verify().collectives
    assert found.predicted_bytes == pytest.approx(found.compiled_bytes, rel=0.05)
