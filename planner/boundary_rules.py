"""Factor rules of what encloses a body: boundary ops of loops and branches (see `planner.trace`), and `shard_map`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

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


def manual_rule(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> Rule | None:
    """The rule of a `shard_map`: a factor for each axis of its mesh, in every dim that the axis splits; the rest is whole.

    Its only strategy splits every factor by the axis it stands for. None where it demands what a plan cannot say.
    """
    names = list(params["mesh"])
    sizes = list(params["mesh"].values())
    kinds: list[Kind] = ["pass"] * len(names)
    sides: list[tuple[tuple[Dim, ...], ...]] = []
    for avals, specs in ((operands, params["operand_specs"]), (results, params["result_specs"])):
        side: list[tuple[Dim, ...]] = []
        for aval, spec in zip(avals, specs, strict=True):
            if spec is None:
                return None
            dims: list[Dim] = []
            for extent, axes in zip(aval.shape, spec, strict=True):
                factors = [names.index(axis) for axis in axes if params["mesh"][axis] > 1]
                rest = extent // math.prod(params["mesh"][axis] for axis in axes)
                if rest != 1:
                    sizes.append(rest)
                    kinds.append("replicate")
                    factors.append(len(sizes) - 1)
                dims.append(tuple(factors))
            side.append(tuple(dims))
        sides.append(tuple(side))
    return Rule(operands=sides[0], results=sides[1], sizes=tuple(sizes), kinds=tuple(kinds))


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
