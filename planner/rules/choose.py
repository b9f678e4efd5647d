"""Whose rule an op follows: one of ours, else one of Shardy's registry, else none."""

from __future__ import annotations

from planner.program.graph import Graph, Op
from planner.rules.boundary import BOUNDARY_RULES, manual_rule
from planner.rules.factors import replicated
from planner.rules.primitives import rule_of, traits
from planner.rules.rule import Rule
from planner.rules.shardy import shardy_rule


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
