"""What a `shard_map` computes is counted: its work is that of the plain function, split the same way."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

import planner
from benchmarks.problems import least_time
from planner.compiler.schedule.live_ranges import Inside, freed_inside
from planner.explain.repeated_products import products_by_source
from planner.machine.target import resolve
from planner.pricing.assignment import Chosen
from planner.pricing.bodies.body_memory import BodyMemory
from planner.program.graph import Body
from planner.program.tracing.trace import trace
from planner.search.problem import PlanningProblem, planning_problem

NEVER = planner.Options(check="never")


def mesh_of(**axes: int) -> AbstractMesh:
    return AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def problem_of(fn: Any) -> PlanningProblem:
    """The planning problem of a program of `X` and `W`."""
    target = resolve(None, "v5e:4x4")
    return planning_problem(program=trace(fn, (X, W)), target=target, request=least_time(target.topology, 16e9))


def of(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def planned(fn: Any, args: Any, topology: str = "v5e:4x4", **more: Any) -> planner.Plan:
    return planner.plan(fn, args, topology=topology, options=more.pop("options", NEVER), **more)


X, W = of(65536, 4096), of(4096, 4096)
PINS = {"x": P("i"), "w": P(), "out": P("i")}


def layers(x: Any, w: Any) -> Any:
    """Eight layers, as a loop."""
    return jax.lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length=8)[0]


def by_hand(fn: Any, mesh: AbstractMesh | None = None, **more: Any) -> Any:
    specs = {"in_specs": (P("i"), P()), "out_specs": P("i"), "check_vma": False} | more
    return jax.shard_map(fn, mesh=mesh or mesh_of(i=16), **specs)


@pytest.mark.parametrize("topology", ["v5e:4x4", "h100:2x8"])
def test_a_shard_map_costs_what_the_plain_function_costs_split_the_same_way(topology: str) -> None:
    args = of(131072, 8192), of(8192, 8192)
    plain = planned(layers, args, topology, mesh={"i": 16}, pins=PINS).predicted
    mine = planned(by_hand(layers), args, topology).predicted
    assert mine.flops == pytest.approx(plain.flops)
    assert mine.flops >= 8 * 2 * 131072 * 8192 * 8192 / 16
    assert mine.traffic_bytes == pytest.approx(plain.traffic_bytes, rel=0.02)
    assert mine.compute_seconds == pytest.approx(plain.compute_seconds, rel=0.02)
    assert mine.energy_joules == pytest.approx(plain.energy_joules, rel=0.02)
    assert mine.peak_bytes == pytest.approx(plain.peak_bytes, rel=0.1)


def test_a_gradient_summed_by_hand_costs_what_the_planners_costs() -> None:
    gradient = jax.grad(lambda w, x: jnp.mean((x @ w) ** 2))
    mine = jax.shard_map(
        lambda w, x: jax.lax.psum(gradient(w, x), "i"),
        mesh=mesh_of(i=16),
        in_specs=(P(), P("i")),
        out_specs=P(),
        check_vma=False,
    )
    pins = {"x": P("i"), "w": P(), "out": P()}
    wide = of(8192, 8192), of(262144, 8192)  # more than what stays on a chip
    plain, own = planned(gradient, wide, mesh={"i": 16}, pins=pins), planned(mine, wide)
    assert own.predicted.flops == pytest.approx(plain.predicted.flops)
    assert own.predicted.seconds == pytest.approx(plain.predicted.seconds, rel=0.01)
    assert own.predicted.peak_bytes == pytest.approx(plain.predicted.peak_bytes, rel=0.01)
    # What is promised to be optimal is what is predicted, collectives of the program's own included.
    assert own.certificate.value == pytest.approx(own.predicted.seconds, rel=1e-3)
    (total,) = own.predicted.collectives
    assert (total.kind, total.bytes, total.axes) == ("all-reduce", 8192 * 8192 * 4, ("i",))


def test_what_is_held_inside_a_shard_map_counts_in_the_peak_and_against_the_limit() -> None:
    wide = lambda x, w: jnp.tanh(x @ w) @ w.T  # noqa: E731
    shapes = (of(4096 * 16, 512), of(512, 65536))
    mine = planned(by_hand(wide), shapes)
    hidden = 4096 * 65536 * 4
    assert mine.predicted.peak_bytes > hidden
    with pytest.raises(planner.errors.InfeasibleError, match="computed inside"):
        planned(by_hand(wide), shapes, memory_limit=hidden / 2)


def deep(y: Any, w: Any) -> Any:
    """Products one after the other, the first of which is the last to read `y`."""
    for _ in range(3):
        y = jnp.tanh(y @ w)
    return y @ w[:, :128]


def first(x: Any, w: Any) -> Any:
    return jnp.sin(x @ w)


def test_an_operand_that_nothing_reads_behind_the_op_is_free_once_its_body_has_read_it() -> None:
    args = of(16 * 65536, 4096), W
    plain = planned(lambda x, w: deep(first(x, w), w), args, mesh={"i": 16}, pins=PINS).predicted
    mine = planned(lambda x, w: by_hand(deep)(by_hand(first)(x, w), w), args).predicted
    assert mine.peak_bytes == pytest.approx(plain.peak_bytes, rel=0.01)


def _again(x: Any, w: Any) -> Any:
    y = by_hand(first)(x, w)
    return by_hand(deep)(y, w) @ w[:128], y @ w


def _returned(x: Any, w: Any) -> Any:
    y = by_hand(first)(x, w)
    return by_hand(deep)(y, w), y


def _in_passing(x: Any, w: Any) -> Any:
    y = by_hand(first)(x, w)
    return by_hand(deep)(y, w), jnp.tanh(y)


def _at_two_positions(x: Any, w: Any) -> Any:
    y = by_hand(first)(x, w)
    both = by_hand(lambda a, b, w: deep(a, w) + deep(b, w), in_specs=(P("i"), P("i"), P()))
    return both(y, y, w)


def _in_a_loop(x: Any, w: Any) -> Any:
    before = by_hand(first)(x, w)
    added = by_hand(lambda y, v, w: jnp.tanh(y @ w) + v, in_specs=(P("i"), P("i"), P()))

    def body(c: Any, _: None) -> tuple[Any, None]:
        return added(by_hand(first)(c, w), before, w), None

    return jax.lax.scan(body, x, None, length=4)[0]


FREED = {
    "of the op alone": (lambda x, w: by_hand(deep)(by_hand(first)(x, w), w), [0]),
    "by another name": (lambda x, w: by_hand(deep)(checkpoint_name(by_hand(first)(x, w), "y"), w), [0]),
    "made in a trip, and made before the loop": (_in_a_loop, [0]),
    "an argument": (lambda x, w: by_hand(deep)(x, w), []),
    "read again": (_again, []),
    "returned": (_returned, []),
    "read in passing by the next op": (_in_passing, []),
    "at two positions": (_at_two_positions, []),
}


@pytest.mark.parametrize("name", FREED)
def test_operands_are_freed_inside_where_nothing_else_needs_their_memory(name: str) -> None:
    fn, positions = FREED[name]
    model = problem_of(fn).model
    *_, last = model.graph.of_kinds(("shard_map",))
    found = freed_inside(model.compiled)
    assert sorted(position for op, position in found if op == last.id) == positions
    (inside,) = [
        model.held.forms[form].inside
        for form, start in zip(model.held.form, model.held.starts, strict=True)
        if start == last.id and model.held.forms[form].inside is not None
    ]
    assert inside is not None
    assert [position for position, _ in inside.freed] == positions


def test_a_fetched_copy_of_such_an_operand_is_free_as_early() -> None:
    columns = by_hand(lambda y, w: y.T @ y[:, :1], in_specs=(P(None, "i"), P()))
    model = problem_of(lambda x, w: columns(by_hand(first)(x, w), w)).model
    *_, last = model.graph.of_kinds(("shard_map",))
    spans = {
        transfer.tensor: int(stop)
        for transfer, stop in zip(model.copied.transfers, model.copied.targets.stops, strict=True)
        if (last.id, 0) in transfer.reads or (last.id, 1) in transfer.reads
    }
    assert spans[last.operands[0]] == last.id


def test_a_body_holds_what_is_freed_until_it_has_read_it_unless_it_stays_on_the_chip() -> None:
    problem = problem_of(lambda x, w: x)
    mesh, body = problem.mesh({"i": 16}), Body(graph=problem.graph, axes={"i": 16})
    memory = BodyMemory(beside=np.asarray([0.0, 5.0, 8.0, 6.0, 0.0]), returned=2.0, operands={0: (4.0, 2), 1: (7.0, 3)})
    assert memory.bytes(Inside(body), mesh) == 6.0
    assert memory.bytes(Inside(body, ((0, math.inf),)), mesh) == 7.0
    assert memory.bytes(Inside(body, ((0, math.inf), (1, math.inf))), mesh) == 14.0
    assert memory.bytes(Inside(body, ((0, math.inf), (1, 1.0))), mesh) == 7.0


def test_a_program_that_is_a_shard_map_and_does_not_fit_is_told_so() -> None:
    with pytest.raises(planner.errors.InfeasibleError, match="shard_map"):
        planned(by_hand(lambda x, w: jnp.tanh(x @ w)), (X, W), memory_limit=1e6)
    with pytest.raises(planner.errors.InfeasibleError):
        planned(by_hand(lambda x, w: x), (X, W), memory_limit=1e6)


def test_a_shard_map_in_a_loop_runs_as_often_as_the_loop() -> None:
    step = by_hand(lambda x, w: jnp.tanh(x @ w))
    once = planned(step, (X, W)).predicted
    often = planned(lambda x, w: jax.lax.scan(lambda c, _: (step(c, w), None), x, None, length=5)[0], (X, W)).predicted
    assert often.flops == pytest.approx(5 * once.flops)
    assert often.compute_seconds >= 5 * once.compute_seconds


def test_a_shard_map_within_a_shard_map_is_counted() -> None:
    inner = jax.shard_map(lambda x, w: jax.lax.psum(x @ w, "j"), in_specs=(P(None, "j"), P("j")), out_specs=P())
    outer = jax.shard_map(inner, mesh=mesh_of(i=4, j=4), in_specs=(P("i"), P()), out_specs=P("i"), axis_names={"i"})
    plan = planned(outer, (X, W))
    assert plan.predicted.flops == pytest.approx(2 * 65536 * 4096 * 4096 / 16, rel=0.01)
    assert [(c.kind, c.axes, c.bytes) for c in plan.predicted.collectives] == [
        ("all-reduce", ("j",), 65536 * 4096 * 4 / 4)
    ]


def test_axes_that_a_shard_map_leaves_to_the_compiler_are_told() -> None:
    fn = jax.shard_map(
        lambda x, w: x @ w, mesh=mesh_of(i=4, j=4), in_specs=(P("i"), P()), out_specs=P("i"), axis_names={"i"}
    )
    plan = planned(fn, (X, W))
    assert plan.predicted.flops == pytest.approx(2 * 65536 * 4096 * 4096 / 4)
    assert any("leaves the axes ('j',) to the compiler" in note for note in plan.notes)


def test_no_other_shard_maps_work_is_taken_for_that_of_one_of_the_same_types() -> None:
    light, heavy = by_hand(lambda x, w: jnp.tanh(x) + w[0]), by_hand(lambda x, w: jnp.tanh(x @ w))
    one, other = (planned(fn, (X, W)).predicted.flops for fn in (light, heavy))
    both = planned(lambda x, w: heavy(light(x, w), w), (X, W)).predicted.flops
    assert both == pytest.approx(one + other)


def test_ops_of_unknown_work_in_a_shard_map_are_named() -> None:
    shape = jax.ShapeDtypeStruct((4096, 4096), jnp.float32)
    call = jax.ffi.ffi_call("somebodys_kernel", shape)
    twice = lambda x, w: jax.lax.scan(lambda c, _: (call(c), None), x, None, length=2)[0]  # noqa: E731
    plan = planned(by_hand(twice), (X, W))
    assert [(guess.op, guess.trips) for guess in plan.guessed] == [("ffi_call", 2.0)]


COLLECTIVES = {
    "all-gather": lambda x: jax.lax.all_gather(x, "i", tiled=True)[: x.shape[0]],
    "all-to-all": lambda x: jax.lax.all_to_all(x, "i", 1, 0, tiled=True).reshape(x.shape),
    "all-reduce": lambda x: jax.lax.pmax(x, "i"),
    "collective-permute": lambda x: jax.lax.ppermute(x, "i", [(n, (n + 1) % 16) for n in range(16)]),
    "reduce-scatter": lambda x: jnp.tile(jax.lax.psum_scatter(x, "i", tiled=True), (16, 1)),
}


@pytest.mark.parametrize("kind", COLLECTIVES)
def test_a_collective_inside_is_priced_once_and_is_no_guess(kind: str) -> None:
    plan = planned(by_hand(lambda x, w: COLLECTIVES[kind](x)), (of(65536, 256), W))
    # A TPU's compiler makes an all-reduce of a reduce-scatter over all devices.
    assert [(c.emitted, c.axes) for c in plan.predicted.collectives] == [(kind, ("i",))]
    assert plan.predicted.communication_seconds > 0
    assert not plan.guessed


def test_a_ragged_all_to_all_is_one() -> None:
    def moved(x: Any, w: Any) -> Any:
        ones = jnp.ones(16, jnp.int32)
        places = jnp.arange(16, dtype=jnp.int32)
        return jax.lax.ragged_all_to_all(x, jnp.zeros_like(x), places, ones, places, ones, axis_name="i")

    (found,) = planned(by_hand(moved), (of(65536, 256), W)).predicted.collectives
    assert (found.kind, found.bytes) == ("all-to-all", 4096 * 256 * 4)


def test_a_custom_partitioning_works_what_its_body_does() -> None:
    @custom_partitioning
    def product(x: Any, w: Any) -> Any:
        return jnp.tanh(x @ w)

    product.def_partition(
        partition=lambda *args: None, infer_sharding_from_operands=None, sharding_rule="b i, i j -> b j"
    )
    plain = planned(lambda x, w: jnp.tanh(x @ w), (X, W), mesh={"i": 16}, pins=PINS).predicted
    plan = planned(lambda x, w: product(x, w), (X, W), mesh={"i": 16}, pins=PINS)
    assert plan.predicted.flops == pytest.approx(plain.flops)
    # Its parts are priced as shares of the whole, some arrays of which are too large to stay on a chip.
    assert plan.predicted.compute_seconds == pytest.approx(plain.compute_seconds, rel=0.2)
    assert not plan.guessed


def test_products_by_source_line_have_those_inside_a_shard_map() -> None:
    instance = problem_of(by_hand(lambda x, w: jnp.tanh(x @ w))).instance({"i": 16})
    chosen = Chosen(instance=instance, choice=(0,) * len(instance.strategies))
    assert sum(products_by_source(chosen).values()) == 2 * 65536 * 4096 * 4096 / 16


def test_a_kernel_like_a_function_with_a_body_has_its_work() -> None:
    like = custom_partitioning(lambda x: jnp.tanh(x @ x.T) @ x)
    like.def_partition(partition=lambda *args: None, infer_sharding_from_operands=None, sharding_rule="b i -> b i")
    kernel = planner.rule_for(lambda x: jax.ffi.ffi_call("somebodys_kernel", x)(x), like=lambda x: like(x))
    plan = planned(kernel, (of(4096, 4096),), mesh={"i": 1})
    assert plan.predicted.flops >= 2 * 2 * 4096**3
    assert not plan.guessed


RING = [(n, (n + 1) % 16) for n in range(16)]
BACK = [(target, source) for source, target in RING]


def test_permutes_either_way_take_the_time_of_one() -> None:
    def either(x: Any, w: Any) -> Any:
        return jax.lax.ppermute(x, "i", RING) + jax.lax.ppermute(x, "i", BACK)

    def one_way(x: Any, w: Any) -> Any:
        return jax.lax.ppermute(x, "i", RING)

    args = of(65536, 1024), W
    both, one = (planned(by_hand(fn), args).predicted for fn in (either, one_way))
    assert both.communication_seconds == pytest.approx(one.communication_seconds)
    assert len(both.collectives) == 2 * len(one.collectives)
    # The same plan for less energy: what is sent both ways takes twice that of one.
    joules = [planned(by_hand(fn), args, objective="energy").certificate.value for fn in (either, one_way)]
    assert joules[0] > 1.5 * joules[1]


def test_a_product_runs_while_what_it_does_not_need_is_sent() -> None:
    def beside(x: Any, w: Any) -> Any:
        return jax.lax.ppermute(x, "i", RING) + x @ w

    def behind(x: Any, w: Any) -> Any:
        return jax.lax.ppermute(x, "i", RING) @ w + x

    args = of(65536, 4096), W
    apart, together = (planned(by_hand(fn), args).predicted for fn in (behind, beside))
    assert together.communication_seconds < 0.7 * apart.communication_seconds


def test_small_arrays_between_shard_maps_stay_on_the_chip() -> None:
    """In a loop, as what the bodies compute would if it were written without them."""
    mesh, small = mesh_of(i=16), of(16 * 256, 1024)
    step = by_hand(lambda x, w: jnp.tanh(x) * 2, mesh)

    def steps(x: Any, w: Any) -> Any:
        for _ in range(4):
            x = step(x, w)
        return x

    one = planned(step, (small, W)).predicted.traffic_bytes
    assert planned(steps, (small, W)).predicted.traffic_bytes == pytest.approx(one, rel=0.1)
    assert one == pytest.approx(2 * 256 * 1024 * 4, rel=0.1)
