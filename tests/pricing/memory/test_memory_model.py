"""Memory by form is memory item by item; what is said of a program holds for all of its meshes."""

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from benchmarks.problems import least_time
from pbqp.deadline import Deadline
from pbqp.options import SolveOptions
from pbqp.problem import Problem
from pbqp.vectors import Floats
from planner.machine.target import resolve
from planner.pricing.memory.memory_model import LEFT_OUT, MemoryModel, whole_bytes
from planner.program.tracing.gc_pause import paused
from planner.program.tracing.trace import trace
from planner.search.least_memory import Aim, least_memory
from planner.search.problem import planning_problem
from tests.problems import small_problem


def _choices(memory: MemoryModel, count: int) -> list[list[int]]:
    rng = np.random.default_rng(0)
    sizes = [len(strategies) for strategies in memory.instance.strategies]
    return [[int(rng.integers(size)) for size in sizes] for _ in range(count)]


def _each_by_itself(memory: MemoryModel, choice: list[int]) -> Floats:
    """The bytes that rows and prices know of: those of every copy, whether others are equal to it or not."""
    found = np.zeros(memory.steps)
    for charge in memory.charges:
        found[charge.start : charge.stop] += charge.bytes[choice[charge.node]]
    for copy in memory.copies:
        found[copy.start : copy.stop] += copy.bytes(choice)
    return found


