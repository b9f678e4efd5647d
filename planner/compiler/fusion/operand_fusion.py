"""Reading through: what a matmul reads that computes an operand itself, and what of a pass is computed nowhere else.

A compiler makes a slice, a conversion or a mask part of the matmul that reads it: what is read from memory is what the
operand is computed from, of a stack no more than the slice, and the pass in which it stands in the program has nothing to
do for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.program.graph import Graph, Op
from planner.program.slots import BOUNDARY
from planner.rules.primitives import traits


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadThrough:
    """What is read from memory by those who compute an operand themselves.

    `shares[op, position]` are the bytes that an op reads for each byte of that operand; 1 where it is not named.
    `absorbed` are the ops of passes whose results nothing but such ops read.
    """

    shares: Mapping[tuple[int, int], float]
    absorbed: frozenset[int]


def read_through(graph: Graph, materialized: Sequence[bool], fused: Sequence[bool]) -> ReadThrough:
    """What is read through, from which tensors stand in memory and which ops are part of a pass."""
    absorbed, wanted = _backwards(graph, materialized, fused)
    leaves: dict[int, Mapping[int, float]] = {}
    shares: dict[tuple[int, int], float] = {}
    for op in graph.ops:
        if op.id in wanted:
            leaves[op.results[0]] = read = _read(graph, materialized, leaves, op)
            leaves.update((tensor, read) for tensor in op.results[1:])
        for position, tensor in enumerate(op.operands if not fused[op.id] else ()):
            size = graph.tensors[tensor].aval.bytes
            if size and not materialized[tensor]:
                shares[op.id, position] = sum(leaves[tensor].values()) / size
    return ReadThrough(shares=shares, absorbed=absorbed)


def _backwards(
    graph: Graph, materialized: Sequence[bool], fused: Sequence[bool]
) -> tuple[frozenset[int], frozenset[int]]:
    """The ops that are absorbed by those who read them, and all ops that anything is read through."""
    absorbed, wanted = set[int](), set[int]()
    for op in reversed(graph.ops):
        if not fused[op.id] or op.kind in BOUNDARY:
            continue
        readers = [reader for tensor in op.results if not materialized[tensor] for reader, _ in graph.consumers[tensor]]
        if any(not fused[reader] or reader in wanted for reader in readers):
            wanted.add(op.id)
        whole = not any(materialized[tensor] for tensor in op.results)
        if whole and readers and all(not fused[reader] or reader in absorbed for reader in readers):
            absorbed.add(op.id)
    return frozenset(absorbed), frozenset(wanted)


def _read(
    graph: Graph, materialized: Sequence[bool], leaves: Mapping[int, Mapping[int, float]], op: Op
) -> Mapping[int, float]:
    """The bytes of each tensor in memory that are read for the results of an op."""
    found: dict[int, float] = {}
    made = sum(aval.size for aval in graph.avals(op.results))
    for position, tensor in enumerate(op.operands):
        aval = graph.tensors[tensor].aval
        picked = min(1.0, made / aval.size) if traits(op.kind).picks and position == 0 and aval.size else 1.0
        read = {tensor: aval.bytes} if materialized[tensor] else leaves.get(tensor, {})
        for leaf, size in read.items():
            found[leaf] = max(found.get(leaf, 0.0), picked * size)
    return found
