"""What kernels move: slices of stacks, updates of parts, and copies of what cannot be written in place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from planner.compiler.analysis import Model, model_of
from planner.compiler.model import CompilerModel
from planner.compiler.targets.table import CPU, TPU
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.trace import trace

TABLE = jax.ShapeDtypeStruct((4096, 1024), jnp.float32)
ROWS = jax.ShapeDtypeStruct((64, 1024), jnp.float32)
WHERE = jax.ShapeDtypeStruct((), jnp.int32)
MANY = jax.ShapeDtypeStruct((64, 1), jnp.int32)


def _model(fn: Callable[..., Any], *args: Any, donate: tuple[int, ...] = (), compiler: CompilerModel = TPU) -> Model:
    graph = build_graph(trace(fn, args, donate_argnums=donate), while_trips=1.0)
    return model_of(graph, pinned_outputs=set(), kept=set(), compiler=compiler)


def _moved(model: Model, kind: str) -> float:
    """The bytes that ops of a kind move, none of them on the chip, and no table of a lookup laid out anew."""
    total = 0.0
    for group in model.grouping.groups:
        for op, array, times, _ in model.moved(group):
            if model.graph.ops[op].kind == kind and array.rows is None:
                total += times * array.itemsize * jnp.prod(jnp.asarray(array.shape)).item()
    return total


def _updated(table: jax.Array, rows: jax.Array, where: jax.Array) -> jax.Array:
    return jax.lax.dynamic_update_slice(table, rows, (where, 0))


@pytest.mark.parametrize(("donate", "copies"), [((0,), 0), ((), 2)], ids=["given away", "kept"])
def test_an_update_in_place_moves_its_part_and_copies_what_is_kept(donate: tuple[int, ...], copies: int) -> None:
    model = _model(_updated, TABLE, ROWS, WHERE, donate=donate)
    part, whole = 64 * 1024 * 4, 4096 * 1024 * 4
    assert _moved(model, "dynamic_update_slice") == 2 * part + copies * whole


def test_a_scatter_that_adds_reads_its_part_first() -> None:
    def fn(table: jax.Array, rows: jax.Array, where: jax.Array) -> jax.Array:
        return table.at[where[:, 0]].add(rows)

    model = _model(fn, TABLE, ROWS, MANY, donate=(0,))
    assert _moved(model, "scatter-add") == pytest.approx(3 * 64 * 1024 * 4, rel=0.01)


def test_a_gather_moves_what_it_returns() -> None:
    model = _model(lambda table, where: jnp.sort(table[where[:, 0]]), TABLE, MANY)
    assert _moved(model, "gather") == pytest.approx(2 * 64 * 1024 * 4, rel=0.01)


def test_nothing_is_known_where_no_kernels_are() -> None:
    model = _model(_updated, TABLE, ROWS, WHERE, compiler=CPU)
    assert model.kernels is None
    assert not any(model.moved(group) for group in model.grouping.groups)


def test_weights_that_a_loop_reads_narrow_are_narrowed_once() -> None:
    stack = jax.ShapeDtypeStruct((8, 256, 256), jnp.float32)

    def fn(x: jax.Array, stack: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda y, w: (jnp.tanh(y @ w.astype(y.dtype)), None), x, stack)[0]

    model = _model(fn, jax.ShapeDtypeStruct((256, 256), jnp.bfloat16), stack)
    assert _moved(model, "loop_slice") == 1.5 * 8 * 256 * 256 * 4


def _homes(model: Model, shape: tuple[int, ...]) -> set[str]:
    """Where products read arrays of a shape."""
    found = [moved for group in model.grouping.groups for moved in model.moved(group)]
    return {of.array.home for of in found if of.array.shape == shape and model.graph.ops[of.op].kind == "dot_general"}


@pytest.mark.parametrize(("times", "home"), [(15, "loop"), (16, "chip")])
def test_what_many_products_of_a_trip_read_of_what_a_loop_takes_in_stays_on_the_chip(times: int, home: str) -> None:
    def trip(x: jax.Array, matrix: jax.Array) -> jax.Array:
        for _ in range(times):
            x = jnp.tanh(x @ matrix)
        return x

    matrix = jax.ShapeDtypeStruct((1024, 1024), jnp.bfloat16)
    rows = jax.ShapeDtypeStruct((512, 1024), jnp.bfloat16)
    loop = _model(lambda x, m: jax.lax.scan(lambda x, _: (trip(x, m), None), x, None, length=4)[0], rows, matrix)
    assert _homes(loop, (1024, 1024)) == {home}


def test_a_cache_stays_in_memory_when_it_is_updated_in_place() -> None:
    def fn(cache: jax.Array, rows: jax.Array, where: jax.Array) -> tuple[jax.Array, jax.Array]:
        cache = jax.lax.dynamic_update_slice(cache, rows, (where, 0))
        read = rows @ cache.T
        return jax.lax.dynamic_update_slice(cache, rows, (where + 64, 0)), read

    model = _model(fn, TABLE, ROWS, WHERE, donate=(0,))
    updated = model.graph.of_kinds(("dynamic_update_slice",))[0].results[0]
    assert model.compiled.working_sets.per_byte(updated) == float("inf")


def test_what_a_loop_does_not_work_on_gives_way_to_what_it_works_on() -> None:
    """Beside the loop stand an array that it does not read, and the stacks that it reads and writes."""

    def trip(total: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        part = jnp.sin(total) @ row
        return total + jnp.cos(part), jnp.exp(total)

    def fn(x: jax.Array, aside: jax.Array, rows: jax.Array) -> Any:
        kept = jnp.tanh(aside @ aside.T @ aside)
        total, stack = jax.lax.scan(trip, x, jnp.tanh(rows))
        return total, jnp.sin(stack).sum(0), kept @ kept.T

    rows = jax.ShapeDtypeStruct((4, 1024, 1024), jnp.float32)
    model = _model(fn, ROWS, ROWS, rows)
    (part,) = (op.results[0] for op in model.graph.of_kinds(("dot_general",)) if op.region)
    assert model.compiled.working_sets.per_byte(part) == 3.0


@pytest.mark.parametrize(("cores", "home"), [(1, "chip"), (2, "product")])
def test_the_result_of_an_op_alone_in_its_kernel_goes_to_memory_where_two_cores_share_it(cores: int, home: str) -> None:
    """Elements are put apart by a kernel of its own, which no other op fuses with."""

    def fn(x: jax.Array) -> jax.Array:
        apart = jax.lax.pad(jnp.exp(x) * x, 0.0, ((0, 1, 1), (0, 0, 0)))
        return jnp.sin(apart).sum(0)

    model = _model(fn, ROWS, compiler=replace(TPU, products_in_vmem=cores == 1))
    (put,) = model.graph.of_kinds(("pad",))
    assert model.kernels is not None
    (of_pad,) = (one for of in model.kernels.of_group.values() for one in of if one.op == put.id)
    assert [access.home for of in of_pad.results for access in of] == [home]
    assert [access.home for of in of_pad.operands for access in of] == ["chip"]


def test_rows_are_picked_in_steps_by_what_reads_them() -> None:
    """Whole tiles are skipped; in steps along the dims of a tile a kernel of its own picks."""

    def fused(dim: int) -> bool:
        x = jax.ShapeDtypeStruct((64, 64, 1024), jnp.float32)
        model = _model(lambda x: jnp.sin(jax.lax.slice_in_dim(jnp.cos(x), 0, None, 2, axis=dim)).sum(0), x)
        return all(model.compiled.fused[op.id] for op in model.graph.of_kinds(("slice",)))

    assert [fused(dim) for dim in range(3)] == [True, False, False]
