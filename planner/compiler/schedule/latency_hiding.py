"""Deferred ops: products that XLA's GPU compiler runs later than their place in the program, as nothing waits for them.

Its scheduler goes backwards from the end and hides collectives behind what is ready. The gradient of a weight is ready from
the start: outside of loops it runs behind the last loop that does not wait for it, and what is to be added to a later term
(the gradient of a weight that is read twice, as by tied embeddings) runs just before that sum. Else it runs behind the next
product but one that something waits for, or behind all of them where values are computed again behind barriers; where
collectives take long it is more, where they all come last, less. The gradient of a bias is summed by a kernel of its own
where a matmul makes what is summed, and that runs behind all products, before the one all-reduce of all such sums. Until
then all that these read stands in memory, such as the gradient of the logits through the whole backward pass. Seen in
schedules of jaxlib 0.10.2.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping, Sequence

from planner.program.dataflow import source_through
from planner.program.graph import Graph, Op
from planner.rules.primitives import kinds_where, traits


def deferred(graph: Graph, fused: Sequence[bool], spans: Sequence[tuple[int, int]]) -> Mapping[int, int]:
    """By deferred product or sum the id of the op before which it runs, from the spans of regions (op ids)."""
    outermost = [region.id for region in graph.regions if region.parent is not None and _is_root(graph, region.parent)]
    loops = sorted(spans[region] for region in outermost)
    needed, waited = _needed(graph, spans), awaited(graph, fused)
    found: dict[int, int] = {}
    matmuls = [
        op
        for op in graph.of_kinds(kinds_where(lambda row: row.matmul))
        if not fused[op.id] and _is_root(graph, op.region)
    ]
    chain = [op.id for op in matmuls if any(waited[tensor] for tensor in op.results)]
    barred = any(_is_root(graph, op.region) for op in graph.of_kinds(kinds_where(lambda row: row.bars)))
    for op in matmuls:
        until = min((needed[tensor] for tensor in op.results), default=op.id)
        passed = [stop for start, stop in loops if op.id < start and stop <= until]
        later = min((_sum_of_later(graph, fused, op.id, tensor) for tensor in op.results), default=op.id)
        following = len(chain) - 1 if barred else bisect(chain, op.id) + 1
        aside = op.id not in chain and following < len(chain)
        when = max(later, passed[-1] if passed else op.id, chain[following] + 1 if aside else op.id)
        if when > op.id:
            found[op.id] = min(when, until)
    end = max((op.id for op in matmuls), default=0)
    for op in graph.of_kinds(("reduce_sum",)):
        alone = _is_root(graph, op.region) and not any(waited[tensor] for tensor in op.results)
        if alone and op.id < end and _of_matmul(graph, fused, op.operands[0]):
            found[op.id] = max([end + 1, *(stop for start, stop in loops if start < end)])
    return found


def awaited(graph: Graph, fused: Sequence[bool]) -> list[bool]:
    """For every tensor whether anything but passes is computed of it."""
    found = [False] * len(graph.tensors)
    for op in reversed(graph.ops):
        waits = not fused[op.id] or any(found[tensor] for tensor in op.results)
        for tensor in op.operands if waits else ():
            found[tensor] = True
    return found


def _of_matmul(graph: Graph, fused: Sequence[bool], tensor: int) -> bool:
    """Whether a tensor is what a matmul makes, in another shape or order."""

    def passes(op: Op) -> bool:
        row = traits(op.kind)
        moves = row.reshapes or row.renames or row.turns or op.kind == "convert_element_type"
        return fused[op.id] and moves

    op = graph.maker(source_through(graph, tensor, passes))
    return op is not None and not fused[op.id] and traits(op.kind).matmul


def _is_root(graph: Graph, region: int) -> bool:
    return graph.regions[region].parent is None


def _needed(graph: Graph, spans: Sequence[tuple[int, int]]) -> list[int]:
    """For every tensor made outside of loops the latest time by which something must read it: a loop, or the end."""
    needed = [len(graph.ops)] * len(graph.tensors)
    for op in reversed(graph.ops):
        if _is_root(graph, op.region):
            until = min((needed[tensor] for tensor in op.results), default=len(graph.ops))
        else:
            region = op.region
            while (parent := graph.regions[region].parent) is not None and not _is_root(graph, parent):
                region = parent
            until = spans[region][0]
        for tensor in op.operands:
            needed[tensor] = min(needed[tensor], until)
    return needed


def _sum_of_later(graph: Graph, fused: Sequence[bool], made: int, tensor: int) -> int:
    """The id of the sum of a tensor with what is made later, where it is read for nothing else; else when it was made."""
    while len(graph.consumers[tensor]) == 1:
        op: Op = graph.ops[graph.consumers[tensor][0][0]]
        if not _is_root(graph, op.region) or not fused[op.id] or len(op.results) != 1:
            break
        if traits(op.kind).adds and all(
            graph.tensors[t].aval.size == graph.tensors[tensor].aval.size for t in op.operands
        ):
            others = [graph.tensors[t].producer or 0 for t in op.operands if t != tensor]
            return op.id if others and max(others) > made else made
        if len(op.operands) > 1:
            break
        (tensor,) = op.results
    return made
