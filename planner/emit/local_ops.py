"""Local ops: split ops whose parts need nothing of each other, emitted as `shard_map`s of themselves.

XLA's partitioner gathers their operands all the same: FFTs before JAX 0.12, `top_k` on CPU, factorizations on TPUs,
triangular and tridiagonal solves whose right-hand sides are split where they are calls of a library. An update of a single
element of a split dim it computes wrongly (see `hazards`). In a `shard_map` every device runs the op on the part it holds.

On TPUs the result of an update of what is donated is laid out as the argument: within the `shard_map`, as the partitioner
would gather what has a layout of its own.

Scatters of a single update per device stay with the partitioner, but behind a barrier that keeps their operand a buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from planner.compiler.buffers.copy_insertion import on_donated
from planner.compiler.model import CompilerModel
from planner.emit.by_hand import by_hand, laid_split, rule_by_dims, summed_over
from planner.emit.partial_sums import on_parts
from planner.pricing.candidates.specs import from_entries
from planner.pricing.loop_all_reduce import Axes
from planner.pricing.tpu_tiles import argument_order
from planner.program.graph import Graph, Op, Path
from planner.program.slots import Slot
from planner.program.spec_entries import parts_over
from planner.rules.primitives import kinds_where
from planner.rules.rule import Dims, Rule


def local_calls(
    graph: Graph,
    constraints: Mapping[Slot, tuple[PartitionSpec, ...]],
    mesh: Mesh | AbstractMesh,
    compiler: CompilerModel,
) -> dict[Path, Callable[..., Sequence[Any]]]:
    """For the path of every local op whose results the constraints split: a function that computes them part by part.

    `compiler` is the one that builds the program.
    """
    found: dict[Path, Callable[..., Sequence[Any]]] = {}
    kept = on_donated(graph) if compiler.runs("slices-of-donated-stacks") else frozenset[int]()
    for op in graph.of_kinds(kinds_where(lambda row: row.by_hand in ("parts", "barrier", "sums"))):
        split = laid_split(graph, op, constraints, mesh.size)
        how = by_hand(graph, op, split)
        if how == "barrier":
            found[op.path] = partial(_after_barrier, op.primitive, op.params)
        if how == "sums":
            over = summed_over(graph, op, split)
            found[op.path] = on_parts(op, split.operands, split.results[0], mesh, over)
        given = op.kind == "dynamic_update_slice" and op.results[0] in kept and any(split.results[0])
        rule = rule_by_dims(graph, op) if how == "parts" or given else None
        if rule is not None:
            found[op.path] = _local(op, rule, split.results[0], mesh, given)
    return found


def _local(op: Op, rule: Rule, made: Axes, mesh: Mesh | AbstractMesh, as_given: bool) -> Callable[..., Sequence[Any]]:
    axes = {factor: names for dim, names in zip(rule.results[0], made, strict=True) for factor in dim}

    def spec(dims: Dims) -> Axes:
        return tuple(tuple(name for factor in dim for name in axes.get(factor, ())) for dim in dims)

    operands = [spec(dims) for dims in rule.operands]
    if op.kind == "dynamic_update_slice":
        function = partial(_updated, operands[0], operands[1], dict(mesh.shape), as_given)
    else:
        function = partial(_bound, op.primitive, op.params)
    return jax.shard_map(
        function,
        mesh=mesh,
        in_specs=tuple(map(from_entries, operands)),
        out_specs=tuple(from_entries(spec(dims)) for dims in rule.results),
        check_vma=False,  # it refuses a matrix that all devices hold beside right-hand sides that they do not
    )


# ---------------------------------------------------------------- what one device computes


def _bound(primitive: Any, params: Mapping[str, Any], *operands: Any) -> tuple[Any, ...]:
    results = primitive.bind(*operands, **params)
    return tuple(results) if primitive.multiple_results else (results,)


def _after_barrier(primitive: Any, params: Mapping[str, Any], operand: Any, *rest: Any) -> tuple[Any, ...]:
    """A scatter into what no later pass can take for a slice of something larger."""
    return (primitive.bind(lax.optimization_barrier(operand), *rest, **params),)


def _updated(
    operand_spec: Axes,
    update_spec: Axes,
    sizes: Mapping[str, int],
    as_given: bool,
    operand: Any,
    update: Any,
    *starts: Any,
) -> tuple[Any, ...]:
    """The part of a dynamic update: where only the operand is split, the device that holds the element writes it."""
    here, places = jnp.bool_(True), list[Any]()
    for dim, start in enumerate(starts):
        extent = operand.shape[dim] * parts_over(operand_spec[dim], sizes)
        covered = update.shape[dim] * parts_over(update_spec[dim], sizes)
        # As the whole program: a start before the first place or after the last one is moved there.
        last = min(extent - covered, int(jnp.iinfo(start.dtype).max))
        place = jnp.clip(start, 0, last).astype(np.int32)
        if operand_spec[dim] != update_spec[dim]:
            place -= lax.axis_index(tuple(operand_spec[dim])) * operand.shape[dim]
            here &= (place >= 0) & (place < operand.shape[dim])
            place = jnp.clip(place, 0, operand.shape[dim] - 1)
        places.append(place)
    before = lax.dynamic_slice(operand, places, update.shape)
    made = lax.dynamic_update_slice(operand, jnp.where(here, update, before), places)
    return (_as_given(made) if as_given else made,)


def _as_given(x: Any) -> Any:
    """An array in the layout that it has as an argument.

    XLA's TPU compiler lays out a carry as its readers or its updates want it, and copies all of it before and behind the
    loop, where that is another layout than the argument's.
    """
    return with_layout_constraint(x, Layout(argument_order(tuple(x.shape), x.dtype.itemsize)))
