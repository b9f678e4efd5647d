"""What is laid where a sum is scattered: at once or whole first, and what the TPU's compiler makes of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import planner
from planner.program.slots import result_slot
from planner.testing import assert_same_as_single_device
from planner.verify.aot import aot_compile, unavailable_reason

needs_libtpu = pytest.mark.skipif(
    bool(unavailable_reason("tpu")), reason=unavailable_reason("tpu") or "libtpu is there"
)

WHOLE = P()
OPERANDS = (P("x", None, "y"), P("x", "y"))
"""Of `combine`: groups over x, what is summed over y."""
SCATTERED: Mapping[str, P] = {
    "onto the batch": P(("x", "y")),
    "onto rows": P("x", "y"),
    "onto columns": P("x", None, "y"),
}


def combine(a: Any, b: Any) -> Any:
    return jnp.einsum("gsk,gkm->gsm", a, b)


def combine_plan(name: str, topology: str, **given: Any) -> planner.Plan:
    """The plan of `combine` on x=2,y=2 whose sum is scattered so."""
    args = (jax.ShapeDtypeStruct((8, 512, 8192), jnp.bfloat16), jax.ShapeDtypeStruct((8, 8192, 1024), jnp.bfloat16))
    pins = {"a": OPERANDS[0], "b": OPERANDS[1], "out": SCATTERED[name]}
    return planner.plan(combine, args, topology=topology, mesh={"x": 2, "y": 2}, pins=pins, **given)


@pytest.mark.parametrize("name", SCATTERED)
def test_on_tpus_only_a_sum_scattered_onto_a_batch_is_laid_whole_first(name: str) -> None:
    plan = combine_plan(name, "v5e:2x2", options=planner.Options(check="never"))
    assert [(c.kind, c.axes) for c in plan.predicted.collectives] == [("reduce-scatter", ("y",))]
    chain = next(specs for slot, specs in plan.decision.constraints.items() if slot[0] == "result")
    assert chain == ((P("x"), SCATTERED[name]) if name == "onto the batch" else (SCATTERED[name],))


@needs_libtpu
@pytest.mark.parametrize("name", SCATTERED)
def test_the_tpu_compiler_scatters_what_was_promised(name: str) -> None:
    found = combine_plan(name, "v5e:2x2", options=planner.Options(check="never")).verify().collectives
    assert found.ok, found
    assert not found.differs, found
    by_kind = found.by_kind or {}
    assert by_kind["reduce-scatter", ("y",)][1] == pytest.approx(by_kind["reduce-scatter", ("y",)][0], rel=0.1)
    assert not any(kind == "all-gather" for kind, _ in by_kind), found


def in_a_loop(a: Any, b: Any) -> Any:
    def step(carry: Any, x: Any) -> tuple[Any, None]:
        return jnp.tanh(combine(x, b)), None

    return jax.lax.scan(jax.checkpoint(step), jnp.zeros((8, 4, 16)), a)[0]


def test_numbers_and_gradients_are_right_in_loops_and_under_vmap() -> None:
    a = jax.random.normal(jax.random.key(0), (3, 8, 4, 96))
    b = jax.random.normal(jax.random.key(1), (8, 96, 16))
    pins = {"a": P(None, "x", None, "y"), "b": OPERANDS[1], "out": SCATTERED["onto the batch"]}
    plan = assert_same_as_single_device(in_a_loop, (a, b), mesh={"x": 2, "y": 2}, pins=pins)

    def loss(function: Any, b: Any) -> Any:
        return jnp.sum(jnp.sin(function(a, b)))

    wanted = jax.grad(lambda b: loss(in_a_loop, b))(b)
    np.testing.assert_allclose(jax.jit(jax.grad(lambda b: loss(plan, b)))(b), wanted, rtol=1e-4, atol=1e-5)
    several = jnp.stack([b, 2 * b])
    np.testing.assert_allclose(
        jax.jit(jax.vmap(lambda b: plan(a, b)))(several),
        jax.vmap(lambda b: in_a_loop(a, b))(several),
        rtol=1e-4,
        atol=1e-5,
    )


def update(w: Any, a: Any, b: Any) -> Any:
    """A weight that two matmuls read in another form than its update does."""
    return w - 0.1 * jnp.tanh(w), a @ w, b @ w.T


def test_what_is_read_as_it_is_stored_is_not_sliced_from_what_was_gathered() -> None:
    """XLA's GPU compiler makes an all-gather and such a slice a permute that sends nothing: zeros instead of weights."""
    args = tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((2048, 4096), (2048, 2048), (2048, 4096)))
    stored = P(("x", "z"), "y")
    pins = {"w": stored, "a": P("y", ("x", "z")), "b": P(("x", "z")), "out/1": P("y")}
    mesh = {"x": 2, "y": 2, "z": 2}
    options = planner.Options(check="never")
    plan = planner.plan(update, args, topology="h100:8", mesh=mesh, pins=pins, donate_argnums=0, options=options)
    chains = [specs for slot, specs in plan.decision.constraints.items() if slot[0] == "operand"]
    assert any(len(specs) > 1 for specs in chains)
    assert [specs for specs in chains if specs[-1] == stored] == 3 * [(stored,)]


