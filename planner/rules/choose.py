"""Whose rule an op follows: one of ours, else one of Shardy's registry, else none.

Factor rules of what encloses a body: boundary ops of loops and branches (see `jaxpr.flatten`), and `shard_map`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from planner.program.graph import Aval, Graph, Op
from planner.program.spec_entries import parts_over
from planner.rules.factors import Factors, replicated
from planner.rules.primitives import rule_of, traits
from planner.rules.rule import Dim, Kind, Rule
from planner.rules.shardy import shardy_rule


def _identity(operands: Sequence[Aval], results: Sequence[Aval]) -> Rule:
    """Every dim passes through unchanged, from each operand to the one result (or to none)."""
    factors = Factors()
    dims = factors.dims(operands[0].shape)
    return factors.rule([dims] * len(operands), [dims] * len(results))


def _stacked(operands: Sequence[Aval], results: Sequence[Aval]) -> Rule:
    """One side has the trips stacked in front; that dim stays whole, or every trip would fetch its slice."""
    (operand,), (result,) = operands, results
    entering = len(operand.shape) > len(result.shape)
    outer, inner = (operand, result) if entering else (result, operand)
    factors = Factors()
    trips, body = factors.dim(outer.shape[0], "replicate"), factors.dims(inner.shape)
    stacked = (trips, *body)
    return factors.rule([stacked if entering else body], [body if entering else stacked])


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
                rest = extent // parts_over(axes, params["mesh"])
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


def op_rule(graph: Graph, op: Op) -> tuple[Rule | None, bool]:
    """The rule of an op (None where nothing says how to split it), and whether it is Shardy's."""
    operands, results = graph.avals(op.operands), graph.avals(op.results)
    if op.kind in BOUNDARY_RULES:
        return BOUNDARY_RULES[op.kind](operands, results), False
    if op.kind == "shard_map":
        return manual_rule(operands, results, op.params), False
    if traits(op.kind).collective is not None:
        return replicated(operands, results), False  # it stands in a body that runs on one device's parts
    ours = rule_of(op.kind, operands, results, op.params)
    if ours is not None:
        return ours, False
    theirs = shardy_rule(op.primitive, operands, results, op.params)
    return theirs, theirs is not None
