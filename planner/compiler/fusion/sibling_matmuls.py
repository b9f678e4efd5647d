"""Neighbours: matmuls that read one tensor side by side, as the two gradients of a matmul do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from planner.program.graph import Graph
from planner.rules.primitives import kinds_where

CLOSE = 4
"""Matmuls at most this many ops apart, with no other between them, are side by side."""


def matmul_ranks(graph: Graph, fused: Sequence[bool]) -> dict[int, int]:
    """The positions among the matmuls of those that are no passes, by their ops."""
    matmuls = [op.id for op in graph.of_kinds(kinds_where(lambda row: row.matmul)) if not fused[op.id]]
    return {op: position for position, op in enumerate(matmuls)}


def side_by_side(graph: Graph, matmuls: Mapping[int, int], tensor: int) -> Iterator[tuple[int, int]]:
    """The matmuls, given with their ranks, that read a tensor side by side: pairs of ops."""
    for first, second in pairwise(sorted({reader for reader, _ in graph.consumers[tensor] if reader in matmuls})):
        if matmuls[second] == matmuls[first] + 1 and second - first <= CLOSE:
            yield first, second
