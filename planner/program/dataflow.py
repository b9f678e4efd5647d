"""Walks over what is computed of what: along the ops that make a tensor, and over all that is reached from some things.

Also how far out of the loops around it a tensor could be computed, because no pass changes it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
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


LOOPS = ("scan", "while")


def outermost(graph: Graph) -> list[int]:
    """The region, per tensor, out to which loop-invariant code can be moved: its own, or one of those around it.

    What a loop takes in unchanged belongs outside of it, and so does what is computed from such tensors alone.
    Branches hold what is in them.
    """
    parents = [region.parent for region in graph.regions]
    depth: list[int] = []
    for parent in parents:
        depth.append(0 if parent is None else depth[parent] + 1)
    found = [0] * len(graph.tensors)
    for op in graph.ops:
        if op.kind == "loop_const":
            region = found[op.operands[0]]
        elif op.kind in ("loop_carry_out", "loop_stack"):
            region = parents[op.region] or 0
        elif op.kind.startswith(("loop_", "branch_")) or graph.regions[op.region].kind not in LOOPS:
            region = op.region
        else:
            region = max((found[t] for t in op.operands), key=lambda r: depth[r], default=op.region)
        for tensor in op.results:
            found[tensor] = region
    return found


def lifted(graph: Graph, tensor: int, region: int, outermost: Sequence[int]) -> tuple[int, int]:
    """The region to which the move of a tensor that is read in `region` can be lifted out of loops, and in how many copies.

    Each copy of the body of an unrolled loop gives one.
    """
    copies = 1
    # A body has a higher number than what is around it; what a branch returns is made further inside than it is read.
    while region > outermost[tensor]:
        place = graph.regions[region]
        if place.parent is None or place.kind not in LOOPS:
            break
        copies *= place.copies
        region = place.parent
    return region, copies
