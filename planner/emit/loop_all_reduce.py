"""Sums behind loops: what a loop accumulates of partial results is summed over devices once, behind it.

XLA's partitioner has no name for a partial result: it sums every term in every trip. So the ops that make the terms run
part by part and give what each device has of them, as if it were whole; the accumulator begins as it was on the first
device and with zeros on the others; and behind the loop it is summed. In between nothing touches it but passes that take
each element for itself, on parts that are placed alike (`pricing.loop_all_reduce`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from planner.decisions.loop_accumulators import Accumulator, accumulators
from planner.emit.by_hand import laid_split
from planner.emit.partial_sums import on_parts
from planner.pricing.candidates.specs import from_entries
from planner.pricing.loop_all_reduce import Axes, axes_after_loop
from planner.program.graph import Graph, Op, Path
from planner.program.jaxpr.rewrite import Around
from planner.program.slots import Slot, result_slot
from planner.program.spec_entries import axes_of_spec

Constraints = Mapping[Slot, tuple[PartitionSpec, ...]]


@dataclass(frozen=True, kw_only=True)
class LoopSums:
    """What is put in the place of ops that make terms, by their paths, and around loops, by theirs."""

    terms: Mapping[Path, Callable[..., Sequence[Any]]]
    around: Mapping[Path, Around]


def loop_sums(graph: Graph, constraints: Constraints, mesh: Mesh | AbstractMesh) -> LoopSums:
    """The sums that the constraints on a program leave for the ends of its loops."""
    terms: dict[Path, Callable[..., Sequence[Any]]] = {}
    around: dict[Path, Around] = {}
    placed = _Laid(graph, constraints, mesh.size)
    for accumulator in accumulators(graph):
        over = axes_after_loop(accumulator, placed)
        if not over:
            continue
        for op in (term.op for term in accumulator.terms):
            operands = [placed.operand(op, position) for position in range(len(op.operands))]
            terms[op.path] = on_parts(op, operands, placed.result(op), mesh)
        axes = tuple(name for name in mesh.axis_names if name in over)
        _add_ends(around, accumulator, axes, placed.result(accumulator.enters), mesh)
    return LoopSums(terms=terms, around=around)


@dataclass(frozen=True, slots=True)
class _Laid:
    """How the constraints on a program split its ops."""

    graph: Graph
    constraints: Constraints
    devices: int

    def operand(self, op: Op, position: int) -> Axes:
        return laid_split(self.graph, op, self.constraints, self.devices).operands[position]

    def result(self, op: Op) -> Axes:
        chain = self.constraints.get(result_slot(op, 0), ())
        return axes_of_spec(chain[0] if chain else (), len(self.graph.tensors[op.results[0]].aval.shape))

    def summed_alone(self, op: Op) -> bool:
        return len(self.constraints.get(result_slot(op, 0), ())) == 1


def _add_ends(
    around: dict[Path, Around], accumulator: Accumulator, axes: tuple[str, ...], held: Axes, mesh: Mesh | AbstractMesh
) -> None:
    """Adds what an accumulator enters its loop through, and what it leaves it through."""

    def on_parts(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        spec = from_entries(held)
        return jax.shard_map(function, mesh=mesh, in_specs=(spec,), out_specs=spec, check_vma=False)

    def on_first(part: Any) -> Any:
        return jnp.where(lax.axis_index(axes) == 0, part, jnp.zeros_like(part))

    ends = around.setdefault(accumulator.enters.path, Around())
    ends.entering[accumulator.enters.params["outer"]] = on_parts(on_first)
    ends.leaving[accumulator.leaves.params["outer"]] = on_parts(partial(lax.psum, axis_name=axes))
