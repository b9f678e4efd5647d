"""The one way a rule is put together: factors are made here, used in dims, and renumbered by first appearance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from planner.program.graph import Aval
from planner.rules.rule import Combiner, Dim, Dims, Kind, Rule

RuleFunction = Callable[[Sequence[Aval], Sequence[Aval], Mapping[str, Any]], Rule]
"""From the avals of an op's operands and results, and its params, to its rule."""


@final
class Factors:
    """The factors of one rule while it is being built; those of a rule to begin with, if any are given."""

    __slots__ = ("_kinds", "_sizes")

    def __init__(self, sizes: Sequence[int] = (), kinds: Sequence[Kind] = ()) -> None:
        self._sizes, self._kinds = list(sizes), list(kinds)

    def dim(self, extent: int, kind: Kind = "pass") -> Dim:
        """A dim made of one new factor, or of none when its extent is 1. A dim of extent 0 must stay whole."""
        if extent == 1:
            return ()
        self._sizes.append(int(extent))
        self._kinds.append(kind if extent else "replicate")
        return (len(self._sizes) - 1,)

    def dims(self, shape: Sequence[int], kind: Kind = "pass") -> Dims:
        """A dim made of one new factor of that kind for each extent of `shape`."""
        return tuple(self.dim(extent, kind) for extent in shape)

    def pair(self, left: int, right: int) -> tuple[Dim, Dim]:
        """Two dims that must stay whole: one shared factor when their extents agree, else a factor each."""
        whole = self.dim(left, "replicate")
        return whole, whole if left == right else self.dim(right, "replicate")

    def shared(self, left: int, right: int, parts: int, kind: Kind) -> tuple[Dim, Dim]:
        """Two dims whose leading factor, of size `parts`, is one of that kind; what is left of each stays whole."""
        lead = self.dim(parts, kind)
        return lead + self.dim(left // parts, "replicate"), lead + self.dim(right // parts, "replicate")

    def rule(
        self, operands: Sequence[Sequence[Dim]], results: Sequence[Sequence[Dim]], combiner: Combiner = "add"
    ) -> Rule:
        """The finished rule: factors that no dim uses are dropped, the rest numbered in order of first appearance."""
        order: dict[int, int] = {}
        for array in (*operands, *results):
            for dim in array:
                for factor in dim:
                    order.setdefault(factor, len(order))

        def renumbered(arrays: Sequence[Sequence[Dim]]) -> tuple[Dims, ...]:
            return tuple(tuple(tuple(order[factor] for factor in dim) for dim in array) for array in arrays)

        return Rule(
            operands=renumbered(operands),
            results=renumbered(results),
            sizes=tuple(self._sizes[factor] for factor in order),
            kinds=tuple(self._kinds[factor] for factor in order),
            combiner=combiner,
        )


def replicated(operands: Sequence[Aval], results: Sequence[Aval]) -> Rule:
    """The rule of an op that nothing may split: every dim a factor of its own that must stay whole."""
    factors = Factors()
    return factors.rule(
        [factors.dims(aval.shape, "replicate") for aval in operands],
        [factors.dims(aval.shape, "replicate") for aval in results],
    )


def with_whole(rule: Rule, results: Sequence[Aval], whole: Sequence[bool]) -> Rule:
    """A rule where those `results` that must be `whole` have factors of their own, and all other arrays theirs."""
    if not any(whole):
        return rule
    factors = Factors(rule.sizes, rule.kinds)
    dims = [
        factors.dims(aval.shape, "replicate") if alone else of
        for aval, alone, of in zip(results, whole, rule.results, strict=True)
    ]
    return factors.rule(rule.operands, dims, rule.combiner)


def fits(rule: Rule, operands: Sequence[Aval], results: Sequence[Aval]) -> bool:
    """Whether the rule has a dim for every dim of the arrays, each with factors whose sizes multiply to its extent."""
    arrays, avals = (*rule.operands, *rule.results), (*operands, *results)
    if len(rule.operands) != len(operands) or len(arrays) != len(avals):
        return False
    for dims, aval in zip(arrays, avals, strict=True):
        if len(dims) != len(aval.shape):
            return False
        for dim, extent in zip(dims, aval.shape, strict=True):
            product = 1
            for factor in dim:
                product *= rule.sizes[factor]
            if product != extent:
                return False
    return True
