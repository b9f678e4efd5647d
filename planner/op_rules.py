"""Whose rule an op follows: one of ours, else one of Shardy's registry, else none."""

from __future__ import annotations

from dataclasses import dataclass, field

from planner.boundary_rules import BOUNDARY_RULES, manual_rule
from planner.factors import Rule
from planner.graph import Graph, Op
from planner.rules import rule_of
from planner.shardy import shardy_rule

Found = tuple[Rule | None, bool]
"""A rule, and whether it is Shardy's."""


@dataclass
class OpRules:
    """The rules of a graph's ops, each looked for once per primitive, avals and params."""

    graph: Graph
    by_shardy: list[int] = field(default_factory=list[int])
    """The ops asked for so far whose rule is Shardy's."""
    found: dict[object, Found] = field(default_factory=dict[object, Found])

    def of(self, op: Op) -> Rule | None:
        """The rule of an op; None where nothing says how to split it."""
        try:
            key = (op.kind, self._avals(op), tuple(sorted(op.params.items())))
            if key not in self.found:
                self.found[key] = self._find(op)
            rule, theirs = self.found[key]
        except TypeError:  # a param that cannot be hashed or ordered
            rule, theirs = self._find(op)
        if theirs:
            self.by_shardy.append(op.id)
        return rule

    def _avals(self, op: Op) -> object:
        tensors = self.graph.tensors
        return tuple(tensors[t].aval for t in op.operands), tuple(tensors[t].aval for t in op.results)

    def _find(self, op: Op) -> Found:
        tensors = self.graph.tensors
        operands = tuple(tensors[t].aval for t in op.operands)
        results = tuple(tensors[t].aval for t in op.results)
        if op.kind in BOUNDARY_RULES:
            return BOUNDARY_RULES[op.kind](operands, results), False
        if op.kind == "optimization_barrier":
            return BOUNDARY_RULES["branch_out"](operands, results), False
        if op.kind == "shard_map":
            return manual_rule(operands, results, op.params), False
        ours = rule_of(op.kind, operands, results, op.params)
        if ours is not None:
            return ours, False
        theirs = shardy_rule(op.primitive, operands, results, op.params)
        return theirs, theirs is not None
