"""Places: where in a program a constraint can stand, and how ops that cross the border of a body are told apart."""

from __future__ import annotations

from typing import Literal, NamedTuple

from planner.program.graph import Op, Path

BOUNDARY = frozenset(
    ("loop_const", "loop_carry_in", "loop_carry_out", "loop_slice", "loop_stack", "branch_in", "branch_out")
)

ENTERING = frozenset(("loop_const", "loop_carry_in", "loop_slice", "branch_in"))
"""Boundary ops whose operand lives in the parent of their region."""

LEAVING = frozenset(("loop_carry_out", "loop_stack", "branch_out"))
"""Boundary ops whose result lives in the parent of their region."""

TAKEN_IN = frozenset(("loop_const", "loop_slice"))
"""Boundary ops by which a loop takes in what no trip changes, in memory that its body does not own."""

ALWAYS_THERE = TAKEN_IN | {"branch_in"}
"""How a body takes in what is there before it runs; what its last trip made is not."""

SlotKind = Literal["operand", "result", "invar", "outvar"]

Slot = tuple[SlotKind, Path, int]
"""A place where a constraint can stand: an operand or result of an equation, or an input or output of a body."""


class Refetch(NamedTuple):
    """What an operand that is fetched again waits for: the result at `behind`, once the first `shared` of its constraints,
    which others that read its array have too, are laid."""

    shared: int
    behind: Slot


def operand_slot(op: Op, position: int) -> Slot:
    """The place where emission can constrain what an op reads at a position."""
    if op.kind == "optimization_barrier":
        return "operand", op.path, op.params["position"]
    if op.kind not in BOUNDARY:
        return "operand", op.path, position
    if op.kind in ENTERING:
        return "operand", op.path, op.params["outer"]
    return "outvar", read_in(op, position), op.params["inner"]


def result_slot(op: Op, position: int) -> Slot:
    """The place where emission can constrain what an op makes at a position."""
    if op.kind == "optimization_barrier":
        return "result", op.path, op.params["position"]
    if op.kind not in BOUNDARY:
        return "result", op.path, position
    if op.kind in ENTERING:
        return "invar", (*op.path, op.params["body"]), op.params["inner"]
    return "result", op.path, op.params["outer"]


def read_in(op: Op, position: int) -> Path:
    """The path of the body in which an op reads an operand."""
    if op.kind == "branch_out":
        return (*op.path, op.params["bodies"][position])
    return (*op.path, op.params["body"]) if op.kind in LEAVING else op.path[:-1]
