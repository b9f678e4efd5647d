"""All-reduce combining: sums that no matmul of their body waits for, such as gradients, are a few large ones.

Each is charged its part of the latency of one (58 to 3 sums in a train step of BERT whose layers are written out; XLA's
pass `all-reduce-combiner`).
"""

from __future__ import annotations

from collections import Counter

from planner.decisions.decision_graph import Flow, Transfer
from planner.program.graph import Graph
from planner.program.slots import LEAVING
from planner.rules.primitives import traits


def combined(graph: Graph, flow: Flow) -> dict[int, float]:
    """By transfer that is combined with others the part of a latency that it takes."""
    found = unawaited_sums(graph, flow)
    counts = Counter(t.region for t in found)
    return {t.id: 1 / counts[t.region] for t in found}


def unawaited_sums(graph: Graph, flow: Flow) -> list[Transfer]:
    """The sums that no op of their body waits for but fused ones; the next trip of a loop may wait for a carry."""
    waited: set[int] = set()
    for op in reversed(graph.ops):
        if op.kind not in LEAVING and (not traits(op.kind).fused or not waited.isdisjoint(op.results)):
            waited.update(op.operands)
    return [t for t in flow.transfers if t.reduced and t.tensor not in waited]
