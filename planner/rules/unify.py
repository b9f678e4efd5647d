"""A forest of factors: how the factors of several ops become one another's as dims are found to be the same dim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Forest:
    """A forest of factors: unified ones share a root, split ones have children."""

    parent: list[int] = field(default_factory=list[int])
    size: list[int] = field(default_factory=list[int])
    children: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    whole: set[int] = field(default_factory=set[int])

    def new(self, size: int, *, whole: bool = False) -> int:
        self.parent.append(len(self.parent))
        self.size.append(size)
        if whole:
            self.whole.add(len(self.parent) - 1)
        return len(self.parent) - 1

    def extend(self, sizes: Sequence[int], whole: Sequence[int]) -> int:
        """Adds a factor of each size, those at the positions `whole` to be kept whole; returns the number of the first."""
        first = len(self.parent)
        self.parent.extend(range(first, first + len(sizes)))
        self.size.extend(sizes)
        if whole:
            self.whole.update([first + position for position in whole])
        return first

    def find(self, factor: int) -> int:
        parent, root = self.parent, factor
        while (up := parent[root]) != root:
            root = up
        while parent[factor] != root:
            parent[factor], factor = root, parent[factor]
        return root

    def roots(self) -> list[int]:
        """What `find` returns, for every factor."""
        parent = np.array(self.parent, np.intp)
        while not np.array_equal(up := parent[parent], parent):
            parent = up
        return parent.tolist()

    def leaves(self, dim: Sequence[int]) -> tuple[int, ...]:
        """The factors a dim is made of today, major first."""
        if len(dim) == 1 and (only := self.find(dim[0])) not in self.children:
            return (only,)
        found: list[int] = []
        for factor in dim:
            root = self.find(factor)
            if root in self.children:
                found.extend(self.leaves(self.children[root]))
            else:
                found.append(root)
        return tuple(found)

    def is_whole(self, factor: int) -> bool:
        return self.find(factor) in self.whole

    def match(self, left: Sequence[int], right: Sequence[int]) -> list[tuple[int, int, int]] | None:
        """How two dims align: (left leaf, right leaf, size) pieces, or None where sizes do not nest."""
        left, right = self.leaves(left), self.leaves(right)
        pieces = self._aligned(left, right)
        return None if pieces is None else [(left[i], right[j], size) for i, j, size in pieces]

    def unify(self, left: Sequence[int], right: Sequence[int]) -> None:
        """Makes two matching dims one: splits factors until they align, then joins them piece by piece.

        A factor that stands at several places, as in a product with itself that is flattened, is split as the first of
        them asks; then all are looked at anew. Where they then no longer align, nothing is joined.
        """
        while True:
            leaves = (self.leaves(left), self.leaves(right))
            pieces = self._aligned(*leaves)
            if pieces is None:
                return
            parts: dict[tuple[int, int], list[int]] = {}
            for i, j, size in pieces:
                parts.setdefault((0, i), []).append(size)
                parts.setdefault((1, j), []).append(size)
            splits: dict[int, list[int]] = {}
            for (side, place), sizes in parts.items():
                if len(sizes) > 1:
                    splits.setdefault(leaves[side][place], sizes)
            if not splits:
                for i, j, _ in pieces:
                    self.join(leaves[0][i], leaves[1][j])
                return
            for factor, sizes in splits.items():
                whole = factor in self.whole
                self.children[factor] = tuple(self.new(size, whole=whole) for size in sizes)

    def _aligned(self, left: Sequence[int], right: Sequence[int]) -> list[tuple[int, int, int]] | None:
        """How two rows of leaves align: (place in the left, in the right, size) pieces, or None where sizes do not nest."""
        a, b = [self.size[f] for f in left], [self.size[f] for f in right]
        if 0 in a or 0 in b or len(a) == len(b) == 1:  # an extent of nothing nests with its like only
            return [(i, i, size) for i, size in enumerate(a)] if a == b else None
        pieces: list[tuple[int, int, int]] = []
        i = j = 0
        while i < len(a) and j < len(b):
            if a[i] % b[j] and b[j] % a[i]:
                return None
            step = min(a[i], b[j])
            pieces.append((i, j, step))
            a[i] //= step
            b[j] //= step
            i += a[i] == 1
            j += b[j] == 1
        return pieces if i == len(a) and j == len(b) else None

    def join(self, a: int, b: int) -> None:
        """Makes two factors of one size one, known by the older of their roots: what comes later is found in few steps."""
        root, other = sorted((self.find(a), self.find(b)))
        if root != other:
            self.parent[other] = root
            if other in self.whole:
                self.whole.add(root)
