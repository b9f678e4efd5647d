"""Places: where in a program a constraint can stand, and how ops that cross the border of a body are told apart."""

from __future__ import annotations

from typing import Literal

from planner.graph import Op, Path

BOUNDARY = frozenset(
    ("loop_const", "loop_carry_in", "loop_carry_out", "loop_slice", "loop_stack", "branch_in", "branch_out")
)

ENTERING = frozenset(("loop_const", "loop_carry_in", "loop_slice", "branch_in"))
"""Boundary ops whose operand lives in the parent of their region."""

LEAVING = frozenset(("loop_carry_out", "loop_stack", "branch_out"))
"""Boundary ops whose result lives in the parent of their region."""

SlotKind = Literal["operand", "result", "invar", "outvar"]

Slot = tuple[SlotKind, Path, int]
"""A place where a constraint can stand: an operand or result of an equation, or an input or output of a body."""


def slots(op: Op) -> tuple[tuple[tuple[Slot, ...], ...], tuple[tuple[Slot, ...], ...]]:
    """The places of each operand and of each result of an op; a place is where emission can constrain it."""
    if op.kind == "optimization_barrier":
        position = op.params["position"]
        return ((("operand", op.path, position),),), ((("result", op.path, position),),)
    if op.kind not in BOUNDARY:
        return (
            tuple((("operand", op.path, i),) for i in range(len(op.operands))),
            tuple((("result", op.path, i),) for i in range(len(op.results))),
        )
    outer, inner = op.params["outer"], op.params["inner"]
    if op.kind == "branch_out":
        return (
            tuple((("outvar", (*op.path, body), inner),) for body in op.params["bodies"]),
            ((("result", op.path, outer),),),
        )
    body = (*op.path, op.params["body"])
    if op.kind in ENTERING:
        return ((("operand", op.path, outer),),), ((("invar", body, inner),),)
    return ((("outvar", body, inner),),), ((("result", op.path, outer),),)
