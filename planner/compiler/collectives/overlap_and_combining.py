"""Eased: what a TPU's compiler spares a program of its moves: sums that are added first, and gathers fetched ahead.

Partial sums over the same axes that are only added to one another are added before they are summed over devices, once for
all (XLA's all-reduce reassociation): what flows back into the input of several matmuls.

Sums that no matmul of their body waits for, such as gradients, are combined into a few large ones, which take the latency
of one (58 to 3 in a train step of BERT whose layers are written out): each is charged its share of it.

What all that read a tensor want narrower is gathered and moved so (see `narrow`).

A gather of what nothing in its body must be computed for, such as a layer's weights, runs beside the matmuls before it. On
GPUs a sum outside of loops that no matmul waits for runs beside those behind it, until the next such sum.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar, final

from planner.compiler.fusion.instruction_fusion import Fusion
from planner.compiler.simplify.convert_mover import NarrowReads
from planner.decisions.decision_graph import Flow, Read, Transfer
from planner.decisions.groups import Grouping
from planner.program.graph import Graph
from planner.program.slots import ALWAYS_THERE, LEAVING
from planner.rules.op_work import op_flops
from planner.rules.primitives import kinds_where, traits

F = TypeVar("F", int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class Eased:
    """By transfer: `together`, how many sums are added to one, itself included, where others are; `combined`, the share of
    a latency that sums take which wait for others; `narrowed`, the share of the bytes that is moved, where that is less;
    `ahead`, the flops of the matmuls that read what it fetches, where that can be fetched ahead, as far as they matter."""

    together: Mapping[int, int]
    combined: Mapping[int, float]
    narrowed: Mapping[int, float]
    ahead: Mapping[int, float]

    def figures(self, transfer: int) -> tuple[float | None, ...]:
        """All that is spared of a transfer."""
        return tuple(of.get(transfer) for of in (self.together, self.combined, self.narrowed, self.ahead))

    def of(self, transfers: Sequence[int]) -> Eased:
        """What is spared of some transfers, numbered anew as they stand here."""

        def kept(figures: Mapping[int, F]) -> dict[int, F]:
            return {i: figures[t] for i, t in enumerate(transfers) if t in figures}

        return Eased(
            together=kept(self.together),
            combined=kept(self.combined),
            narrowed=kept(self.narrowed),
            ahead=kept(self.ahead),
        )


def eased(
    graph: Graph,
    grouping: Grouping,
    flow: Flow,
    narrow: NarrowReads,
    fusion: Fusion,
    enough: tuple[float, float] = (math.inf, 0.0),
) -> Eased:
    """What is spared of the transfers of a program, whose tensors are read so narrow where the compiler narrows.

    `enough` are the flops that hide any gather, and those for each of its bytes: of more nobody needs to know. So layers
    are alike though what the first of them fetch is read by all behind them, along the residual stream.
    """
    served: dict[int, list[Read]] = {}
    for read, node in flow.fetched:
        served.setdefault(node, []).append(read)
    reads = {t.id: [*t.reads, *served.get(t.target, ())] for t in flow.transfers if not t.reduced and t.output is None}
    shares = {t.id: narrow.share(t.tensor, reads[t.id]).tpu for t in flow.transfers if reads.get(t.id)}
    return Eased(
        together=_together(graph, grouping, flow) if fusion.eases_moves else {},
        combined=_combined(graph, flow),
        narrowed={transfer: share for transfer, share in shares.items() if share < 1 and fusion.eases_moves},
        ahead=Ahead(graph, flow, reads, enough, {} if fusion.eases_moves else _behind(graph, flow)),
    )


def _together(graph: Graph, grouping: Grouping, flow: Flow) -> dict[int, int]:
    leaves = {
        t.tensor: t.id
        for t in flow.transfers
        if t.reduced and grouping.placements[graph.tensors[t.tensor].producer or 0].combiner == "add"
    }
    joined: dict[int, tuple[int, ...]] = {tensor: (transfer,) for tensor, transfer in leaves.items()}
    found: dict[int, int] = {}
    for op in graph.of_kinds(kinds_where(lambda row: row.adds)):
        terms = [joined.get(tensor, ()) for tensor in op.operands]
        alone = all(len(graph.consumers[tensor]) == 1 and tensor not in graph.returned for tensor in op.operands)
        regions = {graph.ops[graph.tensors[tensor].producer or 0].region for tensor in op.operands}
        if alone and all(terms) and regions == {op.region}:
            joined[op.results[0]] = terms[0] + terms[1]
            found |= dict.fromkeys(joined[op.results[0]], len(joined[op.results[0]]))
    return found


def _behind(graph: Graph, flow: Flow) -> dict[int, float]:
    """By sum that nothing waits for the flops of the matmuls between it and the next such sum; those of a loop's trip are
    combined, and run behind its last matmul.
    """
    made: dict[int, list[Transfer]] = {}
    for transfer in (t for t in _not_waited_for(graph, flow) if graph.regions[t.region].parent is None):
        made.setdefault(graph.tensors[transfer.tensor].producer or 0, []).append(transfer)
    found: dict[int, float] = {}
    latest: dict[int, list[Transfer]] = {}
    for op in graph.ops:
        for transfer in latest.get(op.region, ()) if traits(op.kind).matmul else ():
            found[transfer.id] = found.get(transfer.id, 0.0) + op_flops(graph, op)
        latest[op.region] = made.get(op.id, latest.get(op.region, []))
    return found


def _combined(graph: Graph, flow: Flow) -> dict[int, float]:
    combined = _not_waited_for(graph, flow)
    counts = Counter(t.region for t in combined)
    return {t.id: 1 / counts[t.region] for t in combined}


def _not_waited_for(graph: Graph, flow: Flow) -> list[Transfer]:
    """The sums that no op of their body waits for but passes; the next trip of a loop may wait for what a trip leaves."""
    waited: set[int] = set()
    for op in reversed(graph.ops):
        if op.kind not in LEAVING and (not traits(op.kind).fused or not waited.isdisjoint(op.results)):
            waited.update(op.operands)
    return [t for t in flow.transfers if t.reduced and t.tensor not in waited]


@final
class Ahead(Mapping[int, float]):
    """By transfer the flops of the matmuls that read what it fetches, where it can be ahead; worked out when asked.

    Of a sum that nothing waits for those `behind` it. At most those that hide it: `enough`, as of `eased`.
    """

    def __init__(
        self,
        graph: Graph,
        flow: Flow,
        reads: Mapping[int, list[Read]],
        enough: tuple[float, float],
        behind: Mapping[int, float],
    ) -> None:
        self._graph, self._flow, self._reads, self._enough, self._behind = graph, flow, reads, enough, behind
        self._known: dict[int, float] = {}

    def __getitem__(self, transfer: int) -> float:
        if transfer not in self._known:
            self._known[transfer] = self._flops(self._flow.transfers[transfer])
        if not self._known[transfer]:
            raise KeyError(transfer)
        return self._known[transfer]

    def __iter__(self) -> Iterator[int]:
        return (t.id for t in self._flow.transfers if t.id in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @cached_property
    def _there(self) -> dict[int, bool]:
        """Which tensors are there before their body runs."""
        there: dict[int, bool] = dict.fromkeys(self._graph.inputs, True)
        for op in self._graph.ops:
            fetched = op.kind in ALWAYS_THERE or (
                bool(traits(op.kind).fused) and all(there.get(tensor, True) for tensor in op.operands)
            )
            there |= dict.fromkeys(op.results, fetched)
        return there

    def _flops(self, transfer: Transfer) -> float:
        """Those of one run of the matmuls of its body that read what a transfer brings, through other ops or at once."""
        graph, (of_any, per_byte) = self._graph, self._enough
        enough = of_any + per_byte * graph.tensors[transfer.tensor].aval.bytes
        if enough and transfer.id in self._behind:
            return min(enough, self._behind[transfer.id])
        if not enough or not self._there.get(transfer.tensor, True):
            return 0.0
        flops, left, seen = 0.0, [op for op, _ in self._reads.get(transfer.id, ())], set[int]()
        while left and flops < enough:
            op = graph.ops[left.pop()]
            if op.id in seen or op.region != transfer.region:
                continue
            seen.add(op.id)
            if traits(op.kind).matmul:
                flops += op_flops(graph, op)
            elif traits(op.kind).fused:
                left += [reader for tensor in op.results for reader, _ in graph.consumers[tensor]]
        return min(flops, enough)
