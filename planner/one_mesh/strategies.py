"""Candidates: the strategies a group of ops, or a tensor of its own, can choose from on a mesh.

A strategy assigns every mesh axis to one factor, or to none. All assignments are offered that divide evenly and leave
every tensor of the group with a spec JAX can write: within a product of factors the leading one is split first, and the
axes of a dim stand in mesh order. Nothing known to be miscompiled is offered: the rules keep such factors whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

from planner.any_mesh.groups import Group, Grouping
from planner.one_mesh.reshard import Locations
from planner.rules.rule import Dims

MAX_STRATEGIES = 1200
"""Most strategies offered for one group; factors that split the fewest bytes are kept whole beyond it."""


@dataclass(frozen=True, kw_only=True)
class Strategies:
    """`assignment[i, a]` is the factor that strategy i splits by axis a, or -1; `sizes` are the sizes of the factors."""

    assignment: npt.NDArray[np.int16]
    axis_sizes: tuple[int, ...]
    num_factors: int

    def keep(self, mask: npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> Strategies:
        """The strategies where `mask` holds, or at these positions."""
        return Strategies(assignment=self.assignment[mask], axis_sizes=self.axis_sizes, num_factors=self.num_factors)

    def __len__(self) -> int:
        return len(self.assignment)

    def locations(self, dims: Dims) -> Locations:
        """The spec each strategy gives a tensor with these dims: for every axis the dim it splits, or -1."""
        table = np.full(self.num_factors + 1, -1, np.int8)
        for dim, factors in enumerate(dims):
            for factor in factors:
                table[factor] = dim
        return table[self.assignment]

    def splits(self, factors: Iterable[int]) -> npt.NDArray[np.bool_]:
        """Which axes split one of these factors, per strategy."""
        table = np.zeros(self.num_factors + 1, np.bool_)
        table[list(factors)] = True
        return table[self.assignment]

    def shards(self, factors: Iterable[int]) -> npt.NDArray[np.float64]:
        """Into how many parts each strategy cuts the product of these factors."""
        return np.prod(np.where(self.splits(factors), np.asarray(self.axis_sizes, np.float64), 1.0), axis=1)


@final
class Kinds:
    """Strategies numbered as they are made: `tables[i]` are those of kind i, equal ones of one kind."""

    def __init__(self) -> None:
        self.tables: list[Strategies] = []
        self._numbers: dict[Hashable, int] = {}

    def number(self, key: Hashable, make: Callable[[], Strategies]) -> int:
        """The kind of the strategies that `make` makes; `key` says all that they follow from."""
        if key not in self._numbers:
            made = make()
            content = (made.assignment.tobytes(), made.num_factors)
            number = self._numbers.setdefault(content, len(self.tables))
            if number == len(self.tables):
                self.tables.append(made)
            self._numbers[key] = number
        return self._numbers[key]


def group_strategies(
    grouping: Grouping, group: Group, axis_sizes: tuple[int, ...], weights: npt.NDArray[np.float64]
) -> Strategies:
    """The strategies of a group; `weights[f]`, the bytes that have factor f, decides which factors go if there are many."""
    usable = [f for f, size in enumerate(group.sizes) if f not in group.whole and _splits_evenly(size, axis_sizes)]
    usable.sort(key=lambda f: (-weights[f], f))
    while (len(usable) + 1) ** len(axis_sizes) > MAX_STRATEGIES and len(usable) > 1:
        usable.pop()
    tensors = {dims for op in group.ops for dims in grouping.placements[op].operands + grouping.placements[op].results}
    return _enumerate(sorted(usable), group.sizes, axis_sizes, tensors)


def tensor_strategies(shape: Sequence[int], axis_sizes: tuple[int, ...]) -> tuple[Strategies, Dims]:
    """The strategies of a tensor that is placed on its own, one factor per dim, and its dims."""
    dims: Dims = tuple((i,) if extent > 1 else () for i, extent in enumerate(shape))
    # Nothing is gained by splitting an array without elements, and JAX 0.10 cannot fetch one that is returned split.
    usable = [i for i, extent in enumerate(shape) if _splits_evenly(extent, axis_sizes)] if 0 not in shape else []
    return _enumerate(usable, tuple(shape), axis_sizes, {dims}), dims


def _splits_evenly(size: int, axis_sizes: tuple[int, ...]) -> bool:
    return any(axis > 1 and size % axis == 0 for axis in axis_sizes)


def _enumerate(
    usable: Sequence[int], sizes: tuple[int, ...], axis_sizes: tuple[int, ...], tensors: Iterable[Dims]
) -> Strategies:
    # An axis of size 1 splits nothing; leaving it unassigned keeps specs canonical.
    options = [(-1, *usable) if axis > 1 else (-1,) for axis in axis_sizes]
    assignment = np.array(list(itertools.product(*options)), dtype=np.int16).reshape(-1, len(axis_sizes))
    keep = np.ones(len(assignment), np.bool_)
    axis = np.asarray(axis_sizes, np.int64)
    cut = {f: np.prod(np.where(assignment == f, axis, 1), axis=1) for f in usable}
    for factor, parts in cut.items():
        keep &= sizes[factor] % parts == 0
    compound = {dim for dims in tensors for dim in dims if len(dim) > 1}
    for dim in compound:
        keep &= _writable(dim, assignment, cut, sizes)
    return Strategies(assignment=assignment[keep], axis_sizes=axis_sizes, num_factors=len(sizes))


def _writable(
    dim: Sequence[int], assignment: npt.NDArray[np.int16], cut: dict[int, npt.NDArray[np.int64]], sizes: Sequence[int]
) -> npt.NDArray[np.bool_]:
    """Where a product of factors is split in a way that a PartitionSpec can say."""
    good = np.ones(len(assignment), np.bool_)
    axes = assignment.shape[1]
    rank = {factor: i for i, factor in enumerate(dim)}
    for i, factor in enumerate(dim[1:], start=1):
        if factor not in cut:
            continue
        split = cut[factor] > 1
        for before in dim[:i]:
            full = (cut[before] if before in cut else np.ones(len(assignment), np.int64)) == sizes[before]
            good &= ~split | full
    order = np.full(len(sizes) + 1, -1, np.int64)
    for factor, position in rank.items():
        order[factor] = position
    place = order[assignment]
    for a in range(axes):
        for c in range(a + 1, axes):
            good &= (place[:, a] < 0) | (place[:, c] < 0) | (place[:, a] <= place[:, c])
    return good
