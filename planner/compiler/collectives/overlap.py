"""Overlap: collectives that run beside matmuls.

A gather of a tensor that nothing in its body must be computed for, such as a layer's weights, runs beside the matmuls
before it; one that a TPU's compiler makes an all-reduce of only where SparseCores sum. On GPUs sums outside of loops that
no matmul waits for run, as many as are combined, beside those after the last of them, until the next such sum: the sums of
a small step's gradients are one, behind which nothing is left to compute. On TPUs whose SparseCores sum, one in a loop runs
beside matmuls as well.

All-reduce combining: sums that no matmul of their body waits for, such as gradients, are a few large ones. Each is
charged its part of the latency of one (58 to 3 sums in a train step of BERT whose layers are written out; XLA's pass
`all-reduce-combiner`). Others, of reductions, are combined that wait for as many sums before them, such as those of a mean
and a variance (of ResNet-50's 212 sums of batch norms 98 are left on v5e:4x4, of pairs, and where branches part of four).
Those of products are priced apart: the compiler combines queries, keys and values that are summed over the same devices,
but these are decided apart, and in decode steps over v5e:16x16 only the queries are sums.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import final

from planner.compiler.collectives.beside import flops_beside
from planner.decisions.decision_graph import Flow, Read, Transfer
from planner.decisions.groups import Grouping
from planner.program.graph import Graph
from planner.program.slots import ALWAYS_THERE, LEAVING
from planner.rules.op_work import op_flops
from planner.rules.primitives import traits

HIDDEN = 0.9
"""The share of a collective that runs beside matmuls where enough of them are there.

