"""Walks over what is computed of what: along the ops that make a tensor, and over all that is reached from some things."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

from planner.program.graph import Graph, Op

T = TypeVar("T", bound=Hashable)


def source_through(graph: Graph, tensor: int, passes: Callable[[Op], bool]) -> int:
    """What a tensor is made of by ops that pass, from first operand to first operand: itself where its own does not."""
    while (op := graph.maker(tensor)) is not None and passes(op):
        tensor = op.operands[0]
    return tensor


def reached(starts: Iterable[T], following: Callable[[T], Iterable[T]]) -> Iterator[T]:
    """The starts and all that follows from them, each once, depth first."""
    left = list(starts)
    seen = set(left)
    while left:
        one = left.pop()
        yield one
        new = [other for other in dict.fromkeys(following(one)) if other not in seen]
        seen.update(new)
        left += new