def _momentum(params: Any, moments: Any, x: Any) -> Any:
    """A step of two layers whose gradients are added to moments, and these to the weights."""

    def loss(params: Any) -> Any:
        return jnp.sum((jnp.tanh(x @ params["up"]) @ params["down"]) ** 2)

    moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, jax.grad(loss)(params))
    return jax.tree.map(lambda p, m: p - 1e-3 * m, params, moments), moments


def _data_parallel(*, weights: P = WHOLE, hidden: int = 4096) -> tuple[planner.Plan, tuple[Any, ...]]:
    """The plan of a step on four chips whose batch is split, and its arguments."""
    shapes = {"up": (1024, hidden), "down": (hidden, 1024)}
    params = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    args = params, params, jax.ShapeDtypeStruct((64, 512, 1024), jnp.float32)
    plan = planner.plan(
        _momentum,
        args,
        topology="v5e:2x2",
        mesh={"data": 4},
        pins={"params/*": weights, "moments/*": weights, "x": P("data")},
        donate_argnums=(0, 1),
        options=planner.Options(check="never"),
    )
    return plan, args


def test_what_holds_for_the_gradient_of_a_weight_is_laid_behind_its_transpose() -> None:
    plan, _ = _data_parallel()
    graph = plan.alternatives.instance.model.graph
    turned = [op for op in graph.ops if op.kind == "transpose"]
    made = [graph.ops[graph.tensors[op.operands[0]].producer or 0] for op in turned]
    assert [op.kind for op in made] == ["dot_general"] * 2
    assert all(result_slot(op, 0) not in plan.decision.constraints for op in made)
    assert [plan.decision.constraints[result_slot(op, 0)][-1] for op in turned] == [P()] * 2


@needs_libtpu
def test_no_weight_is_copied_into_the_order_of_its_gradient() -> None:
    plan, args = _data_parallel()
    report = aot_compile(plan.jit, args, mesh_shape={"data": 4}, topology="v5e:2x2")
    assert not re.search(r"= f32\[(1024,4096|4096,1024)\]\S* copy\(", report.hlo)


@needs_libtpu
@pytest.mark.parametrize(("weights", "behind"), [(P("data"), {"up", "down"}), (P(None, "data"), {"down"})])
def test_gradients_are_scattered_after_their_transpose_in_whole_tiles(weights: P, behind: set[str]) -> None:
    """Behind it XLA's TPU compiler sums the others whole: parts of 64 columns, half a tile."""
    plan, args = _data_parallel(weights=weights, hidden=256)
    scattered = [c for c in plan.predicted.collectives if c.kind == "reduce-scatter"]
    assert len(scattered) == 2
    graph, laid = plan.alternatives.instance.model.graph, plan.decision.constraints
    turned = {
        "up" if graph.tensors[op.results[0]].aval.shape[0] == 1024 else "down": op
        for op in graph.of_kinds(("transpose",))
    }
    made = {name: graph.ops[graph.tensors[op.operands[0]].producer or 0] for name, op in turned.items()}
    assert {name for name, op in made.items() if result_slot(op, 0) not in laid} == behind
    assert all(laid[result_slot(turned[name], 0)][0] == weights for name in behind)
    report = aot_compile(plan.jit, args, mesh_shape={"data": 4}, topology="v5e:2x2")
    found = sum(c.bytes for c in report.collectives if c.kind == "reduce-scatter")
    assert found == pytest.approx(sum(c.bytes for c in scattered), rel=0.01)


def centred(x: Any, w: Any) -> Any:
    """Groups of 8 channels of what a matmul makes, each without its mean, into a second matmul."""
    made = x @ w
    groups = made.reshape(*made.shape[:-1], -1, 8).astype(jnp.float32)
    rest = groups - groups.mean((1, 3), keepdims=True)
    return rest.astype(x.dtype).reshape(made.shape) @ w


@pytest.mark.parametrize(("topology", "left"), [("v5e:2x4", True), ("h100:8", False)])
def test_only_tpu_plans_lay_nothing_on_what_passes_make_of_operands_that_are_split_alike(
    topology: str, left: bool
) -> None:
    args = jax.ShapeDtypeStruct((64, 256, 256), jnp.bfloat16), jax.ShapeDtypeStruct((256, 256), jnp.bfloat16)
    options = planner.Options(check="never")
    plan = planner.plan(centred, args, topology=topology, mesh={"x": 8}, pins={"x": P("x")}, options=options)
    graph, laid = plan.alternatives.instance.model.graph, plan.decision.constraints
    (subtracted,) = graph.of_kinds(("sub",))
    assert (result_slot(subtracted, 0) not in laid) == left
    assert all(result_slot(op, 0) in laid for op in graph.of_kinds(("dot_general",)))