In schedules by libtpu 0.0.42 of Llama, GPT, Mixtral and ViT train steps on v5e:4x4 and v5p:4x4x4 whose layers are a loop,
up to 0.12 of the gathers of weights are exposed. Those by jaxlib 0.10.2 for 8 H100 hide 0.9 to all of them in the loops of
Llama and GPT, and next to nothing else.
"""


def combined(
    graph: Graph, grouping: Grouping, flow: Flow, merged: Collection[int], unawaited: Sequence[Transfer]
) -> dict[int, float]:
    """By transfer that is combined with others the part of a latency that it takes; those that are `merged` are not.

    `unawaited` are the sums that nothing waits for.
    """
    counts = Counter(t.region for t in unawaited)
    found = {t.id: 1 / counts[t.region] for t in unawaited}
    others = [t for t in flow.transfers if t.reduced and t.id not in found and t.id not in merged]
    awaited = [t for t in others if not _is_of_product(graph, t)]
    before = _sums_before(graph, {t.tensor for t in awaited})

    def kind(transfer: Transfer) -> tuple[Hashable, ...]:
        made, at = graph.tensors[transfer.tensor], before[transfer.tensor]
        return transfer.region, at, made.aval.dtype, grouping.placements[made.producer or 0].combiner

    together: defaultdict[tuple[Hashable, ...], set[int]] = defaultdict(set)
    for transfer in awaited:
        together[kind(transfer)].add(transfer.tensor)
    return found | {t.id: 1 / len(together[kind(t)]) for t in awaited if len(together[kind(t)]) > 1}


def _is_of_product(graph: Graph, transfer: Transfer) -> bool:
    maker = graph.maker(transfer.tensor)
    return maker is not None and traits(maker.kind).matmul


def _sums_before(graph: Graph, sums: Collection[int]) -> list[int]:
    """By tensor the most of these sums of which each needs the one before, and it the last."""
    before = [0] * len(graph.tensors)
    for op in graph.ops:
        most = max((before[tensor] + (tensor in sums) for tensor in op.operands), default=0)
        for tensor in op.results:
            before[tensor] = most
    return before


def unawaited_sums(graph: Graph, flow: Flow) -> list[Transfer]:
    """The sums that no op of their body waits for but passes; the next trip of a loop may wait for a carry."""
    waited: set[int] = set()
    for op in reversed(graph.ops):
        passes = traits(op.kind).fused or traits(op.kind).streams
        if op.kind not in LEAVING and not (passes and waited.isdisjoint(op.results)):
            waited.update(op.operands)
    return [t for t in flow.transfers if t.reduced and t.tensor not in waited]


def flops_after_sums(
    graph: Graph, unawaited: Sequence[Transfer], *, in_loops: bool, combined_bytes: float
) -> dict[int, float]:
    """By sum that nothing waits for (`unawaited`) the flops of the matmuls of its body between it and the next such sum.

    But with `in_loops` those of a loop's trip are combined, and run behind its last matmul; without, those outside of loops
    are, up to `combined_bytes` into one: it begins when the last of them is made, and each has its part of what follows.
    """
    made: dict[int, list[Transfer]] = {}
    for transfer in unawaited:
        if not in_loops and graph.regions[transfer.region].parent is not None:
            continue
        made.setdefault(graph.tensors[transfer.tensor].producer or 0, []).append(transfer)
    if in_loops:
        parts = {op: dict.fromkeys((transfer.id for transfer in sums), 1.0) for op, sums in made.items()}
    else:
        parts = _parts_of_combined(graph, made, combined_bytes)
    found: dict[int, float] = {}
    latest: dict[int, dict[int, float]] = {}
    for op in graph.ops:
        following = latest.get(op.region, {}) if traits(op.kind).matmul else {}
        for transfer, part in following.items():
            found[transfer] = found.get(transfer, 0.0) + part * op_flops(graph, op)
        if op.id in parts:
            latest[op.region] = parts[op.id]
    return found


def _parts_of_combined(
    graph: Graph, made: Mapping[int, list[Transfer]], combined_bytes: float
) -> dict[int, dict[int, float]]:
    """By the op that makes the last of several sums that are combined the part of each, from the sums by their op."""
    groups: list[dict[int, float]] = []
    ends: list[int] = []
    size = 0.0
    for op in sorted(made):
        sizes = {transfer.id: float(graph.tensors[transfer.tensor].aval.bytes) for transfer in made[op]}
        more = sum(sizes.values())
        size += more
        if not groups or size > combined_bytes:
            groups.append({})
            ends.append(op)
            size = more
        groups[-1] |= sizes
        ends[-1] = op
    totals = [max(sum(group.values()), 1.0) for group in groups]
    return {
        end: {transfer: size / total for transfer, size in group.items()}
        for end, group, total in zip(ends, groups, totals, strict=True)
    }


@final
class OverlapFlops(Mapping[int, float]):
    """By transfer the flops of the matmuls beside which it runs; worked out when they are read.

    For a gather that can start before its body runs, those of the matmuls that read what it brings, in a loop on GPUs; in
    one on TPUs those of the last matmul of the trip before these, which a TPU's compiler fuses it with, so that the first
    matmul of a trip waits for its weights. Outside of loops no more than those of all matmuls before these, and none where
    anything else reads what it brings, which is scheduled at once. For a sum that nothing waits for those `after_sums`, and
    for what is `awaited` those that depend on it in neither way, its part of them (see `flops_beside`). At most those that
    hide it: `enough` flops for any collective, and so many for each byte. So layers are alike though the tensors that
    the first of them fetch are read by all later ones, along the residual stream. `by_trip`: what a loop gathers is fused
    with a matmul of that trip.
    """

    def __init__(
        self,
        graph: Graph,
        flow: Flow,
        reads: Mapping[int, list[Read]],
        enough: tuple[float, float],
        after_sums: Mapping[int, float],
        awaited: Sequence[Transfer],
        *,
        by_trip: bool,
    ) -> None:
        self._graph, self._flow, self._reads, self._enough = graph, flow, reads, enough
        self._after_sums, self._awaited, self._by_trip = after_sums, awaited, by_trip
        self._known: dict[int, float] = {}
        self._sums: dict[int, float] = {}

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

    @cached_property
    def _beside(self) -> Mapping[int, float]:
        """By awaited transfer of what its body makes its part of the flops beside it."""
        made = [t for t in self._awaited if not self._there.get(t.tensor, True)]
        return flops_beside(self._graph, made, self._reads, self._flops_of_matmuls) if made else {}

    @cached_property
    def _matmuls_behind(self) -> list[int]:
        """By op the matmuls of its body that read what it takes, itself or through fused ops: bit n is the nth matmul.

        Ops of one layer mostly share a set, which is then one object.
        """
        graph, number, known = self._graph, len(self._flops_of_matmuls), dict[int, int]()
        found = [0] * len(graph.ops)
        for op in reversed(graph.ops):
            row, of = traits(op.kind), 0
            if row.matmul:
                number -= 1
                of = 1 << number
            elif row.fused:
                for tensor in op.results:
                    for reader, _ in graph.consumers[tensor]:
                        of |= found[reader] if graph.ops[reader].region == op.region else 0
            found[op.id] = known.setdefault(of, of)
        return found

    @cached_property
    def _flops_of_matmuls(self) -> list[float]:
        """Those of one run of every matmul."""
        return [op_flops(self._graph, op) for op in self._graph.ops if traits(op.kind).matmul]

    @cached_property
    def _matmuls_of(self) -> dict[int, int]:
        """By region the matmuls that stand in it, not in its loops: bits as in `_matmuls_behind`."""
        found: dict[int, int] = {}
        matmuls = (op for op in self._graph.ops if traits(op.kind).matmul)
        for number, op in enumerate(matmuls):
            found[op.region] = found.get(op.region, 0) | 1 << number
        return found

    def _sum(self, matmuls: int) -> float:
        """The flops of a set of matmuls."""
        if matmuls not in self._sums:
            bits = f"{matmuls:b}"[::-1]
            self._sums[matmuls] = sum(f for f, bit in zip(self._flops_of_matmuls, bits, strict=False) if bit == "1")
        return self._sums[matmuls]

    def _flops(self, transfer: Transfer) -> float:
        """Those of one run of the matmuls of its body that read what a transfer brings, through other ops or at once."""
        graph, (of_any, per_byte) = self._graph, self._enough
        enough = of_any + per_byte * graph.tensors[transfer.tensor].aval.bytes
        if not enough:
            return 0.0
        if transfer.id in self._after_sums:
            return min(enough, self._after_sums[transfer.id])
        if not self._there.get(transfer.tensor, True):
            return min(enough, self._beside.get(transfer.id, 0.0))
        matmuls, whole = 0, graph.regions[transfer.region].parent is None
        for op, _ in self._reads.get(transfer.id, ()):
            behind = self._matmuls_behind[op] if graph.ops[op].region == transfer.region else 0
            if whole and not behind:
                return 0.0
            matmuls |= behind
        earlier = (matmuls & -matmuls) - 1 if matmuls else 0
        if self._by_trip and not whole:
            earlier &= self._matmuls_of.get(transfer.region, 0)
            last = 1 << earlier.bit_length() - 1 if earlier else 0
            return min(self._sum(last), enough)
        return min(self._sum(matmuls), self._sum(earlier) if whole and matmuls else math.inf, enough)
