"""Merging: the views that two ops have of one tensor made one, so that both ops are of one group.

Factors are unified dim by dim; where one side sees a product of factors (a reshape), the other side's factor is split to
match.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from networkx.utils import UnionFind

from planner.rules.rule import Dims
from planner.rules.unify import Forest

View = tuple[Dims, int]
"""The dims of a tensor in the factors of an op's rule, and the number that the first of these has among all factors."""


Spec = Sequence[Sequence[str] | None]
"""The axes that split every dim of a tensor; None for a dim that is free."""


@dataclass
class Merger:
    """The factors of a program's ops, of which there are `count`, and which ops they bring together.

    `demanded` are the axes by which constraints of the program demand that factors be split, by their roots: what is
    demanded differently is not merged.
    """

    count: int
    demanded: dict[int, tuple[str, ...]] = field(default_factory=dict[int, tuple[str, ...]])
    op_sets: Forest = field(default_factory=Forest)
    factors: Forest = field(default_factory=Forest)

    def __post_init__(self) -> None:
        self.op_sets.extend([1] * self.count, ())

    def follow(self, op: int, mine: View, other: int, theirs: View) -> None:
        """Merges `op` into the group of `other` through a tensor both touch, if their factors nest and may be split."""
        pairs = self._one_by_one(mine, theirs)
        merged = self._nested(_placed(mine), _placed(theirs)) if pairs is None else self._paired(pairs)
        if merged:
            self.op_sets.join(op, other)

    def demand(self, view: View, spec: Spec | None) -> None:
        """Demands of the factors of a view what a constraint says of its dims, where nothing is demanded of them yet."""
        for dim, axes in zip(_placed(view), spec or (), strict=False):
            leaves = self.factors.leaves(dim)
            if axes is not None and len(leaves) == 1:
                self.demanded.setdefault(leaves[0], tuple(axes))

    def _agree(self, pairs: Iterable[tuple[int, int]]) -> bool:
        """Whether nothing different is demanded of two factors that would become one."""
        known = self.demanded
        return not known or all(known[a] == known[b] for a, b in pairs if a != b and a in known and b in known)

    def _join(self, a: int, b: int) -> None:
        """Makes two factors one, of which that is demanded which was of either."""
        axes = self.demanded.get(a, self.demanded.get(b))
        self.factors.join(a, b)
        if axes is not None:
            self.demanded[self.factors.find(a)] = axes

    def tie(self, inside: int, mine: View, outside: int, theirs: View) -> None:
        """Makes the two ends of a loop carry one group, whatever happens: dims that do not nest are kept whole."""
        for a, b in zip(_placed(mine), _placed(theirs), strict=True):
            if self.factors.match(a, b) is None:
                self.factors.whole.update(self.factors.leaves(a) + self.factors.leaves(b))
            else:
                self.factors.unify(a, b)
        self.op_sets.join(inside, outside)

    def groups(self) -> list[list[int]]:
        """The ops of every group, both in the order of the program."""
        members: dict[int, list[int]] = {}
        for op in range(self.count):
            members.setdefault(self.op_sets.find(op), []).append(op)
        return list(members.values())

    def _one_by_one(self, mine: View, theirs: View) -> list[tuple[int, int]] | None:
        """The factors to be joined where every dim has one of a like size on both sides, and none is of two dims."""
        find, children, size = self.factors.find, self.factors.children, self.factors.size
        pairs: list[tuple[int, int]] = []
        met: list[int] = []
        for a, b in zip(mine[0], theirs[0], strict=True):
            if not a and not b:
                continue
            if len(a) != 1 or len(b) != 1:
                return None
            left, right = find(a[0] + mine[1]), find(b[0] + theirs[1])
            if left in met or right in met:
                return None
            if left == right:
                met.append(left)
            else:
                met += left, right
                pairs.append((left, right))
            if left in children or right in children or size[left] != size[right]:
                return None
        return pairs

    def _paired(self, pairs: list[tuple[int, int]]) -> bool:
        """Joins factors, or says that some may be split on one side only."""
        whole = self.factors.whole
        for a, b in pairs:
            if (a in whole) != (b in whole):
                return False
        if not self._agree(pairs):
            return False
        for a, b in pairs:
            self._join(a, b)
        return True

    def _nested(self, mine: Dims, theirs: Dims) -> bool:
        """Unifies the dims of two views, or says that their factors do not nest or may be split on one side only."""
        factors, pieces = self.factors, list[tuple[int, int, int]]()
        for a, b in zip(mine, theirs, strict=True):
            leaves_a, leaves_b = factors.leaves(a), factors.leaves(b)
            if factors.whole.isdisjoint(leaves_a) != factors.whole.isdisjoint(leaves_b):
                return False
            found = factors.match(leaves_a, leaves_b)
            if found is None or not self._agree((left, right) for left, right, _ in found):
                return False
            pieces += found
        if self._mirrored(mine, pieces):
            return False
        if all(left == right for left, right, _ in pieces):
            return True
        for a, b in zip(mine, theirs, strict=True):
            kept = factors.match(a, b) or () if self.demanded else ()
            known = {
                leaf: self.demanded[leaf] for left, right, _ in kept for leaf in (left, right) if leaf in self.demanded
            }
            factors.unify(a, b)
            for leaf, axes in known.items():
                found = factors.leaves((leaf,))
                if len(found) == 1:
                    self.demanded[found[0]] = axes
        return True

    def _mirrored(self, mine: Dims, pieces: Sequence[tuple[int, int, int]]) -> bool:
        """Whether joining the dims would make one factor of two dims of the tensor, as `x + x.T` would."""
        joined: UnionFind[Any] = UnionFind()
        for left, right, _ in pieces:
            if left != right:
                joined.union(left, right)
        seen: dict[int, int] = {}
        for dim, factors in enumerate(mine):
            for leaf in self.factors.leaves(factors):
                if seen.setdefault(joined[leaf], dim) != dim:
                    return True
        return False


def _placed(view: View) -> Dims:
    """The dims of a view in the numbers that its factors have among all."""
    dims, first = view
    return tuple(tuple(first + factor for factor in dim) for dim in dims)


Names = dict[int, tuple[int, ...]]
"""The factors of one group by those of another."""


def names_between(seen: Dims, own: Dims) -> Names:
    """The factors of a group by those of another, from the dims of one tensor in both: `seen` in the other, `own` in it.

    Of a product of factors that the other side sees as one it is the leading one that is split first.
    """
    names: Names = {}
    for one, other in zip(seen, own, strict=True):
        if len(one) == len(other):
            names.update({a: (b,) for a, b in zip(one, other, strict=True)})
        elif one and other:
            names[one[0]] = other
            names.update(dict.fromkeys(one[1:], ()))
    return names


def covers(names: Names, dims: Dims, shape: Sequence[int]) -> bool:
    """Whether the names tell how every dim of a tensor is split."""
    return all(extent == 1 or all(f in names for f in dim) for extent, dim in zip(shape, dims, strict=True))


def renamed(names: Names, dims: Dims) -> Dims:
    """Dims in the factors of another group."""
    return tuple([tuple([f for factor in dim for f in names.get(factor, ())]) for dim in dims])
