"""Candidates: the strategies a group of ops, or a tensor of its own, can choose from on a mesh.

A strategy assigns every mesh axis to one factor, or to none. All assignments are offered that divide evenly and leave
every tensor of the group with a spec JAX can write: within a product of factors the leading one is split first, and the
axes of a dim stand in mesh order. Nothing known to be miscompiled is offered: the rules keep such factors whole.

What is demanded of a group counts from the start: no assignment that breaks it is ever made.

The number of assignments is (factors + 1) ^ axes. On meshes of more axes than a search tries, which only users and programs
name, those are offered of which plans are made there:

    1. all that split by each axis what pins and the program split by it anywhere (`used`),
    2. those in which neighbouring axes act as one: in up to three runs of axes, each of which splits one factor, as on the
       mesh of three axes that the runs make. Fewer runs come first, then runs of like size.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, final

import numpy as np
import numpy.typing as npt

from planner.decisions.groups import Group, Grouping
from planner.pricing.reshards.reshard import Locations
from planner.rules.rule import Dim, Dims

SEARCHED_AXES = 3
"""Most axes of a searched mesh, on which all strategies of a group are offered."""
MAX_STRATEGIES = 1200
"""Most strategies offered for one group there; factors that split the fewest bytes are kept whole beyond it."""
MAX_OF_MANY_AXES = 300
"""Most strategies offered for one group on a mesh of more axes: about as many as a group of six factors has on three."""


@dataclass(frozen=True, kw_only=True)
class Strategies:
    """`assignment[i, a]` is the factor that strategy i splits by axis a, or -1; `complete`: all that there are."""

    assignment: npt.NDArray[np.int16]
    axis_sizes: tuple[int, ...]
    num_factors: int
    complete: bool = True

    def keep(self, mask: npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> Strategies:
        """The strategies where `mask` holds, or at these positions."""
        return replace(self, assignment=self.assignment[mask])

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


class Demand(NamedTuple):
    """A row of locations that a tensor with these dims must have, those in `free` being open to axes that split nothing."""

    dims: Dims
    spec: tuple[int, ...]
    free: tuple[int, ...] = ()

    def allows(self, axis: int, factor: int) -> bool:
        """Whether an axis may split a factor (-1: nothing)."""
        dim = next((d for d, factors in enumerate(self.dims) if factor in factors), -1)
        return dim == self.spec[axis] or (self.spec[axis] < 0 and dim in self.free)


Used = frozenset[tuple[int, int]]
"""Pairs (axis, factor) of a group: the factor is of an index of the program that something demands to be split by it."""


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
    grouping: Grouping,
    group: Group,
    axis_sizes: tuple[int, ...],
    weights: npt.NDArray[np.float64],
    demands: Sequence[Demand] = (),
    used: Used = frozenset(),
) -> Strategies:
    """The strategies of a group; `weights[f]`, the bytes that have factor f, decides which factors go if there are many."""
    usable = [f for f, size in enumerate(group.sizes) if f not in group.whole and _splits_evenly(size, axis_sizes)]
    offer = _Offer(
        usable=usable, sizes=group.sizes, axis_sizes=axis_sizes, products=grouping.products(group), weights=weights
    )
    return offer.strategies(demands, used)


def tensor_strategies(
    shape: Sequence[int], axis_sizes: tuple[int, ...], demands: Sequence[Demand] = (), used: Used = frozenset()
) -> Strategies:
    """The strategies of a tensor that is placed on its own, one factor per dim (see `decision_graph.own_dims`)."""
    # Nothing is gained by splitting an array without elements, and JAX 0.10 cannot fetch one that is returned split.
    usable = [i for i, extent in enumerate(shape) if _splits_evenly(extent, axis_sizes)] if 0 not in shape else []
    offer = _Offer(
        usable=usable,
        sizes=tuple(shape),
        axis_sizes=axis_sizes,
        products=frozenset(),
        weights=np.ones(len(shape)),
    )
    return offer.strategies(demands, used)


def _splits_evenly(size: int, axis_sizes: tuple[int, ...]) -> bool:
    return any(size % axis == 0 for axis in axis_sizes)


Assignments = npt.NDArray[np.int16]
Choices = list[tuple[int, ...]]
"""For every axis the factors that it may split, -1 for none."""


@dataclass(frozen=True, kw_only=True)
class _Offer:
    """What strategies of a group are made of: `usable` factors of all `sizes`; `products` are dims of several factors."""

    usable: Sequence[int]
    sizes: tuple[int, ...]
    axis_sizes: tuple[int, ...]
    products: frozenset[Dim]
    weights: npt.NDArray[np.float64]

    def strategies(self, demands: Sequence[Demand], used: Used) -> Strategies:
        """Those that are offered, in the order of their factors, axis by axis."""
        axes = range(len(self.axis_sizes))
        choices = [
            tuple(f for f in (-1, *sorted(self.usable)) if all(demand.allows(a, f) for demand in demands)) for a in axes
        ]
        several = len(self.axis_sizes) > SEARCHED_AXES
        most = MAX_OF_MANY_AXES if several else MAX_STRATEGIES
        complete = _count(choices) <= most
        if complete or not several:
            found = self._all_of(self._fewer(choices, most))
        else:
            own = [tuple(f for f in of if f < 0 or (a, f) in used) or of for a, of in enumerate(choices)]
            first = self._all_of(self._fewer(own, most))
            runs = self._in_runs(self._fewer(choices, MAX_STRATEGIES**2))
            runs = _valid(runs, tuple(self.usable), self.sizes, self.axis_sizes, self.products)
            rows = dict.fromkeys(map(tuple, np.concatenate([first, runs]).tolist()))
            found = np.array(sorted(list(rows)[: max(most, len(first))]), np.int16).reshape(-1, len(axes))
        return Strategies(assignment=found, axis_sizes=self.axis_sizes, num_factors=len(self.sizes), complete=complete)

    def _fewer(self, choices: Choices, most: int) -> Choices:
        """At most so many assignments, without the factors that split the fewest bytes where an axis has others."""
        light = sorted(self.usable, key=lambda f: (self.weights[f], -f))
        while _count(choices) > most and len(light) > 1:
            lightest = light.pop(0)
            choices = [tuple(f for f in of if f != lightest) or of for of in choices]
        return choices

    def _in_runs(self, choices: Choices) -> Assignments:
        """The assignments of up to three runs, the fewest first, then those of like size, then those that split most."""
        found, count, largest = _runs_of(tuple(choices), self.axis_sizes)
        split = sum((float(self.weights[f]) * (found == f).any(axis=1) for f in self.usable), np.zeros(len(found)))
        return found[np.lexsort((np.arange(len(found)), -split, largest, count))]

    def _all_of(self, choices: Choices) -> Assignments:
        """The valid ones of all assignments; not to be changed."""
        return _valid_of_all(tuple(choices), tuple(self.usable), self.sizes, self.axis_sizes, self.products)


@lru_cache(maxsize=2**12)
def _valid_of_all(
    choices: tuple[tuple[int, ...], ...],
    usable: tuple[int, ...],
    sizes: tuple[int, ...],
    axis_sizes: tuple[int, ...],
    products: frozenset[Dim],
) -> Assignments:
    """The valid ones of all assignments: groups of other forms of a program, and of other layers, have the same."""
    return _valid(_all_of(choices), usable, sizes, axis_sizes, products)


def _valid(
    assignment: Assignments,
    usable: Sequence[int],
    sizes: Sequence[int],
    axis_sizes: Sequence[int],
    products: frozenset[Dim],
) -> Assignments:
    """The assignments that divide evenly and leave every tensor with a spec that JAX can write."""
    keep = np.ones(len(assignment), np.bool_)
    axis = np.asarray(axis_sizes, np.int64)
    cut = {f: np.prod(np.where(assignment == f, axis, 1), axis=1) for f in usable}
    for factor, parts in cut.items():
        keep &= sizes[factor] % parts == 0
    for dim in products:
        keep &= _writable(dim, assignment, cut, sizes)
    return assignment[keep]


@lru_cache(maxsize=256)
def _runs_of(
    choices: tuple[tuple[int, ...], ...], axis_sizes: tuple[int, ...]
) -> tuple[Assignments, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The assignments in which the axes that have a choice fall into up to three runs, each of which splits one factor.

    With how many runs each has, and how many devices are in the largest.
    """
    free = [a for a, of in enumerate(choices) if len(of) > 1]
    found: list[tuple[int, ...]] = []
    sizes: list[tuple[int, int]] = []
    for count in range(1, SEARCHED_AXES + 1):
        for cuts in itertools.combinations(range(1, len(free)), count - 1):
            runs = [free[a:b] for a, b in pairwise((0, *cuts, len(free)))]
            largest = max(math.prod(axis_sizes[a] for a in run) for run in runs)
            offered = [sorted(set.intersection(*(set(choices[a]) for a in run))) for run in runs]
            for factors in itertools.product(*offered):
                if any(one == other for one, other in pairwise(factors)):
                    continue
                row = [of[0] for of in choices]
                for run, factor in zip(runs, factors, strict=True):
                    for a in run:
                        row[a] = factor
                found.append(tuple(row))
                sizes.append((count, largest))
    count, largest = np.array(sizes, np.int64).reshape(-1, 2).T
    return np.array(found, np.int16).reshape(len(found), len(choices)), count, largest


def _count(choices: Choices) -> int:
    return math.prod(map(len, choices))


def _all_of(choices: Sequence[tuple[int, ...]]) -> Assignments:
    rows = list(itertools.product(*choices))
    return np.array(rows, dtype=np.int16).reshape(len(rows), len(choices))


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
