"""A program without its checkpoints: what is saved of a layer is chosen, so that it begins alike however it is written.

What a backward pass computes again of the forward pass it reads of it: of loops everything is stacked, and layers written
out are opened. Loops over groups of layers are made one over all layers, and loops within layers then keep the least of a
pass. What only the backward pass computes, such as factors of derivatives, stays there, and so do views of what is saved.
"""

from __future__ import annotations

from collections.abc import Iterable

from planner.program.jaxpr.bodies import equations_of
from planner.program.jaxpr.canonicalize.broadcasts_in_loops import VIEWS
from planner.program.jaxpr.remat.nested_loops import is_loop, with_groups_joined, with_least_of_passes
from planner.program.jaxpr.remat.residuals import Crossing, Value
from planner.program.jaxpr.remat.rewrite_saved import with_saved
from planner.program.jaxpr.remat.scopes import Scope, scope_of
from planner.program.jaxpr.remat.unrolled_layers import WrittenOut, is_checkpoint
from planner.program.tracing.gc_pause import paused
from planner.program.tracing.traced import Program

HARDLY = 0.5
"""The part of what may be computed again with checkpoints below which their borders are missed without them."""


@paused()
def with_checkpoints_lifted(program: Program) -> Program | None:
    """The program with all saved of layers and as little as can be of passes within them; None where it is written so."""
    if not any(is_checkpoint(eqn) or is_loop(eqn) for eqn in equations_of(program.jaxpr)):
        return None
    scope = scope_of(program, by_checkpoints=True)
    joined = with_groups_joined(program, scope)
    saved = _all_saved(program, scope) if joined is None else _all_saved(joined, scope_of(joined, by_checkpoints=True))
    found = with_least_of_passes(saved) or saved
    return None if found is program else found


def _all_saved(program: Program, scope: Scope) -> Program:
    """A program whose layers save everything but views; the same object where it computes nothing again.

    `scope` is its own, by checkpoints. The same object, too, where only its checkpoints tell the borders of its layers:
    without them hardly anything could be chosen.
    """
    crossings = scope.crossed()
    again = (value for crossing in crossings for value in crossing.values if value.repeated)
    by_checkpoints = any(isinstance(found, WrittenOut) for found in scope.between())
    if not by_checkpoints and all(_is_view(value) or not value.forward for value in again):
        return program
    saved = {at: _but_for_views(crossing) for at, crossing in enumerate(crossings)}
    lifted = with_saved(program, scope, saved)
    if by_checkpoints and _choosable(scope_of(lifted).crossed()) < HARDLY * _choosable(crossings):
        return program
    return lifted


def _choosable(crossings: Iterable[Crossing]) -> float:
    """The bytes of what the forward pass makes and the backward pass may compute again."""
    values = ((crossing.length, value) for crossing in crossings for value in crossing.values)
    return sum(length * value.aval.bytes for length, value in values if value.forward and value.repeatable)


def _but_for_views(crossing: Crossing) -> list[int]:
    """The positions of what the forward pass makes that the backward pass reads, or views of it.

    Of layers written out views are saved too: what is computed again there stands behind barriers.
    """
    found: set[int] = set()
    waiting, seen = [i for i, value in enumerate(crossing.values) if value.needed], set[int]()
    while waiting:
        position = waiting.pop()
        value = crossing.values[position]
        if not value.repeatable or (value.forward and not (crossing.length > 1 and _is_view(value))):
            found.add(position)
        elif position not in seen:
            waiting += value.operands
        seen.add(position)
    return sorted(found)


def _is_view(value: Value) -> bool:
    return bool(value.steps) and all(step.kind in VIEWS for step in value.steps)
