"""Accumulators: what a loop only adds to in every trip, such as the gradient of weights that a recurrence reads.

Partial results that are only added to one another may stay partial while a loop runs, and be summed over devices once
behind it. Where they may is the same for all meshes; where they do, see `pricing.loop_all_reduce`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from planner.program.dataflow import LOOPS, source_through
from planner.program.graph import Graph, Op
from planner.rules.primitives import rule_of_op, traits
from planner.rules.rule import Rule


class Term(NamedTuple):
    """An op that reduces, whose result is added to an accumulator, and the rule by which it does."""

    op: Op
    rule: Rule


class Accumulator(NamedTuple):
    """A carry that nothing but its own sum reads: the ops by which it `enters` and `leaves` its loop, what is added to it,
    and the ops that make it of its terms (`through`)."""

    enters: Op
    leaves: Op
    terms: tuple[Term, ...]
    through: tuple[Op, ...]


def accumulators(graph: Graph) -> tuple[Accumulator, ...]:
    """The accumulators of a graph; of one that a loop inside adds to as well, the outermost."""
    first = {outside: inside for inside, outside in graph.ties}
    found: list[Accumulator] = []
    for inside, outside in graph.ties:
        enters, leaves = graph.maker(inside), graph.maker(outside)
        if enters is None or leaves is None or graph.regions[enters.region].kind not in LOOPS:
            continue
        through: list[Op] = []
        terms = _added(graph, inside, leaves, first, through)
        if terms:
            found.append(Accumulator(enters, leaves, tuple(terms), tuple(through)))
    within = {op.id for accumulator in found for op in accumulator.through}
    return tuple(accumulator for accumulator in found if accumulator.enters.id not in within)


def _added(graph: Graph, carry: int, leaves: Op, first: Mapping[int, int], through: list[Op]) -> list[Term]:
    """The ops that reduce to what a loop adds to its carry, which it returns by the op `leaves`; none if it does else.

    Takes down the ops in between. `first` are carries as loops begin a trip, by what they leave these as.
    """
    (returned,), region = leaves.operands, leaves.region
    made = graph.maker(returned)
    if made is None or not _read_once(graph, returned, region):
        return []
    through.append(made)
    if made.kind == "loop_carry_out":
        # A loop inside, which takes the carry for its own, adds to it.
        enters = graph.maker(first[returned]) if returned in first else None
        if enters is None or enters.operands[0] != carry or not _read_once(graph, carry, made.region):
            return []
        through.append(enters)
        return _added(graph, enters.results[0], made, first, through)
    if traits(made.kind).updates is not None:
        # To a slice of it, which is read where it is written.
        reads = _slice_updated(graph, carry, made)
        added = graph.maker(made.operands[1])
        if reads is None or added is None or not _read_once(graph, made.operands[1], region):
            return []
        through += (reads, added)
        carry, made = reads.results[0], added
    if not traits(made.kind).adds or made.operands.count(carry) != 1 or not _read_once(graph, carry, region):
        return []
    first_term, second = made.operands
    if second == carry and made.kind == "sub":
        return []
    return _terms(graph, first_term if second == carry else second, region, through)


def _slice_updated(graph: Graph, carry: int, update: Op) -> Op | None:
    """The op that reads the slice of a carry over which another writes, where these two alone read the carry."""
    readers = graph.readers(carry)
    reads = next((op for op in readers if op.kind == "dynamic_slice"), None)
    if (
        reads is None
        or update.kind != "dynamic_update_slice"
        or sorted(op.id for op in readers) != [reads.id, update.id]
    ):
        return None
    whole, part = graph.tensors[carry].aval.shape, graph.tensors[reads.results[0]].aval.shape
    places = zip(whole, part, reads.operands[1:], update.operands[2:], strict=True)
    # Numbers of the program's own are not told apart.
    alike = all(
        all_of_it == extent or (start == at and graph.maker(start) is not None)
        for all_of_it, extent, start, at in places
    )
    return (
        reads
        if alike and update.operands[0] == carry and part == graph.tensors[update.operands[1]].aval.shape
        else None
    )


def _terms(graph: Graph, tensor: int, region: int, through: list[Op]) -> list[Term]:
    """The ops that reduce to what a tensor is the sum of, if it is that of nothing else. Takes down the ops in between."""
    op = graph.maker(tensor)
    if op is None or op.region != region or not _read_once(graph, tensor, region):
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
    """A sum of updates, where these are added to zeros."""
    zeros = graph.maker(source_through(graph, op.operands[0], lambda op: op.kind == "loop_const"))
    rule = rule_of_op(graph, op)
    if zeros is None or zeros.kind != "broadcast_in_dim" or (zeros.path, 0) not in graph.zeros or rule is None:
        return []
    if not rule.single or rule.combiner != "add" or "reduce" not in rule.kinds:
        return []
    return [Term(op, rule)]


def _read_once(graph: Graph, tensor: int, region: int) -> bool:
    """Whether one op alone reads a tensor, in the same body."""
    readers = graph.consumers[tensor]
    return len(readers) == 1 and graph.ops[readers[0][0]].region == region and tensor not in graph.returned
