"""The ops whose results reach an output or that have an effect; XLA drops the rest as well."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

from planner.program.graph import Op, Tensor
from planner.program.jaxpr.builder import Builder


def live(b: Builder, outputs: Sequence[int]) -> tuple[tuple[Op, ...], tuple[Tensor, ...], tuple[tuple[int, int], ...]]:
    """The ops whose results reach an output (or that have an effect), numbered; XLA drops the rest as well."""
    keep, needed = _needed(b, outputs)
    numbers: dict[int | None, int] = {made: number for number, made in enumerate(compress(range(len(keep)), keep))}
    ops, tensors = tuple(b.ops), tuple(b.tensors)
    if len(numbers) < len(ops):
        ops = tuple([op._replace(id=number) for number, op in enumerate(compress(ops, keep))])
        tensors = tuple([t if t.producer is None else t._replace(producer=numbers.get(t.producer)) for t in tensors])
    return ops, tensors, tuple((i, o) for i, o in b.ties if needed[i] and needed[o])


def _needed(b: Builder, outputs: Sequence[int]) -> tuple[list[bool], list[bool]]:
    """Which ops reach an output or have an effect, and which tensors they and the outputs need."""
    keep, needed = [False] * len(b.ops), [False] * len(b.tensors)
    for tensor in outputs:
        needed[tensor] = True
    left = range(len(b.ops) - 1, -1, -1)
    while left:
        idle: list[int] = []
        for number in left:
            op = b.ops[number]
            if not op.results or op.kind in _EFFECTS or any(map(needed.__getitem__, op.results)):
                keep[number] = True
                for tensor in op.operands:
                    needed[tensor] = True
            else:
                idle.append(number)
        left = idle if _need_through_ties(b, needed) else ()
    return keep, needed


def _need_through_ties(b: Builder, needed: list[bool]) -> bool:
    """Whether the other end of a tie is needed as well now."""
    changed = False
    for inside, outside in b.ties:
        if needed[inside] and not needed[outside]:
            needed[outside] = changed = True
        if needed[outside] and not needed[inside] and _is_carried(b, inside):
            needed[inside] = changed = True
    return changed


def _is_carried(b: Builder, tensor: int) -> bool:
    """Whether a tensor is the carry in a loop, which takes its initial value even where no pass reads it.

    Of a loop of one pass XLA leaves the body alone.
    """
    producer = b.tensors[tensor].producer
    op = b.ops[producer] if producer is not None else None
    return op is not None and op.kind == "loop_carry_in" and b.regions[op.region].length != 1


_EFFECTS = frozenset(("debug_callback", "io_callback", "debug_print", "check", "swap", "addupdate", "ref_set"))
