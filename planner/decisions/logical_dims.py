"""Logical dims: which dims of a program's arrays are one index, followed through all of its ops."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from planner.decisions.decision_graph import Flow
from planner.decisions.groups import Grouping
from planner.program.graph import Graph, Op
from planner.rules.rule import Dim, Dims
from planner.rules.unify import Forest


class LogicalDims:
    """The indices that run through a program, as numbers: those that every dim of a tensor is made of, major first.

    Dims are of one index where an op says so, through all ops: those of a group share its factors, and what travels
    between nodes has the same dims at both ends. A dim that another op sees as a product is one of several indices.
    """

    def __init__(self, graph: Graph, grouping: Grouping, flow: Flow) -> None:
        self._graph, self._grouping, self._flow = graph, grouping, flow
        self._forest = forest = Forest()
        self._firsts = [
            forest.extend(
                grouping.groups[node.group].sizes
                if node.group is not None
                else graph.tensors[node.tensor or 0].aval.shape,
                (),
            )
            for node in flow.nodes
        ]
        for transfer in flow.transfers:
            for one, other in zip(transfer.source_dims, transfer.target_dims, strict=True):
                if one and other:
                    forest.unify(self._shifted(transfer.source, one), self._shifted(transfer.target, other))

    def of(self, tensor: int) -> Dims:
        """The indices of every dim of a tensor; none for dims of size 1, and where nothing reads it."""
        home = self._flow.home[tensor]
        if home is None:
            return ((),) * len(self._graph.tensors[tensor].aval.shape)
        return tuple(self._forest.leaves(self._shifted(home[0], dim)) if dim else () for dim in home[1])

    def indices(self, node: int, dim: Dim) -> Dim:
        """The indices that some factors of a node stand for."""
        return self._forest.leaves(self._shifted(node, dim)) if dim else ()

    def read(self, op: Op, position: int) -> Dims:
        """The indices of every dim of an operand of an op."""
        return self._in_group(op, self._grouping.placements[op.id].operands[position])

    def made(self, op: Op, position: int) -> Dims:
        """The indices of every dim of a result of an op."""
        return self._in_group(op, self._grouping.placements[op.id].results[position])

    def size(self, index: int) -> int:
        """The extent of an index."""
        return self._forest.size[index]

    def looped(self) -> Collection[int]:
        """The indices over which loops run: of what they take slice by slice."""
        found: set[int] = set()
        for op in self._graph.of_kinds(("loop_slice",)):
            found.update(*self.read(op, 0)[:1])
        return found

    def _in_group(self, op: Op, dims: Dims) -> Dims:
        group = self._grouping.group_of[op.id]
        return tuple(self._forest.leaves(self._shifted(group, dim)) if dim else () for dim in dims)

    def _shifted(self, node: int, dim: Dim) -> Sequence[int]:
        first = self._firsts[node]
        return [first + factor for factor in dim]
