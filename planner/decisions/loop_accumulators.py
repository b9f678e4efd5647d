"""Accumulators: what a loop only adds to in every trip, such as the gradient of weights that a recurrence reads.

Partial results that are only added to one another may stay partial while a loop runs, and be summed over devices once
behind it. Where they may is the same for all meshes; where they do, see `one_mesh.loop_sums`.
"""

from __future__ import annotations

from typing import NamedTuple

from planner.program.dataflow import LOOPS, source_through
from planner.program.graph import Graph, Op
from planner.rules.primitives import rule_of_op, traits
from planner.rules.rule import Rule


class Term(NamedTuple):
    """An op that reduces, whose result is added to an accumulator, and the rule by which it does.

    `whole` are the factors that must not be split for its parts to give partial results.
    """

    op: Op
    rule: Rule
    whole: frozenset[int] = frozenset()


class Accumulator(NamedTuple):
    """A carry that nothing but its own sum reads: the ops by which it `enters` and `leaves` its loop, what is added to it,
    and the ops that make it of its terms (`through`)."""

    enters: Op
    leaves: Op
    terms: tuple[Term, ...]
    through: tuple[Op, ...]


def accumulators(graph: Graph) -> tuple[Accumulator, ...]:
    """The accumulators of a graph."""
    found: list[Accumulator] = []
    for inside, outside in graph.ties:
        enters, leaves = graph.maker(inside), graph.maker(outside)
        if enters is None or leaves is None or graph.regions[enters.region].kind not in LOOPS:
            continue
        added = graph.maker(leaves.operands[0])
        if added is None or not traits(added.kind).adds or not _read_once(graph, leaves.operands[0], enters.region):
            continue
        if added.operands.count(inside) != 1 or not _read_once(graph, inside, enters.region):
            continue
        first, second = added.operands
        if second == inside and added.kind == "sub":
            continue
        through = [added]
        terms = _terms(graph, first if second == inside else second, enters.region, through)
        if terms:
            found.append(Accumulator(enters, leaves, tuple(terms), tuple(through)))
    return tuple(found)


def _terms(graph: Graph, tensor: int, region: int, through: list[Op]) -> list[Term]:
    """The ops that reduce to what a tensor is the sum of, if it is that of nothing else. Takes down the ops in between."""
    op = graph.maker(tensor)
    if op is None or not _read_once(graph, tensor, region):
        return []
    if op.kind == "loop_stack" and graph.regions[op.region].parent == region:
        # What every trip of a loop inside adds its slice of.
        through.append(op)
        return _terms(graph, op.operands[0], op.region, through)
    if op.region != region:
        return []
    row = traits(op.kind)
    if op.kind == "scatter-add":
        return _scattered(graph, op)
    if row.partial_on_parts:
        rule = rule_of_op(graph, op)
        if rule is None or not rule.single or rule.combiner != "add" or row.slides is not None:
            return []
        if "reduce" in rule.kinds:
            return [Term(op, rule)]
    through.append(op)
    # What sums over dims of a single element is a reshape.
    if len(op.operands) == 1 and (row.carries or row.partial_on_parts):
        return _terms(graph, op.operands[0], region, through)
    if row.adds:
        sides = [_terms(graph, operand, region, through) for operand in op.operands]
        return sides[0] + sides[1] if all(sides) else []
    ways = [(list[Op](), op.operands[i]) for i in row.linear_in]
    found = [(terms, met) for met, operand in ways if (terms := _terms(graph, operand, region, met))]
    if len(found) != 1:
        return []
    through += found[0][1]
    return found[0][0]


def _scattered(graph: Graph, op: Op) -> list[Term]:
    """A sum of updates, where these are added to zeros: by places along dims that must be whole then."""
    zeros = graph.maker(source_through(graph, op.operands[0], lambda op: op.kind == "loop_const"))
    rule = rule_of_op(graph, op)
    if zeros is None or zeros.kind != "broadcast_in_dim" or (zeros.path, 0) not in graph.zeros or rule is None:
        return []
    if not rule.single or rule.combiner != "add" or "reduce" not in rule.kinds:
        return []
    updated = {factor for dim in rule.operands[2] for factor in dim}
    return [Term(op, rule, frozenset(factor for dim in rule.operands[0] for factor in dim) - updated)]


def _read_once(graph: Graph, tensor: int, region: int) -> bool:
    """Whether one op alone reads a tensor, in the same body."""
    readers = graph.consumers[tensor]
    return len(readers) == 1 and graph.ops[readers[0][0]].region == region and tensor not in graph.returned
