"""States: how arrays of a program hang on the batch, and how ops pass that on, by their factor rules.

whole     the same whatever the batch part; `zero` where it is known to be zeros
part      made part by part: `part` says where the batch lies in it
sum       the sum over all parts of what each makes, and nothing else
late      neither: there only once all parts are done, because of the ops `causes`; `wide` if it is as large as the batch

A sum that is only scaled, moved or added to other sums is a sum again; what else reads it is late.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from planner.program.batch_parts import Part
from planner.program.graph import Graph, Op
from planner.program.slots import BOUNDARY
from planner.rules.kernels.kernel_parts import runs_on_parts
from planner.rules.primitives import traits
from planner.rules.rule import Dims, Rule

MOST_CAUSES = 8
"""How many ops are kept as the reasons why an array is late, or the makers of a sum."""


class State(NamedTuple):
    """How an array hangs on the batch, see the module. `causes` of a sum are the ops that sum over the batch."""

    kind: Literal["zero", "whole", "part", "sum", "late"]
    part: Part | None = None
    causes: tuple[int, ...] = ()
    wide: bool = False


WHOLE, ZERO = State("whole"), State("zero")


def late(causes: Sequence[int], *, wide: bool = False) -> State:
    return State("late", None, tuple(sorted(set(causes)))[:MOST_CAUSES], wide)


def summed(causes: Sequence[int]) -> State:
    return State("sum", None, tuple(sorted(set(causes)))[:MOST_CAUSES])


def joined(a: State, b: State, op: Op) -> State:
    """The state of what is either of two arrays: a carry first and later, the result of branches."""
    if "late" in (a.kind, b.kind):
        return late((*a.causes, *b.causes), wide=a.wide or b.wide)
    if a.kind == "sum" and b.kind == "sum":
        return summed((*a.causes, *b.causes))
    for one, other in ((a, b), (b, a)):
        if one.kind == "zero" or one == other or (one.kind == "whole" and other.kind == "part"):
            return other
    return late((*a.causes, *b.causes, op.id), wide="part" in (a.kind, b.kind))


class Met(NamedTuple):
    """The results of an op, and by position the parts that it reads of operands which are whole."""

    results: tuple[State, ...]
    cut: Mapping[int, Part]


@dataclass(frozen=True, kw_only=True)
class Passing:
    """How ops pass states on in one program, whose batch has `extent` examples."""

    graph: Graph
    extent: int
    rule: Callable[[Op], Rule | None]
    defers: Callable[[Op], bool]
    """Whether an op that makes a sum of a sum is better run once behind all parts."""

    def of(self, op: Op, states: Sequence[State]) -> Met:
        """What an op makes of operands in these states."""
        kinds = {state.kind for state in states}
        if "late" in kinds:
            causes = [cause for state in states if state.kind == "late" for cause in state.causes]
            return self._late(op, states, causes)
        if "part" in kinds:
            return self._of_parts(op, states)
        if op.kind == "branch_out":
            found = states[0]
            for state in states[1:]:
                found = joined(found, state, op)
            return Met((found,) * len(op.results), {})
        if "sum" in kinds:
            causes = [cause for state in states if state.kind == "sum" for cause in state.causes]
            if self._passes_sums(op, states) and not self.defers(op):
                return Met((summed(causes),) * len(op.results), {})
            return self._late(op, states, causes)
        zero = "zero" in kinds and self._passes_sums(op, states)
        return Met((ZERO if zero else WHOLE,) * len(op.results), {})

    def _late(self, op: Op, states: Sequence[State], causes: Sequence[int]) -> Met:
        wide = any(state.kind == "part" or state.wide for state in states)
        return Met(
            tuple(
                late(causes, wide=wide and self.graph.tensors[result].aval.size >= self.extent) for result in op.results
            ),
            {},
        )

    def _passes_sums(self, op: Op, states: Sequence[State]) -> bool:
        """Whether an op gives of sums (or zeros) the sum of its results."""
        if op.kind in BOUNDARY:
            return True
        moving = [i for i, state in enumerate(states) if state.kind in ("sum", "zero")]
        row, dtypes = traits(op.kind), [self.graph.tensors[t].aval.dtype for t in (*op.operands, *op.results)]
        if any(not _is_number(dtypes[i]) for i in moving) or not all(map(_is_number, dtypes[len(states) :])):
            return False
        if op.kind == "convert_element_type" and not (_is_inexact(dtypes[-1]) or dtypes[0] == dtypes[-1]):
            return False
        added = tuple(range(len(states))) if row.additive == "all" else row.additive
        if added:
            return all(states[i].kind in ("sum", "zero") for i in added) and set(moving) <= set(added)
        alone = (0, 1) if row.matmul else row.linear_in
        sums = [i for i, state in enumerate(states) if state.kind == "sum"]
        exact = op.kind != "div" or _is_inexact(dtypes[0])
        if not sums:  # zeros alone
            return exact and any(i in alone for i in moving)
        return exact and len(sums) == 1 and sums[0] in alone

    def _of_parts(self, op: Op, states: Sequence[State]) -> Met:
        alone = self._late(op, states, (op.id,))
        rule = self.rule(op)
        if rule is None or not op.results:
            return alone
        places = {
            locate(rule, rule.operands[i], state.part, self.extent)
            for i, state in enumerate(states)
            if state.part is not None
        }
        place = places.pop()
        if place is None or places:
            return alone
        parts = [_part_in(rule, dims, place, self.extent) for dims in rule.operands]
        made = [_part_in(rule, dims, place, self.extent) for dims in rule.results]
        kind, summing = rule.kinds[place.factor], False
        if kind == "reduce":
            summing = rule.combiner == "add" and not any(made) and self._sums_parts(op, states, parts)
        elif kind != "pass" or not all(made) or not _acts_alike_on_parts(op, rule, place):
            return alone
        if kind == "reduce" and not summing:
            return alone
        sums = [i for i, state in enumerate(states) if state.kind == "sum"]
        if sums and not (summing and op.kind == "scatter-add" and sums == [0]):
            causes = [cause for i in sums for cause in states[i].causes]
            return self._late(op, states, causes)
        cut = {
            i: part
            for i, (state, part) in enumerate(zip(states, parts, strict=True))
            if part is not None and state.kind in ("whole", "zero")
        }
        if summing:
            causes = [cause for i in sums for cause in states[i].causes]
            return Met((summed((*causes, op.id)),) * len(op.results), cut)
        return Met(tuple(State("part", part) for part in made), cut)

    def backwards(self, op: Op, position: int, part: Part) -> dict[int, Part] | None:
        """The parts of its operands of which an op makes a part of a result; None where a part is not made of parts."""
        rule = self.rule(op)
        place = None if rule is None else locate(rule, rule.results[position], part, self.extent)
        if rule is None or place is None or rule.kinds[place.factor] != "pass":
            return None
        found = [_part_in(rule, dims, place, self.extent) for dims in rule.operands]
        alike = _acts_alike_on_parts(op, rule, place) and all(
            _part_in(rule, dims, place, self.extent) for dims in rule.results
        )
        if not alike or (not any(found) and op.kind != "broadcast_in_dim"):
            return None
        return {i: there for i, there in enumerate(found) if there is not None}

    def _sums_parts(self, op: Op, states: Sequence[State], parts: Sequence[Part | None]) -> bool:
        """Whether an op that reduces over the batch gives of a part what that adds to the whole."""
        row = traits(op.kind)
        if op.kind == "scatter-add":
            return states[0].kind in ("zero", "sum") and parts[0] is None
        if op.kind == "conv_general_dilated":
            numbers, groups = op.params["dimension_numbers"], op.params["feature_group_count"]
            return groups == 1 and parts[0] is not None and parts[0].dim in numbers.lhs_spec[:2]
        return runs_on_parts(op) or (row.partial_on_parts and row.slides is None)


class Place(NamedTuple):
    """Where the batch lies in the factors of a rule: `factor` counts `before` times the batch times the rest."""

    factor: int
    before: int


def locate(rule: Rule, dims: Dims, part: Part, extent: int) -> Place | None:
    """The factor in which the batch lies whole; None where several share it."""
    passed = 1
    for factor in dims[part.dim]:
        size = rule.sizes[factor]
        if part.before % (passed * size) == 0:
            passed *= size
            continue
        before = part.before // passed
        if part.before % passed or size % (before * extent):
            return None
        return Place(factor, before)
    return None


def _part_in(rule: Rule, dims: Dims, place: Place, extent: int) -> Part | None:
    """Where the batch lies in an array with these dims; None where it does not."""
    for number, dim in enumerate(dims):
        if place.factor in dim:
            at = dim.index(place.factor)
            before, after = place.before, rule.sizes[place.factor] // (place.before * extent)
            for factor in dim[:at]:
                before *= rule.sizes[factor]
            for factor in dim[at + 1 :]:
                after *= rule.sizes[factor]
            return Part(number, before, after)
    return None


def _acts_alike_on_parts(op: Op, rule: Rule, place: Place) -> bool:
    """Whether an op makes of the parts of its operands the part of its result, without knowing which part it is."""
    row = traits(op.kind)
    if op.kind == "shard_map" or (row.opaque and not runs_on_parts(op)):
        return False
    if row.draws:  # by the number of an element, unless every element has a key of its own
        return any(place.factor in dim for dim in rule.operands[0])
    if row.updates is not None:  # by places along the dim, unless what is written has it, too
        return any(place.factor in dim for dim in rule.operands[row.updates])
    if op.kind == "conv_general_dilated":
        numbers = op.params["dimension_numbers"]
        return op.params["batch_group_count"] == 1 and any(
            place.factor in rule.operands[side][spec[at]]
            for side, spec, at in ((0, numbers.lhs_spec, 0), (1, numbers.rhs_spec, 0))
            if side == 0 or op.params["feature_group_count"] == 1
        )
    return True


def _is_inexact(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat", "complex"))


def _is_number(dtype: str) -> bool:
    return _is_inexact(dtype) or dtype.startswith(("int", "uint"))
