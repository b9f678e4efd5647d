"""All-reduce reassociation: partial sums that are added before they are summed over devices, once for all.

Partial sums over the same axes that are only added to one another, such as what flows back into the input of several
matmuls (XLA's pass `all-reduce-reassociate`).
"""

from __future__ import annotations

from planner.decisions.decision_graph import Flow
from planner.decisions.groups import Grouping
from planner.program.graph import Graph
from planner.rules.primitives import kinds_where


def reassociated(graph: Graph, grouping: Grouping, flow: Flow) -> dict[int, int]:
    """By transfer the number of all-reduces that are merged into one, where there are several."""
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
