"""By hand: which ops are not left to XLA's partitioner, and what they are emitted as instead.

Prediction, emission and what writes the ops ask here, of a choice of strategies or of the constraints that stand for it:
it depends on nothing but how the op's arrays are split.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from jax.sharding import PartitionSpec

from planner.pricing.assignment import Chosen
from planner.pricing.loop_all_reduce import Axes
from planner.program.graph import Graph, Op
from planner.program.slots import Slot
from planner.program.spec_entries import axes_of_spec
from planner.rules.primitive import ByHand
from planner.rules.primitives import Primitive, kinds_where, rule_of_op, slides_of, traits
from planner.rules.rule import Rule
from planner.rules.sliding import Slide, image_of, is_grouped

How = Literal["exchange"] | ByHand
"""A `shard_map` that fetches halos ("exchange", see `halo_exchange`), or what the row of its primitive says."""

ADDING: Collection[How | None] = ("exchange", "kernel", "sums")
"""Those that add up their partial results themselves. Of the others the partitioner does it, or there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """How an op's operands and results are split, on a mesh of so many `devices`."""

    operands: tuple[Axes, ...]
    results: tuple[Axes, ...]
    devices: int


def chosen_split(chosen: Chosen, op: Op) -> Split:
    """How a choice of strategies splits an op."""

    def axes(tensor: int, spec: PartitionSpec) -> Axes:
        return axes_of_spec(spec, len(chosen.instance.model.graph.tensors[tensor].aval.shape))

    return Split(
        operands=tuple(axes(tensor, chosen.wanted(op, i)) for i, tensor in enumerate(op.operands)),
        results=tuple(axes(tensor, chosen.made(op, i)) for i, tensor in enumerate(op.results)),
        devices=chosen.instance.mesh.num_devices,
    )


def laid_split(graph: Graph, op: Op, constraints: Mapping[Slot, tuple[PartitionSpec, ...]], devices: int) -> Split:
    """How the constraints on an op split it: by the last on an operand, by the first on a result."""

    def axes(slot: Slot, tensor: int, place: int) -> Axes:
        chain = constraints.get(slot, ())
        return axes_of_spec(chain[place] if chain else PartitionSpec(), len(graph.tensors[tensor].aval.shape))

    return Split(
        operands=tuple(axes(("operand", op.path, i), t, -1) for i, t in enumerate(op.operands)),
        results=tuple(axes(("result", op.path, i), t, 0) for i, t in enumerate(op.results)),
        devices=devices,
    )


def by_hand(graph: Graph, op: Op, split: Split) -> How | None:
    """What an op that is split so is emitted as; None where the partitioner has it."""
    row = traits(op.kind)
    if row.slides is not None:
        grouped = is_grouped(op) and any(map(any, split.operands))
        return "exchange" if grouped or moving(graph, op, split) else None
    if row.by_hand is None or row.by_hand == "kernel":
        return row.by_hand
    if row.by_hand == "sums":
        return "sums" if summed_over(graph, op, split) else None
    if not any(split.results[0]) or _covers_what_is_split(graph, op, split):
        return None
    written = _may_write_once(graph, op, split) if row.by_hand == "barrier" else rule_by_dims(graph, op) is not None
    return row.by_hand if written else None


def _covers_what_is_split(graph: Graph, op: Op, split: Split) -> bool:
    """Whether an op updates all of an array along each dim that is split.

    Nothing moves then. Compilers update a slice in place that they see is read and written at one index.
    """
    if op.kind != "dynamic_update_slice":
        return False
    whole, update = graph.avals(op.operands[:2])
    extents = zip(split.results[0], whole.shape, update.shape, strict=True)
    return all(extent == updated for names, extent, updated in extents if names)


def may_be_by_hand(row: Primitive) -> bool:
    """Whether ops of a kind are emitted by hand where they are split so that the partitioner does not have them."""
    return row.slides is not None or row.by_hand is not None


def moving(graph: Graph, op: Op, split: Split) -> list[Slide]:
    """The slides of an op whose dims are split."""
    return [slide for slide in slides_of(graph, op) if split.operands[image_of(op.kind)][slide.image_dim]]


def summed_over(graph: Graph, op: Op, split: Split) -> tuple[str, ...]:
    """The axes over which the parts of an op are partial sums: those that split what it sums over."""
    rule = rule_of_op(graph, op)
    if rule is None:
        return ()
    held = (
        pair for dims, axes in zip(rule.operands, split.operands, strict=True) for pair in zip(dims, axes, strict=True)
    )
    return tuple(
        dict.fromkeys(name for dim, names in held for name in names if any(rule.kinds[f] == "reduce" for f in dim))
    )


def _may_write_once(graph: Graph, op: Op, split: Split) -> bool:
    """Whether a scatter into a dim that is split may have one update per device, which XLA writes without a loop."""
    written = op.params["dimension_numbers"].scatter_dims_to_operand_dims
    updates = math.prod(graph.tensors[op.operands[1]].aval.shape[:-1])
    return updates <= split.devices and any(split.results[0][dim] for dim in written)


def rule_by_dims(graph: Graph, op: Op) -> Rule | None:
    """The rule of an op, by which its parts follow from those of its result; None where a dim has several factors."""
    rule = rule_of_op(graph, op)
    return rule if rule is not None and rule.single else None


def read_from_operands(graph: Graph) -> list[Op]:
    """The ops that are emitted by hand as the constraints on their operands say, in program order; some only if split."""
    return graph.of_kinds(kinds_where(lambda row: row.slides is not None or row.by_hand in ("kernel", "sums")))
