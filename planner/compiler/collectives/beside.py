"""Beside: the matmuls that run beside a collective in the middle of a loop's body, which depend on it in neither way.

XLA's GPU compiler runs every collective by itself. Its scheduler goes backwards and puts beside it what is ready and
neither makes what it moves nor reads it: queries are exchanged while the keys are made, activations of a backward pass
are summed beside the gradients of weights. A matmul hides one collective at a time, and of the values that could move
while it runs some do, which share it. So nine tenths of what is exchanged in the loops of transformers that split heads
are hidden (jaxlib 0.10.2, h100:8). What only products read on which no other depends, as gradients of weights, is not:
these run last, and what they wait for before them. Outside of loops less is hidden.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from planner.decisions.decision_graph import Read, Transfer
from planner.program.graph import Graph
from planner.rules.primitives import traits

WITHIN = 16
"""Matmuls before and behind what makes a tensor, in the order of the program, that may run beside its collective."""
MOVING = 0.5
"""The share of the values that could be moved while a matmul runs that are.

Five plans for h100:8 (two transformers, a Llama of 8B, an LSTM on two meshes) are so promised to expose 9, 5, 47, 115 and
163 ms, and expose 3, 1, 23, 55 and 104.
"""
_NEAR = (1 << 2 * WITHIN) - 1


class _Near(NamedTuple):
    """A place in the program, by the matmuls before it, and some of those next to it: bit n is the nth from there."""

    place: int
    bits: int


def flops_beside(
    graph: Graph, transfers: Iterable[Transfer], reads: Mapping[int, Sequence[Read]], flops: Sequence[float]
) -> dict[int, float]:
    """By transfer the flops of its part of the matmuls of its body that depend on it in neither way, where there are any.

    `reads` are those that a transfer serves; without any it serves all of its tensor. `flops` are those of all matmuls, in
    the order of the program. What is made of the same matmuls is one value, of which one form moves.
    """
    matmuls = [op for op in graph.ops if traits(op.kind).matmul]
    made, (behind, read) = _makers(graph), _readers(graph, len(matmuls))
    alike: dict[tuple[_Near, tuple[int, ...]], list[int]] = {}
    for transfer in transfers:
        ahead = made[transfer.tensor]
        after = [behind[op] for op, _ in reads.get(transfer.id, ())] or [read[transfer.tensor]]
        if not any(near.bits.bit_count() > 1 for near in after):
            continue
        first = max(ahead.place - WITHIN, 0)
        beside = tuple(
            number
            for number, op in enumerate(matmuls[first : ahead.place + WITHIN], first)
            if op.region == transfer.region
            and not _has(ahead.bits, ahead.place - 1 - number)
            and not any(_has(near.bits, number - near.place) for near in after)
        )
        if beside:
            alike.setdefault((ahead, beside), []).append(transfer.id)
    values = Counter(number for _, beside in alike for number in beside)
    found: dict[int, float] = {}
    for (_, beside), of in alike.items():
        found |= dict.fromkeys(of, sum(flops[number] / max(MOVING * values[number], 1.0) for number in beside))
    return found


def _has(bits: int, position: int) -> bool:
    return position >= 0 and bool(bits >> position & 1)


def _makers(graph: Graph) -> list[_Near]:
    """By tensor the matmuls before it of which it is made, the last first."""
    found = [_Near(0, 0)] * len(graph.tensors)
    count = 0
    for op in graph.ops:
        bits = 0
        for tensor in op.operands:
            bits |= found[tensor].bits << count - found[tensor].place
        if traits(op.kind).matmul:
            bits, count = bits << 1 | 1, count + 1
        for tensor in op.results:
            found[tensor] = _Near(count, bits & _NEAR)
    return found


def _readers(graph: Graph, count: int) -> tuple[list[_Near], list[_Near]]:
    """By op, and by tensor, the matmuls from it on that are made of it, the first first."""
    of_op = [_Near(count, 0)] * len(graph.ops)
    of_tensor = [_Near(count, 0)] * len(graph.tensors)
    for op in reversed(graph.ops):
        bits = 0
        for tensor in op.results:
            bits |= of_tensor[tensor].bits << of_tensor[tensor].place - count
        if traits(op.kind).matmul:
            bits, count = bits << 1 | 1, count - 1
        of_op[op.id] = _Near(count, bits & _NEAR)
        for tensor in op.operands:
            before = of_tensor[tensor]
            of_tensor[tensor] = _Near(count, (bits | before.bits << before.place - count) & _NEAR)
    return of_op, of_tensor
