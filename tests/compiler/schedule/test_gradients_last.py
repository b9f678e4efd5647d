"""Where SparseCores sum gradients of weights one by one these come last, and what they are made of stays in memory."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import planner
from cost_models import parse_topology
from planner.compiler.analysis import model_of
from planner.compiler.program import CompiledProgram, compiled
from planner.compiler.targets.table import compiler_of
from planner.decisions.groups import group_ops
from planner.pricing.memory.memory_model import MemoryModel, whole_bytes
from planner.program.graph import Graph
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.trace import trace
from planner.verify.aot import lower_request, run_request, unavailable_reason

LAYERS = 4
ROWS, WIDTH, WIDE = 8192, 1024, 4096
NEVER = planner.Options(check="never")


def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
    for up, down in zip(weights[::2], weights[1::2], strict=True):
        x = jnp.tanh(x @ up) @ down
    return jnp.mean(x.astype(jnp.float32) ** 2)


def step(weights: list[jax.Array], x: jax.Array) -> list[jax.Array]:
    return jax.tree.map(lambda w, g: w - g, weights, jax.grad(loss)(weights, x))


def args(rows: int, width: int = WIDTH) -> tuple[Any, ...]:
    shapes = [(width, WIDE), (WIDE, width)] * LAYERS
    return [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in shapes], jax.ShapeDtypeStruct((rows, width), jnp.bfloat16)


def analysed(chip: str, width: int = WIDTH) -> tuple[Graph, CompiledProgram]:
    graph = build_graph(trace(step, args(ROWS, width)), while_trips=1.0)
    return graph, compiled(graph, group_ops(graph), compiler_of(parse_topology(chip).chip))


def test_what_all_gradients_but_the_first_are_made_of_is_held_until_the_last_other_product() -> None:
    graph, program = analysed("v6e:2x4")
    products = graph.of_kinds(("dot_general",))
    last = max(op.id for op in products if graph.tensors[op.results[0]].aval.shape[0] == ROWS)
    assert set(program.awaiting.values()) == {(last + 2, (0,))}
    held = {graph.tensors[tensor].name.split("#")[0].rpartition(" ")[2] for tensor in program.awaiting}
    assert held == {"tanh", "dot_general", "mul"}  # both operands of a gradient, whatever makes them
    # The products of the last layer are made in their place as far as the first gradient goes.
    assert 2 * LAYERS < sum(program.last_use[tensor] <= last for tensor in program.awaiting) < 4 * LAYERS


def test_small_gradients_and_those_of_other_chips_are_made_in_their_place() -> None:
    assert not analysed("v5e:2x4")[1].awaiting
    assert not analysed("v6e:2x4", width=64)[1].awaiting


@pytest.mark.parametrize(
    ("rows", "mesh", "last"), [(1 << 17, {"x": 8}, True), ((1 << 17) - 4, {"x": 4, "y": 2}, False)]
)
def test_only_gradients_that_all_devices_sum_come_last(rows: int, mesh: dict[str, int], last: bool) -> None:
    made = planner.plan(step, args(rows), topology="v6e:2x4", mesh=mesh, options=NEVER)
    assert made.alternatives is not None
    chosen = made.alternatives.chosen
    memory, program = MemoryModel(instance=chosen.instance), chosen.instance.model.compiled
    until = max(one.until for one in program.awaiting.values())
    alive = {name for name, size in memory.alive(until - 1, chosen.choice) if size}
    saved = {chosen.instance.model.graph.tensors[tensor].name for tensor in program.awaiting}
    assert saved <= alive if last else len(saved & alive) < LAYERS


@pytest.mark.skipif(bool(unavailable_reason("tpu")), reason=unavailable_reason("tpu") or "libtpu is there")
def test_a_plan_holds_as_much_as_its_compiler() -> None:
    made = planner.plan(step, args(1 << 17), topology="v6e:2x4", mesh={"x": 8}, donate_argnums=0, options=NEVER)
    request = lower_request(made.jit, args(1 << 17), mesh_shape=made.decision.mesh_shape, topology="v6e:2x4")
    memory = run_request(request).memory
    assert memory is not None
    assert made.predicted.peak_bytes == pytest.approx(memory.peak_bytes, rel=0.1)


def test_what_is_held_on_some_meshes_alone_is_no_bound_of_all_plans() -> None:
    graph = build_graph(trace(step, args(1 << 17)), while_trips=1.0)
    chip = compiler_of(parse_topology("v6e:2x4").chip)
    last, placed = (
        model_of(graph, pinned_outputs=set(), kept=set(), compiler=compiler)
        for compiler in (chip, chip.without("gradients-last"))
    )
    assert last.compiled.awaiting
    assert whole_bytes(last, 0.0) == whole_bytes(placed, 0.0)