def normed(weights: Any, x: Any) -> Any:
    """Two convolutions and the norm over groups of 8 channels between them."""
    first, second = weights
    made = jax.lax.conv_general_dilated(x, first, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    groups = made.reshape(*made.shape[:-1], -1, 8).astype(jnp.float32)
    means = jnp.repeat(groups.mean((1, 2, 4)), 8, 1)[:, None, None]
    squares = jnp.repeat(jnp.square(groups).mean((1, 2, 4)), 8, 1)[:, None, None]
    rest = (made.astype(jnp.float32) - means) * jax.lax.rsqrt(squares - jnp.square(means) + 1e-6)
    rest = jax.nn.swish(rest.astype(x.dtype))
    out = jax.lax.conv_general_dilated(rest, second, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jnp.square(out.astype(jnp.float32)).mean()


@needs_libtpu
def test_norms_over_groups_are_not_copied_on_tpus() -> None:
    shapes = (3, 3, 256, 256), (64, 64, 64, 256)
    weights, x = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes)
    args, step = ((weights, weights), x), jax.value_and_grad(normed)
    options = planner.Options(check="never")
    plan = planner.plan(step, args, topology="v5e:2x4", mesh={"x": 8}, pins={"x": P("x")}, options=options)
    report = aot_compile(plan.jit, args, mesh_shape={"x": 8}, topology="v5e:2x4")
    assert not re.search(r"f32\[8,64,64,256\]\S* copy\(", report.hlo)


def grouped_attention(q: Any, k: Any, v: Any, *, joined: bool) -> Any:
    """Causal attention whose heads share keys and values in groups; scores in one dim of heads if joined, else in two."""
    batch, length, groups, width = k.shape
    scores = jnp.einsum("btghd,bsgd->bghts", q.reshape(batch, length, groups, -1, width), k)
    shape = scores.shape
    scores = scores.reshape(batch, -1, length, length) if joined else scores / np.sqrt(width)
    causal = jnp.tril(jnp.ones((length, length), bool))
    fill = jnp.where(causal, 0, -1e9).astype(scores.dtype)
    scores = jnp.where(causal, scores, -1e9) if joined else scores + fill
    shares = jax.nn.softmax(scores.astype(jnp.float32)).astype(q.dtype).reshape(shape)
    return jnp.square(jnp.einsum("bghts,bsgd->btghd", shares, v).astype(jnp.float32)).mean()


def grouped_attention_plan(*, joined: bool) -> tuple[planner.Plan, tuple[Any, ...]]:
    """The gradients of `grouped_attention` over a batch that is split, on v5e."""
    q, k = (jax.ShapeDtypeStruct((16, 1024, heads, 64), jnp.bfloat16) for heads in (32, 8))
    step = jax.grad(partial(grouped_attention, joined=joined), argnums=(0, 1, 2))
    options = planner.Options(check="never", microbatches=1)
    plan = planner.plan(step, (q, k, k), topology="v5e:2x4", mesh={"x": 8}, pins={"q": P("x")}, options=options)
    return plan, (q, k, k)


@pytest.mark.parametrize("joined", [True, False])
def test_softmaxes_of_heads_in_groups_are_left_to_the_partitioner(joined: bool) -> None:
    plan, _ = grouped_attention_plan(joined=joined)
    graph, laid = plan.alternatives.instance.model.graph, plan.decision.constraints
    scores = [op for op in graph.ops if graph.tensors[op.results[0]].aval.shape[-2:] == (1024, 1024) and op.operands]
    split = [op for op in scores if plan.alternatives.chosen.made(op, 0) and op.kind != "reshape"]
    assert {"dot_general", "broadcast_in_dim", "exp"} <= {op.kind for op in split}
    assert not {op.kind for op in split if result_slot(op, 0) in laid}


@needs_libtpu
@pytest.mark.parametrize("joined", [True, False])
def test_matmuls_compute_softmaxes_of_heads_in_groups_on_tpus(joined: bool) -> None:
    plan, args = grouped_attention_plan(joined=joined)
    report = aot_compile(plan.jit, args, mesh_shape={"x": 8}, topology="v5e:2x4")
    assert report.memory is not None
    scores = 2 * 32 * 1024 * 1024 * 2
    assert report.memory.temp_bytes < 3.5 * scores, "the shares are stored beside the scores"
