"""Local ops: split ops whose parts need nothing of each other, emitted as `shard_map`s of themselves.

XLA's partitioner gathers their operands all the same: FFTs before JAX 0.12, `top_k` on CPU, triangular and tridiagonal
solves whose right-hand sides are split where they are calls of a library. In a `shard_map` every device runs the op on
the part it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
from jax.extend.core import primitives
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from planner.factors import Rule
from planner.graph import Graph, Op, Path
from planner.groups import Dims
from planner.rules import rule_of
from planner.specs import entries_of, from_entries
from planner.trace import Slot

LOCAL: Mapping[str, Any] = {
    "fft": primitives.fft_p,
    "top_k": primitives.top_k_p,
    "triangular_solve": primitives.triangular_solve_p,
    "tridiagonal_solve": primitives.tridiagonal_solve_p,
}
"""The primitives; no parameter of theirs depends on the extents of dims that pass."""


def local_calls(
    graph: Graph, constraints: Mapping[Slot, tuple[PartitionSpec, ...]], mesh: Mesh | AbstractMesh
) -> dict[Path, Callable[..., Sequence[Any]]]:
    """For the path of every local op whose results the constraints split: a function that computes them part by part."""
    found: dict[Path, Callable[..., Sequence[Any]]] = {}
    for op in graph.ops:
        made = constraints.get(("result", op.path, 0), ()) if op.kind in LOCAL else ()
        if not made or not any(entries_of(made[0])):
            continue
        avals = [graph.tensors[t].aval for t in op.operands]
        rule = rule_of(op.kind, avals, [graph.tensors[t].aval for t in op.results], op.params)
        if rule is not None and all(len(dim) < 2 for array in (*rule.operands, *rule.results) for dim in array):
            found[op.path] = _local(op, rule, made[0], mesh)
    return found


def _local(op: Op, rule: Rule, made: PartitionSpec, mesh: Mesh | AbstractMesh) -> Callable[..., Sequence[Any]]:
    axes = {factor: names for dim, names in zip(rule.results[0], entries_of(made), strict=False) for factor in dim}

    def spec(dims: Dims) -> PartitionSpec:
        return from_entries([[name for factor in dim for name in axes.get(factor, ())] for dim in dims])

    primitive = LOCAL[op.kind]
    return jax.shard_map(
        partial(_bound, primitive, op.params),
        mesh=mesh,
        in_specs=tuple(map(spec, rule.operands)),
        out_specs=tuple(map(spec, rule.results)),
        check_vma=False,  # it refuses a matrix that all devices hold beside right-hand sides that they do not
    )


def _bound(primitive: Any, params: Mapping[str, Any], *operands: Any) -> tuple[Any, ...]:
    results = primitive.bind(*operands, **params)
    return tuple(results) if primitive.multiple_results else (results,)
