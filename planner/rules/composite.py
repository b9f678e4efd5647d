"""Composition: several ops, each with a rule, as one op with one rule.

Dims that the same tensor passes between ops become one dim, as in `planner.decisions.groups`, but here over all ops: a
factor may be split in the whole only if every op may split it. A reduced factor stays one only where nothing but the
sum (or the largest, ...) of partial results can come out: what reduces it may be followed by ops that commute with the
reduction, and every result of the whole must be partial.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from planner.rules.rule import Combiner, Dims, Kind, Rule
from planner.rules.unify import Forest

Partial = tuple[int, Combiner]
"""A factor over which a tensor is only partially combined, and how it would be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompositeStep:
    """One op: its rule (None: nothing may be split), the tensors it reads and makes, by number.

    `carries`: whether the op does to partial results what it does to the whole (it only moves elements).
    """

    rule: Rule | None
    operands: tuple[int, ...]
    results: tuple[int, ...]
    carries: bool = False


@dataclass
class _Composer:
    shapes: Mapping[int, Sequence[int]]
    forest: Forest = field(default_factory=Forest)
    dims: dict[int, Dims] = field(default_factory=dict[int, Dims])
    partial: dict[int, frozenset[Partial]] = field(default_factory=dict[int, frozenset[Partial]])
    made_partial: set[Partial] = field(default_factory=set[Partial])

    def free(self, tensor: int, *, whole: bool) -> Dims:
        """A dim of one new factor for every extent that is not 1."""
        return tuple(() if n == 1 else (self.forest.new(n, whole=whole or not n),) for n in self.shapes[tensor])

    def read(self, tensor: int) -> Dims:
        """The dims of a tensor; one that nothing makes is a constant, and stays whole."""
        if tensor not in self.dims:
            self.dims[tensor] = self.free(tensor, whole=True)
        return self.dims[tensor]

    def add(self, step: CompositeStep) -> None:
        rule, arrays = step.rule, (*step.operands, *step.results)
        if rule is None:
            mine = [self.free(tensor, whole=True) for tensor in arrays]
            reduced: frozenset[Partial] = frozenset()
        else:
            ids = [
                self.forest.new(size, whole=kind in ("replicate", "permute"))
                for size, kind in zip(rule.sizes, rule.kinds, strict=True)
            ]
            mine = [tuple(tuple(ids[f] for f in dim) for dim in dims) for dims in (*rule.operands, *rule.results)]
            reduced = frozenset((ids[f], rule.combiner) for f, kind in enumerate(rule.kinds) if kind == "reduce")
        for tensor, dims in zip(step.operands, mine[: len(step.operands)], strict=True):
            self.join(self.read(tensor), dims)
        arriving = frozenset[Partial]().union(*(self.partial.get(t, ()) for t in step.operands))
        if not step.carries:
            self.keep_whole(factor for factor, _ in arriving)
            arriving = frozenset()
        for tensor, dims in zip(step.results, mine[len(step.operands) :], strict=True):
            self.dims[tensor] = dims
            self.partial[tensor] = arriving | reduced
        self.made_partial |= reduced

    def join(self, left: Dims, right: Dims) -> None:
        """Makes the dims of two views of one tensor the same; those that do not nest stay whole."""
        for a, b in zip(left, right, strict=True):
            ours, theirs = self.forest.leaves(a), self.forest.leaves(b)
            if ours == theirs:
                continue
            if set(ours) & set(theirs) or self.forest.match(a, b) is None:
                self.keep_whole((*ours, *theirs))
            else:
                self.forest.unify(a, b)

    def keep_whole(self, factors: Iterable[int]) -> None:
        self.forest.whole.update(leaf for factor in factors for leaf in self.forest.leaves((factor,)))

    def rule(self, inputs: Sequence[int], outputs: Sequence[int]) -> Rule:
        leaves = self.forest.leaves
        for dims in self.dims.values():
            found = [leaf for dim in dims for leaf in leaves(dim)]
            self.keep_whole(leaf for leaf in found if found.count(leaf) > 1)
        sides = [[tuple(map(leaves, self.read(tensor))) for tensor in side] for side in (inputs, outputs)]
        reduced, combiner = self.reduced(outputs)
        order: dict[int, int] = {}
        for dims in (*sides[0], *sides[1]):
            for dim in dims:
                for leaf in dim:
                    order.setdefault(leaf, len(order))
        returned = {leaf for dims in sides[1] for dim in dims for leaf in dim}

        def kind(leaf: int) -> Kind:
            if self.forest.is_whole(leaf):
                return "replicate"
            if leaf in returned:
                return "pass"
            return "reduce" if leaf in reduced else "replicate"

        numbered = [tuple(tuple(tuple(order[leaf] for leaf in dim) for dim in dims) for dims in side) for side in sides]
        return Rule(
            operands=numbered[0],
            results=numbered[1],
            sizes=tuple(self.forest.size[leaf] for leaf in order),
            kinds=tuple([kind(leaf) for leaf in order]),
            combiner=combiner,
        )

    def reduced(self, outputs: Sequence[int]) -> tuple[frozenset[int], Combiner]:
        """The factors that the whole reduces, all by one combiner; the other partial ones are made whole."""
        partial: list[set[Partial]] = [
            {(leaf, by) for factor, by in self.partial.get(t, ()) for leaf in self.forest.leaves((factor,))}
            for t in outputs
        ]
        every: set[Partial] = {(leaf, by) for factor, by in self.made_partial for leaf in self.forest.leaves((factor,))}
        held = {leaf for t in outputs for dim in self.read(t) for leaf in self.forest.leaves(dim)}
        shared: set[Partial] = {
            entry for entry in every if entry[0] not in held and all(entry in found for found in partial)
        }
        combiners: list[Combiner] = [by for _, by in sorted(shared)]
        combiner: Combiner = combiners[0] if combiners else "add"
        kept = {entry for entry in shared if entry[1] == combiner}
        # What is reduced on the way, to steer a loop for instance, must be whole as well.
        self.keep_whole(leaf for leaf, _ in every - kept)
        return frozenset(leaf for leaf, _ in kept), combiner


def compose(
    steps: Sequence[CompositeStep],
    shapes: Mapping[int, Sequence[int]],
    inputs: Sequence[int],
    outputs: Sequence[int],
    ties: Sequence[tuple[int, int]] = (),
) -> Rule:
    """The rule of the function that `steps`, in order, compute from `inputs` to `outputs`.

    Parameters: `shapes`, the extents of every tensor by its number; `ties`, pairs of tensors that have one form.
    """
    composer = _Composer(shapes=shapes)
    for tensor in inputs:
        composer.dims.setdefault(tensor, composer.free(tensor, whole=False))
    for step in steps:
        composer.add(step)
    for left, right in ties:
        composer.join(composer.read(left), composer.read(right))
    return composer.rule(inputs, outputs)
