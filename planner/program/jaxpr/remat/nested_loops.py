"""Loops within layers that keep as little as can be of a pass for the backward pass of the same layer.

A layer may have a loop of its own, as attention over blocks of queries. What such a loop stacks of a pass depends on the
checkpoints of the program: nothing, or the scores of all blocks. Whether layers save or compute again is chosen by whole
results of such loops, so that a layer whose loop stacks scores has them all at a time. So there is a second form of a
program: the backward loop of a layer's loop computes again what it needs of a pass, but for what the loop carries and what
cannot be computed again. It is found in two steps, each of which is what `with_saved` does: the backward pass of every
layer computes the layer's loops again, whose pairs then stand in one body; and these save what they must.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax.extend.core as jex_core

from planner.program.jaxpr.bodies import equations_of, structure_of
from planner.program.jaxpr.canonicalize.joined_loops import with_loops_joined
from planner.program.jaxpr.remat.loop_pairs import Pair
from planner.program.jaxpr.remat.residuals import Between, crossing_of
from planner.program.jaxpr.remat.rewrite_saved import with_saved
from planner.program.jaxpr.remat.scopes import Scope, scope_of
from planner.program.tracing.traced import Program


def with_least_of_passes(program: Program) -> Program | None:
    """A program whose loops within layers keep as little as can be of a pass; None where they do as it is written."""
    if not any(map(is_loop, equations_of(program.jaxpr))):
        return None
    scope = scope_of(program)
    together = {at: list(_but_for_loops(crossing)) for at, crossing in _with_stacks_of_loops(scope)}
    joined = with_saved(program, scope, together) if together else program
    within = scope_of(joined, within_layers=True)
    least: dict[int, list[int]] = {}
    gains = False
    for at, crossing in enumerate(within.crossed()):
        least[at] = [i for i, value in enumerate(crossing.values) if not value.repeatable]
        gains |= any(value.saved and value.repeatable for value in crossing.values)
    return with_saved(joined, within, least) if gains else None


def with_groups_joined(program: Program, scope: Scope) -> Program | None:
    """A program whose loops over groups of layers are loops over layers; None where it has no such loops.

    `scope` is its own, by checkpoints. If all is saved, so that no pass of a group stands in its backward pass, the bodies
    of both loops are one loop each.
    """
    saved: dict[int, list[int]] = {}
    for position, crossing in enumerate(scope.between()):
        if sum(is_loop(eqn) for eqn in crossing.late) == 1 and sum(map(is_loop, crossing.forward_eqns)) == 1:
            values = crossing_of(crossing).values
            saved[position] = [i for i, value in enumerate(values) if value.forward or not value.repeatable]
    if not saved:
        return None
    alone = with_saved(program, scope, saved)
    jaxpr = with_loops_joined(alone.jaxpr)
    joined = replace(alone, jaxpr=jaxpr)
    # Where only the loops of one of the passes could be joined, no pair of loops is left.
    return None if jaxpr is alone.jaxpr or _count(scope_of(joined, by_checkpoints=True)) < _count(scope) else joined


def _count(scope: Scope) -> int:
    """How many pairs of loops, or layers written out, there are."""
    return sum(1 for _ in scope.between())


def _with_stacks_of_loops(scope: Scope) -> Iterator[tuple[int, Between]]:
    """The crossings of layers, by position, in whose backward pass a loop reads what a loop of the layer has stacked."""
    for position, crossing in enumerate(scope.between()):
        stacked = _made_by_loops(crossing)
        for eqn in crossing.late if stacked else ():
            structure = structure_of(eqn)
            if structure is not None and is_loop(eqn):
                sliced = eqn.invars[structure.num_consts + structure.num_carry :]
                if not stacked.isdisjoint(crossing.number_of(atom) for atom in sliced if not _is_literal(atom)):
                    yield position, crossing
                    break


def _made_by_loops(crossing: Between) -> set[int]:
    """The numbers of what loops of the layer make."""
    found: set[int] = set()
    for number in crossing.order:
        made = crossing.made.get(number)
        if made is not None and is_loop(made.eqn):
            found.add(number)
    return found


def _but_for_loops(crossing: Between) -> Iterator[int]:
    """The positions of what is saved where the backward pass of a layer computes its loops again.

    Of layers written out all is saved: there the loops of both passes are in one body anyway.
    """
    loops = _made_by_loops(crossing) if isinstance(crossing, Pair) else set[int]()
    for position, (number, value) in enumerate(zip(crossing.order, crossing_of(crossing).values, strict=True)):
        if not value.repeatable or (value.forward and number not in loops):
            yield position


def is_loop(eqn: Any) -> bool:
    """Whether an equation is a loop of known length."""
    structure = structure_of(eqn)
    return structure is not None and structure.kind == "scan"


def _is_literal(atom: object) -> bool:
    return isinstance(atom, jex_core.Literal)
