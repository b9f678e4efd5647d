"""Factor rules of the boundary ops that enter and leave loop and branch bodies (see `planner.trace`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from planner.factors import Dim, Kind, Rule
from planner.graph import Aval


def _identity(operands: Sequence[Aval], results: Sequence[Aval]) -> Rule:
    """Every dim passes through unchanged, from each operand to the one result (or to none)."""
    shape = operands[0].shape
    sizes = tuple(extent for extent in shape if extent != 1)
    dims = _number(shape)
    return Rule(
        operands=tuple(dims for _ in operands),
        results=tuple(dims for _ in results),
        sizes=sizes,
        kinds=("pass",) * len(sizes),
    )


def _number(shape: Sequence[int], start: int = 0) -> tuple[Dim, ...]:
    dims: list[Dim] = []
    for extent in shape:
        dims.append(() if extent == 1 else (start,))
        start += extent != 1
    return tuple(dims)


def _stacked(operands: Sequence[Aval], results: Sequence[Aval]) -> Rule:
    """One side has the trips stacked in front; that dim stays whole, or every trip would fetch its slice."""
    outer, inner = sorted((operands[0].shape, results[0].shape), key=len, reverse=True)
    trips = 1 if outer[0] != 1 else 0
    body = _number(inner, trips)
    stacked: tuple[Dim, ...] = ((0,) if trips else (), *body)
    sizes = outer[:trips] + tuple(extent for extent in inner if extent != 1)
    kinds: tuple[Kind, ...] = ("replicate",) * trips + ("pass",) * (len(sizes) - trips)
    entering = len(operands[0].shape) == len(outer)
    return Rule(
        operands=(stacked if entering else body,),
        results=(body if entering else stacked,),
        sizes=sizes,
        kinds=kinds,
    )


BOUNDARY_RULES: Mapping[str, Callable[[Sequence[Aval], Sequence[Aval]], Rule]] = {
    "branch_in": _identity,
    "branch_out": _identity,
    "loop_carry_in": _identity,
    "loop_carry_out": _identity,
    "loop_const": _identity,
    "loop_slice": _stacked,
    "loop_stack": _stacked,
    "loop_test": _identity,
}
