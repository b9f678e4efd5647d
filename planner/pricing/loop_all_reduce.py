"""Loop sums: partial results that a loop adds up as they are, to be summed over devices once behind it.

A sum over devices in every trip of a recurrence waits thousands of times for a few bytes. Where all that is added to an
accumulator is partial over the same axes, and the accumulator itself is not split by them, every device adds up its own
part, and what stands behind the loop is the sum of all. Asked of a choice and of the constraints that stand for it alike.
"""

from __future__ import annotations

from typing import Protocol

from planner.decisions.loop_accumulators import Accumulator, Term
from planner.program.graph import Op

Axes = tuple[tuple[str, ...], ...]
"""The names of the mesh axes that split every dim of an array."""


class Placed(Protocol):
    """How the ops of a program are split."""

    def operand(self, op: Op, position: int) -> Axes:
        """How one operand of an op is."""
        ...

    def result(self, op: Op) -> Axes:
        """How the first result of an op is, once it is summed."""
        ...

    def summed_alone(self, op: Op) -> bool:
        """Whether the first result of an op is summed over devices in place, and not moved besides."""
        ...


def axes_after_loop(accumulator: Accumulator, placed: Placed) -> frozenset[str]:
    """The axes over which an accumulator is summed behind its loop; none where it is whole, or summed in every trip."""
    over = {_partial_over(term, placed) for term in accumulator.terms}
    axes = over.pop()
    if over or not all(placed.summed_alone(term.op) for term in accumulator.terms):
        return frozenset()
    held = (*(term.op for term in accumulator.terms), *accumulator.through, accumulator.enters)
    return frozenset() if _split(held, placed, axes) else axes


def _partial_over(term: Term, placed: Placed) -> frozenset[str]:
    """The axes that split what an op reduces."""
    reduced = {factor for factor, kind in enumerate(term.rule.kinds) if kind == "reduce"}
    return frozenset(
        name
        for position, dims in enumerate(term.rule.operands)
        for dim, names in zip(dims, placed.operand(term.op, position), strict=True)
        if reduced.intersection(dim)
        for name in names
    )


def _split(ops: tuple[Op, ...], placed: Placed, axes: frozenset[str]) -> bool:
    """Whether any of these axes splits the result of any of these ops."""
    return any(axes.intersection(names) for op in ops for names in placed.result(op))
