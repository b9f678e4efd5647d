"""Local ops: split ops whose parts need nothing of each other, emitted as `shard_map`s of themselves.

XLA's partitioner gathers their operands all the same: FFTs before JAX 0.12, `top_k` on CPU, triangular and tridiagonal
solves whose right-hand sides are split where they are calls of a library. An update of a single element of a split dim
it computes wrongly (see `hazards`). In a `shard_map` every device runs the op on the part it holds.

Scatters of a single update per device stay with the partitioner, but behind a barrier that keeps their operand a buffer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import primitives
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from planner.factors import Rule
from planner.graph import Graph, Op, Path
from planner.groups import Dims
from planner.hazards import SCATTERS
from planner.places import Slot
from planner.rules import rule_of
from planner.specs import entries_of, from_entries

PRIMITIVES: Mapping[str, Any] = {
    "fft": primitives.fft_p,
    "top_k": primitives.top_k_p,
    "triangular_solve": primitives.triangular_solve_p,
    "tridiagonal_solve": primitives.tridiagonal_solve_p,
}
"""The primitives; no parameter of theirs depends on the extents of dims that pass."""
UPDATE = "dynamic_update_slice"

Spec = list[list[str]]
"""The axis names of every dim."""


def local_calls(
    graph: Graph, constraints: Mapping[Slot, tuple[PartitionSpec, ...]], mesh: Mesh | AbstractMesh
) -> dict[Path, Callable[..., Sequence[Any]]]:
    """For the path of every local op whose results the constraints split: a function that computes them part by part."""
    found: dict[Path, Callable[..., Sequence[Any]]] = {}
    for op in graph.of_kinds((*PRIMITIVES, UPDATE, *SCATTERS)):
        made = constraints.get(("result", op.path, 0), ())
        if not made or not any(entries_of(made[0])):
            continue
        if op.kind in SCATTERS:
            if _may_write_once(graph, op, made[0], mesh):
                found[op.path] = partial(_behind_barrier, op.primitive, op.params)
            continue
        avals = [graph.tensors[t].aval for t in op.operands]
        rule = rule_of(op.kind, avals, [graph.tensors[t].aval for t in op.results], op.params)
        if rule is not None and all(len(dim) < 2 for array in (*rule.operands, *rule.results) for dim in array):
            found[op.path] = _local(op, rule, made[0], mesh)
    return found


def _may_write_once(graph: Graph, op: Op, made: PartitionSpec, mesh: Mesh | AbstractMesh) -> bool:
    """Whether a scatter into a dim that is split may have one update per device, which XLA writes without a loop."""
    written = op.params["dimension_numbers"].scatter_dims_to_operand_dims
    updates = math.prod(graph.tensors[op.operands[1]].aval.shape[:-1])
    return updates <= mesh.size and any(axes for dim, axes in enumerate(entries_of(made)) if dim in written)


def _local(op: Op, rule: Rule, made: PartitionSpec, mesh: Mesh | AbstractMesh) -> Callable[..., Sequence[Any]]:
    axes = {factor: names for dim, names in zip(rule.results[0], entries_of(made), strict=False) for factor in dim}

    def spec(dims: Dims) -> Spec:
        return [[name for factor in dim for name in axes.get(factor, ())] for dim in dims]

    operands = [spec(dims) for dims in rule.operands]
    if op.kind == UPDATE:
        function = partial(_updated, operands[0], operands[1], dict(mesh.shape))
    else:
        function = partial(_bound, PRIMITIVES[op.kind], op.params)
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


def _behind_barrier(primitive: Any, params: Mapping[str, Any], operand: Any, *rest: Any) -> tuple[Any, ...]:
    """A scatter into what no later pass can take for a slice of something larger."""
    return (primitive.bind(lax.optimization_barrier(operand), *rest, **params),)


def _updated(
    operand_spec: Spec, update_spec: Spec, sizes: Mapping[str, int], operand: Any, update: Any, *starts: Any
) -> tuple[Any, ...]:
    """The part of a dynamic update: where only the operand is split, the device that holds the element writes it."""
    here, places = jnp.bool_(True), list[Any]()
    for dim, start in enumerate(starts):
        extent = operand.shape[dim] * math.prod(sizes[name] for name in operand_spec[dim])
        covered = update.shape[dim] * math.prod(sizes[name] for name in update_spec[dim])
        # As the whole program: a start before the first place or after the last one is moved there.
        last = min(extent - covered, int(jnp.iinfo(start.dtype).max))
        place = jnp.clip(start, 0, last).astype(np.int32)
        if operand_spec[dim] != update_spec[dim]:
            place -= lax.axis_index(tuple(operand_spec[dim])) * operand.shape[dim]
            here &= (place >= 0) & (place < operand.shape[dim])
            place = jnp.clip(place, 0, operand.shape[dim] - 1)
        places.append(place)
    before = lax.dynamic_slice(operand, places, update.shape)
    return (lax.dynamic_update_slice(operand, jnp.where(here, update, before), places),)
