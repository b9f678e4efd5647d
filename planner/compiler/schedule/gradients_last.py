"""Gradients last: products of a TPU with SparseCores that run behind all that others wait for.

SparseCores sum over devices one array at a time. The scheduler goes backwards from the end and lets each sum run beside the
product that makes what the next one sums, so that the gradients of weights come last, and all that these products read
stands in memory till then; the first alone runs in its place, its sum beside all that is between. So it is where the
gradients are summed over all devices. Where they are split otherwise there are sums of activations to run them beside, and
small arrays are summed all at once in the end. A loop is not passed. Seen in schedules of libtpu 0.0.42 for v6e.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from planner.compiler.schedule.latency_hiding import awaited
from planner.decisions.groups import Grouping
from planner.program.dataflow import reached
from planner.program.graph import Graph, Op
from planner.rules.primitives import kinds_where

LEAST_BYTES = 1 << 20
"""Of a gradient that is summed by itself: sums of 72 KiB were combined, and one of 2 MiB was not."""


class Awaiting(NamedTuple):
    """A tensor is held `until` a gradient is made of it, where all devices split the dims over which that sums."""

    until: int
    dims: tuple[int, ...]


def awaiting(
    graph: Graph, grouping: Grouping, fused: Sequence[bool], stored: Sequence[bool], spans: Sequence[tuple[int, int]]
) -> Mapping[int, Awaiting]:
    """By tensor in memory the last gradient that is made of it behind the others."""
    waited = awaited(graph, fused)
    matmuls = graph.of_kinds(kinds_where(lambda row: row.matmul))
    here = [op for op in matmuls if not fused[op.id] and graph.regions[op.region].parent is None]
    others = [op.id for op in here if any(waited[tensor] for tensor in op.results)]
    last = [op for op in here if not any(waited[tensor] for tensor in op.results)]
    inner = [start for region, (start, _) in zip(graph.regions, spans, strict=True) if region.parent is not None]
    loops = sorted([*inner, len(graph.ops)])
    found: dict[int, Awaiting] = {}
    for op in last[1:]:
        before = bisect(others, loops[bisect(loops, op.id)])
        until = others[before - 1] if before else op.id
        if until > op.id and graph.tensors[op.results[0]].aval.bytes >= LEAST_BYTES:
            for tensor, dims in _read(graph, grouping, stored, op):
                if tensor not in found or until + 2 > found[tensor].until:
                    found[tensor] = Awaiting(until + 2, dims)
    return found


def _read(
    graph: Graph, grouping: Grouping, stored: Sequence[bool], product: Op
) -> Iterable[tuple[int, tuple[int, ...]]]:
    """What a product is computed of in memory, each with the dims over which it sums."""

    def read_by(op: Op, factors: frozenset[int]) -> list[tuple[int, tuple[int, ...]]]:
        operands = zip(op.operands, grouping.placements[op.id].operands, strict=True)
        found = [(t, tuple(d for d, of in enumerate(dims) if factors.intersection(of))) for t, dims in operands]
        return [(tensor, dims) for tensor, dims in found if dims]

    def following(one: tuple[int, tuple[int, ...]]) -> list[tuple[int, tuple[int, ...]]]:
        tensor, dims = one
        op = graph.maker(tensor)
        if stored[tensor] or op is None:
            return []
        made = grouping.placements[op.id].results[op.results.index(tensor)]
        return read_by(op, frozenset(factor for d in dims for factor in made[d]))

    starts = read_by(product, grouping.placements[product.id].reduced)
    return [one for one in reached(starts, following) if stored[one[0]]]
