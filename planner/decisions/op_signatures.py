"""Forms: what the kind, the avals and the params of an op fix about how it is grouped; equal ops have one form.

Deep programs repeat the same ops time and again, so all that does not depend on where an op stands is found out once.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from planner.program.graph import Graph, Op
from planner.program.slots import BOUNDARY, ENTERING
from planner.rules.choose import op_rule
from planner.rules.factors import replicated
from planner.rules.primitives import traits
from planner.rules.rule import Rule


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpForm:
    """The rule of an op, and what follows from it.

    Without a rule (`unruled`) every dim is a factor that stays whole. `whole` are the factors that must not be split,
    `reduced` those that are reduced; `order` has the reduced ones and then those of operands and results in the order in
    which they first appear. `follows` are the positions of operands that may bring the op into another's group; `leads`
    says whether those who read its results may follow it.
    """

    rule: Rule
    unruled: bool
    by_shardy: bool
    fused: bool
    whole: tuple[int, ...]
    reduced: tuple[int, ...]
    order: tuple[int, ...]
    follows: tuple[int, ...]
    leads: bool


@dataclass
class Forms:
    """The forms of a graph's ops, each made once per kind, avals and params."""

    graph: Graph
    found: dict[Hashable, OpForm] = field(default_factory=dict[Hashable, OpForm])

    def of(self, op: Op) -> OpForm:
        """The form of an op."""
        numbers = self.graph.aval_numbers
        # Those of boundary ops say where in their loop they stand, which no rule asks.
        params = () if op.kind in BOUNDARY else tuple(op.params.items())
        key = (
            op.kind,
            tuple([numbers[t] for t in op.operands]),
            tuple([numbers[t] for t in op.results]),
            params,
            op.body,
        )
        try:
            form = self.found.get(key)
        except TypeError:  # a param that cannot be hashed
            return _form(self.graph, op)
        if form is None:
            form = self.found[key] = _form(self.graph, op)
        return form


def is_fused(op: Op) -> bool:
    """Whether a compiler folds this op into its neighbours' passes over memory."""
    return traits(op.kind).fused or op.kind in BOUNDARY


def _form(graph: Graph, op: Op) -> OpForm:
    found, by_shardy = op_rule(graph, op)
    operands, results = graph.avals(op.operands), graph.avals(op.results)
    rule = replicated(operands, results) if found is None else found
    fused = is_fused(op)
    whole = [f for f, kind in enumerate(rule.kinds) if kind == "replicate" or (kind == "permute" and fused)]
    reduced = [f for f, kind in enumerate(rule.kinds) if kind == "reduce"]
    seen = [f for dims in (*rule.operands, *rule.results) for dim in dims for f in dim]
    follower = fused and found is not None and op.kind not in ENTERING
    # What an op broadcasts is small and is left to its own group.
    least = max(2, results[0].size) if results else 2
    return OpForm(
        rule=rule,
        unruled=found is None,
        by_shardy=by_shardy,
        fused=fused,
        whole=tuple(whole),
        reduced=tuple(reduced),
        order=tuple(dict.fromkeys((*reduced, *seen))),
        follows=tuple(i for i, aval in enumerate(operands) if aval.size >= least) if follower else (),
        leads=fused and not reduced and op.kind not in ("loop_carry_out", "loop_stack"),
    )