@pytest.mark.parametrize("name", ["deep", "lstm", "moe"])
def test_the_profile_is_the_sum_of_what_is_alive_and_of_equal_copies_one(name: str) -> None:
    memory = MemoryModel(instance=small_problem(name).instance({"x": 4, "y": 2}))
    shared = 0
    for choice in _choices(memory, 5):
        expected = np.zeros(memory.steps)
        for charge in memory.charges:
            expected[charge.start : charge.stop] += charge.bytes[choice[charge.node]]
        standing: dict[object, list[tuple[int, int, float]]] = {}
        for copy in memory.copies:
            transfer = copy.transfer
            located = memory.instance.strategies[copy.target].locations(transfer.target_dims)[choice[copy.target]]
            # Of one form and as many bytes: what is narrowed first is another copy than what is not.
            one = transfer.tensor, transfer.source, transfer.region, tuple(located.tolist()), copy.bytes(choice)
            if copy.bytes(choice):
                standing.setdefault(one, []).append((copy.start, copy.stop, copy.bytes(choice)))
        for of in standing.values():
            starts, stops, sizes = zip(*of, strict=True)
            expected[min(starts) : max(stops)] += sizes[0]
            shared += len(of) > 1
        assert np.allclose(memory.profile(choice), expected)
        for time in (memory.steps // 3, memory.steps // 2):
            assert sum(size for _, size in memory.alive(time, choice)) == pytest.approx(expected[time])
    assert shared


@pytest.mark.parametrize("name", ["deep", "lstm"])
def test_charges_are_the_bytes_of_tensors_in_their_nodes_strategies(name: str) -> None:
    instance = small_problem(name).instance({"x": 4, "y": 2})
    homes, tensors = instance.model.flow.home, instance.model.graph.tensors
    for charge in MemoryModel(instance=instance).charges:
        home = homes[charge.tensor]
        if home is not None and home[0] == charge.node:
            lies = instance.model.compiled.row_major.get(charge.tensor)
            alone = instance.resident_bytes(tensors[charge.tensor].aval, *home, in_rows=lies)
            assert any(np.array_equal(charge.bytes, share * alone) for share in (0.0, 0.5, 1.0))


def _bare(memory: MemoryModel) -> Problem:
    """The decisions alone: nothing costs anything."""
    nodes = tuple(np.zeros(len(strategies)) for strategies in memory.instance.strategies)
    names = tuple(node.name for node in memory.instance.model.flow.nodes)
    return Problem(name="bare", node_costs=nodes, edges=(), node_names=names)


@pytest.mark.parametrize("name", ["deep", "lstm", "moe"])
def test_prices_charge_for_every_byte_of_every_copy(name: str) -> None:
    """Fetched copies, however small, are bytes too: thousands of them were some per cent of the memory."""
    memory = MemoryModel(instance=small_problem(name).instance({"x": 4, "y": 2}))
    points = [0, memory.steps // 3, memory.steps // 2, memory.steps - 1]
    prices = {point: 1.0 + at for at, point in enumerate(points)}
    priced = memory.priced(_bare(memory), prices)
    assert any(copy.start <= point < copy.stop for copy in memory.copies for point in points)
    for choice in _choices(memory, 5):
        known = _each_by_itself(memory, choice)
        expected = sum(price * float(known[point]) for point, price in prices.items())
        assert priced.evaluate(choice) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", ["deep", "moe"])
def test_rows_leave_out_no_more_than_a_small_part_of_the_limit(name: str) -> None:
    memory = MemoryModel(instance=small_problem(name).instance({"x": 4, "y": 2}))
    count = len(memory.instance.strategies)
    points = [memory.steps // 3, memory.steps // 2]
    for choice in _choices(memory, 3):
        limit = float(memory.profile(choice).max())
        limited = memory.limited(_bare(memory), points, limit)
        # The node of a copy takes the cheapest choice that its source and target leave it.
        left = [np.ones(costs.size, bool) for costs in limited.node_costs[count:]]
        for edge in limited.edges:
            node, beside = edge.nodes
            left[node - count] &= np.isfinite(edge.costs[:, choice[beside]])
        for row, point in zip(limited.rows, points, strict=True):
            used = 0.0
            for node, usage in zip(row.nodes, row.usages, strict=True):
                used += float(usage[choice[node]] if node < count else usage[left[node - count]].min())
            whole = float(_each_by_itself(memory, choice)[point])
            assert whole - LEFT_OUT * limit <= used * (1 + 1e-9)
            assert used <= whole * (1 + 1e-9)


def test_no_plan_on_n_devices_needs_less_than_an_nth_of_the_whole() -> None:
    memory = MemoryModel(instance=small_problem("deep").instance({"x": 4, "y": 2}))
    least = whole_bytes(memory.instance.model, 0.0) / 8
    assert all(memory.profile(choice).max() >= least * (1 - 1e-9) for choice in _choices(memory, 3))


def test_what_may_stay_on_the_chips_counts_for_no_device() -> None:
    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for up, down in zip(weights[::2], weights[1::2], strict=True):
            x = x + jnp.tanh(x @ up) @ down
        return jnp.mean(x**2)

    weights = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in [(256, 2048), (2048, 256)] * 4]
    target = resolve(None, "v5e:2x4")
    program = trace(jax.grad(loss), (weights, jax.ShapeDtypeStruct((512, 256), jnp.float32)))
    problem = planning_problem(program=program, target=target, request=least_time(target.topology, 16e9))
    memory = MemoryModel(instance=problem.instance({"x": 8}))
    solving = SolveOptions(deadline=Deadline.after(30.0))
    found = least_memory(memory, _choices(memory, 1)[0], Aim(good_bytes=np.inf), solving)
    on_chips = 8 * memory.instance.mesh.on_chip_bytes
    assert whole_bytes(problem.model, on_chips) / 8 <= found.peak_bytes < whole_bytes(problem.model, 0.0) / 8


def test_a_paused_collector_goes_on_as_it_was() -> None:
    assert gc.isenabled()
    with paused():
        assert not gc.isenabled()
        with paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ValueError, match="within"), paused():
        raise ValueError("within")
    assert gc.isenabled()


@pytest.mark.parametrize(("topology", "whole"), [("v5e:4x4", True), ("cpu:16", False)])
def test_a_sum_over_all_devices_that_the_compiler_does_not_scatter_stands_whole(topology: str, whole: bool) -> None:
    """Its parts are read from the sum: it stands beside them where they are split over all devices, and only there."""
    instance = small_problem("deep", topology).instance({"x": 16})
    kept: list[float] = []
    for copy in MemoryModel(instance=instance).copies:
        if not copy.transfer.reduced:
            continue
        stored = instance.stored_bytes(copy.transfer.tensor)
        assert stored is not None
        for source, size in enumerate(stored[1].tolist()):
            choice = [0] * len(instance.strategies)
            for target in range(len(copy.target_bytes)):
                choice[copy.source], choice[copy.target] = source, target
                if copy.bytes(choice):
                    kept.append(copy.bytes(choice))
                    assert copy.bytes(choice) > 15 * size
    assert bool(kept) is whole


def test_operands_with_halos_are_materialized_until_the_gradient_of_the_kernel() -> None:
    """Computed by the convolutions that read it where whole images lie on a device; else put together in memory."""

    nhwc = ("NHWC", "HWIO", "NHWC")

    def loss(kernels: list[jax.Array], images: jax.Array) -> jax.Array:
        for kernel in kernels:
            images = jax.nn.relu(lax.conv_general_dilated(images, kernel, (1, 1), "SAME", dimension_numbers=nhwc))
        return jnp.sum(images**2)

    kernels = [jax.ShapeDtypeStruct((3, 3, 64, 64), jnp.bfloat16)] * 2
    images = jax.ShapeDtypeStruct((32, 512, 512, 64), jnp.bfloat16)
    target = resolve(None, "v5e:2x2")
    request = least_time(target.topology, 16e9)
    problem = planning_problem(program=trace(jax.grad(loss), (kernels, images)), target=target, request=request)
    memory = MemoryModel(instance=problem.instance({"x": 4}))
    graph = memory.instance.model.graph
    between = next(
        op for op in graph.of_kinds(("max",)) if not memory.instance.model.compiled.materialized[op.results[0]]
    )
    convolved = graph.of_kinds(("conv_general_dilated",))
    reading = [op.id for op in convolved if between.results[0] in op.operands]
    (charge,) = [charge for charge in memory.charges if charge.tensor == between.results[0]]
    assert (charge.start, charge.stop) == (min(reading), max(reading) + 1)
    part = 32 * 512 * 512 * 128 * 2 / 4
    assert set(charge.bytes.tolist()) == {0.0, part * (1 + 2 / 128)}


def test_a_copy_lives_until_the_matmuls_have_read_what_a_fused_op_computes_of_it() -> None:
    """The outer product is computed where it is read, by both matmuls, from the copy of `x` that was fetched for it."""

    def both(x: jax.Array, s: jax.Array, up: jax.Array, hidden: jax.Array) -> tuple[jax.Array, jax.Array]:
        outer = jnp.einsum("nd,ne->end", x, s)
        return jnp.einsum("end,edf->enf", outer, up), jnp.einsum("enf,end->efd", hidden, outer)

    shapes = (4096, 1024), (4096, 8), (8, 1024, 2048), (8, 4096, 2048)
    arguments = tuple(jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes)
    target = resolve(None, "v5e:2x4")
    request = least_time(target.topology, 16e9)
    memory = MemoryModel(
        instance=planning_problem(program=trace(both, arguments), target=target, request=request).instance({"x": 8})
    )
    graph = memory.instance.model.graph
    product, *matmuls = graph.of_kinds(("dot_general",))
    read = {(product.id, position) for position in range(2)}
    copies = [copy for copy in memory.copies if read & set(copy.transfer.reads)]
    assert copies
    assert {copy.stop for copy in copies} == {max(op.id for op in matmuls) + 1}


@pytest.mark.parametrize("name", ["deep", "moe"])
def test_equal_copies_stand_apart_only_where_they_would_take_more(name: str) -> None:
    memory = MemoryModel(instance=small_problem(name).instance({"x": 4, "y": 2}))
    apart = 0
    for choice in _choices(memory, 10):
        most, least = memory.profile(choice), memory.profile(choice, apart_above=0.0)
        assert np.all(least <= most * (1 + 1e-9))
        for limit in (0.7 * most.max(), 0.9 * most.max(), most.max()):
            found = memory.profile(choice, apart_above=limit)
            assert np.all(found <= most * (1 + 1e-9))
            assert np.all(found >= least * (1 - 1e-9))
            # What is still above the limit could not be held for a shorter time.
            assert np.allclose(found[found > limit * (1 + 1e-9)], least[found > limit * (1 + 1e-9)])
        apart += bool(np.any(least < most * (1 - 1e-9)))
    assert apart
