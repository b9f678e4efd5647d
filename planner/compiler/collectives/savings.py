"""Savings: how much less transfers take because of a compiler's passes over collectives.

Partial sums over the same axes that are only added to one another, such as what flows back into the input of several
matmuls, are added before they are summed over devices, once for all (XLA's pass `all-reduce-reassociate`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from planner.compiler.collectives.overlap import OverlapFlops, combined, flops_after_sums, unawaited_sums
from planner.compiler.model import CompilerModel
from planner.compiler.simplify.convert_mover import NarrowReads
from planner.decisions.decision_graph import Flow, Read, Transfer, read_as_stored
from planner.decisions.groups import Grouping
from planner.program.graph import Graph
from planner.rules.primitives import kinds_where

F = TypeVar("F", int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class Savings:
    """By transfer: `reassociated`, the number of all-reduces merged into one; `latency`, the part of a latency that a
    combined sum takes; `bytes`, the part of its bytes that is moved, where its readers want it narrower; `overlap_flops`,
    the flops of the matmuls beside which it runs. A transfer that is absent saves nothing."""

    reassociated: Mapping[int, int]
    latency: Mapping[int, float]
    bytes: Mapping[int, float]
    overlap_flops: Mapping[int, float]

    def figures(self, transfer: int) -> tuple[float | None, ...]:
        """All figures of a transfer."""
        return tuple(of.get(transfer) for of in (self.reassociated, self.latency, self.bytes, self.overlap_flops))

    def of(self, transfers: Sequence[int]) -> Savings:
        """The savings of some transfers, numbered anew in this order."""

        def kept(figures: Mapping[int, F]) -> dict[int, F]:
            return {i: figures[t] for i, t in enumerate(transfers) if t in figures}

        return Savings(
            reassociated=kept(self.reassociated),
            latency=kept(self.latency),
            bytes=kept(self.bytes),
            overlap_flops=kept(self.overlap_flops),
        )


def savings_of(
    graph: Graph,
    grouping: Grouping,
    flow: Flow,
    narrow: NarrowReads,
    compiler: CompilerModel,
    enough: tuple[float, float],
) -> Savings:
    """The savings of the transfers of a program; `enough` are the flops that hide any gather, and those for each byte."""
    reads = {t.id: flow.reads_of(t) for t in flow.transfers if not t.reduced and t.output is None}
    moved = {t.id: narrow.fraction(t.tensor, reads[t.id]) for t in flow.transfers if reads.get(t.id)}
    # What is read as it is stored waits for no gather.
    stored = read_as_stored(graph, flow) if compiler.runs("read-as-stored") else set[Read]()
    waiting = {transfer: [read for read in of if read not in stored] for transfer, of in reads.items()}
    merged = reassociated(graph, grouping, flow) if compiler.runs("all-reduce-reassociate") else {}
    by_sparse_cores = compiler.runs("sparse-core-collectives")
    unawaited = unawaited_sums(graph, flow)
    awaited: list[Transfer] = []
    if compiler.runs("async-collectives"):
        left = {transfer.id for transfer in unawaited}
        awaited = [t for t in flow.transfers if graph.regions[t.region].parent is not None and t.id not in left]
    return Savings(
        reassociated=merged,
        latency=combined(graph, grouping, flow, merged, unawaited) if compiler.runs("all-reduce-combiner") else {},
        bytes={transfer: fraction for transfer, fraction in moved.items() if fraction < 1},
        overlap_flops=OverlapFlops(
            graph,
            flow,
            waiting if compiler.runs("async-all-gather") else {},
            enough,
            flops_after_sums(graph, unawaited, in_loops=by_sparse_cores, combined_bytes=compiler.combined_bytes)
            if by_sparse_cores or compiler.runs("async-all-reduce")
            else {},
            awaited,
            by_trip=not compiler.runs("async-collectives"),
        ),
    )


def _everywhere(transfer: Transfer) -> Hashable:
    return ()


def reassociated(
    graph: Graph, grouping: Grouping, flow: Flow, over: Callable[[Transfer], Hashable | None] = _everywhere
) -> dict[int, int]:
    """By transfer the number of all-reduces that are merged into one, where there are several.

    `over` tells the devices that a transfer sums over, or None where its tensor is no partial sum: only sums over the same
    devices are merged. By default all of them are.
    """
    joined: dict[int, tuple[tuple[int, ...], Hashable]] = {}
    for transfer in flow.transfers:
        if transfer.reduced and grouping.placements[graph.tensors[transfer.tensor].producer or 0].combiner == "add":
            devices = over(transfer)
            if devices is not None:
                joined[transfer.tensor] = (transfer.id,), devices
    found: dict[int, int] = {}
    for op in graph.of_kinds(kinds_where(lambda row: row.adds)):
        terms = [joined[tensor] for tensor in op.operands if tensor in joined]
        alone = all(len(graph.consumers[tensor]) == 1 and tensor not in graph.returned for tensor in op.operands)
        regions = {graph.ops[graph.tensors[tensor].producer or 0].region for tensor in op.operands}
        if alone and len(terms) == 2 and terms[0][1] == terms[1][1] and regions == {op.region}:
            merged = terms[0][0] + terms[1][0]
            joined[op.results[0]] = merged, terms[0][1]
            found |= dict.fromkeys(merged, len(merged))
    return found
