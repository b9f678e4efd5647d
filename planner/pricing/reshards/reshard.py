"""Resharding: the collectives that take a tensor from one spec to another, priced and as steps to emit.

A spec is a row of locations: for every mesh axis the dim it splits, or -1. Several axes on one dim are in mesh order,
major first. A reshard from S to T, of a tensor that may also hold partial sums over the axes R, is

    1. reduce     reduce-scatter over R if T splits one dim by all of R and the compiler can, else all-reduce over R
    2. slice      axes that only T has, laid minor on their dim (no communication)
    3. all-to-all axes that move from one dim to another, one per pair of dims, minor ones first; a permute makes an
                  axis minor where it is not
    4. permute    where the order of the axes on a dim is not yet T's
    5. all-gather axes that only S has, dim by dim

the order in which Shardy lowers a reshard (https://openxla.org/shardy: all-slice, all-to-all, collective-permute,
all-gather), with bytes smallest when they move. Where that could put more axes on a dim than divide it, as when 4 rows
split over 4 devices are to be split over 2 others, axes that leave are gathered first (5, then 2 and 4): XLA would pad,
and gather everything. The sequence does not depend on sizes otherwise: `Patterns` works it out once for every pair of
specs that is met, and `reshard_values` prices all pairs of a transfer at once from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from pbqp.vectors import Floats
from planner.pricing.candidates.specs import Layout
from planner.pricing.mesh import COLLECTIVES, Mesh
from planner.pricing.reshards.alternatives import APART, PLAIN, WAYS, Locations, ways_of
from planner.pricing.reshards.shares import BY_SUM, GATHER, SCATTER, Shares


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a reshard: the collective (None for a slice), its axes as a bit set, its bytes and the layout after.

    `bytes` is the larger of the local operand and result.
    """

    kind: str | None
    mask: int
    bytes: float
    layout: Layout


def local_bytes(locations: Locations, sizes: Sequence[int], whole_bytes: float) -> npt.NDArray[np.float64]:
    """Bytes per device of a tensor in each spec of `locations` (shape (n, axes)); returns shape (n,)."""
    factors = np.where(locations >= 0, np.asarray(sizes, dtype=np.float64), 1.0)
    return whole_bytes / np.prod(factors, axis=1)


def sliced_bytes(
    sizes: Sequence[int], ends: tuple[Locations, npt.NDArray[np.bool_], Locations], whole_bytes: float
) -> npt.NDArray[np.float64]:
    """Bytes per device of the slices that reshards take, 0 where they take none.

    `ends` are the specs of sources (n, axes), their partial sums (n, axes) and the specs of targets (m, axes); returns
    shape (n, m).
    """
    source, partial, target = ends[0][:, None, :], ends[1][:, None, :], ends[2][None, :, :]
    arriving = (source < 0) & ~partial & (target >= 0)
    split = np.where(arriving | (source >= 0), np.asarray(sizes, np.float64), 1.0)
    return np.where(arriving.any(axis=2), whole_bytes / split.prod(axis=2), 0.0)


@dataclass(frozen=True, slots=True)
class _Move:
    """A step before sizes are known: `held` are the axes that split the larger of its operand and result."""

    kind: str | None
    mask: int
    held: int
    layout: Layout


class _Sequence:
    """The moves of one reshard while they are worked out: the layout so far, and the axes that split it."""

    def __init__(self, source: Sequence[int], rank: int) -> None:
        axes = range(len(source))
        self.layout: list[list[int]] = [[a for a in axes if source[a] == dim] for dim in range(rank)]
        self.held = _mask(a for a in axes if source[a] >= 0)
        self.moves: list[_Move] = []

    def add(self, kind: str | None, mask: int) -> None:
        """Adds a move that leads to the layout as it is now."""
        self.moves.append(_Move(kind, mask, self.held, tuple(tuple(dim) for dim in self.layout)))

    def arrange(self, order: list[list[int]]) -> None:
        """Brings the axes of every dim into this order, by a permute over those that change their place."""
        changed = sum(_mask(_moved(before, after)) for before, after in zip(self.layout, order, strict=True))
        self.layout = order
        if changed:
            self.add("collective-permute", changed)

    def gather(self, gathered: Sequence[int], source: Sequence[int]) -> None:
        """Gathers the axes `gathered`, minor on their dims, dim by dim."""
        for dim in dict.fromkeys(source[a] for a in gathered):
            mask = _mask(a for a in self.layout[dim] if a in gathered)
            self.layout[dim] = [a for a in self.layout[dim] if a not in gathered]
            self.held &= ~mask
            self.add("all-gather", mask)

    def slice(self, arriving: Sequence[int], target: Sequence[int]) -> None:
        """Splits by axes that split nothing yet, minor on their dims."""
        for a in arriving:
            self.layout[target[a]].append(a)
        if arriving:
            self.held |= _mask(arriving)
            self.add(None, _mask(arriving))


def _mask(axes: Iterable[int]) -> int:
    return sum(1 << a for a in axes)


def _of_runs(mask: int, runs: Sequence[tuple[object, int]]) -> int:
    """The bit set of axes of a bit set of runs of axes."""
    return sum(axes for i, (_, axes) in enumerate(runs) if mask >> i & 1)


def _moved(before: list[int], after: list[int]) -> list[int]:
    """The axes of a dim along which a device's part is another one after a change of their order: not those that lead or
    end both orders."""
    if before == after:
        return []
    start = next(i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b)
    stop = next(i for i, (a, b) in enumerate(zip(before[::-1], after[::-1], strict=True)) if a != b)
    return after[start : len(after) - stop]


def _moves(
    source: Sequence[int], partial: Sequence[bool], target: Sequence[int], rank: int, scattering: bool
) -> list[_Move]:
    """The sequence of one reshard; see the module. Sums are scattered if possible and `scattering`."""
    axes, made = range(len(source)), _Sequence(source, rank)
    reduced = [a for a in axes if partial[a]]
    if reduced:
        dims = {target[a] for a in reduced}
        scatter = scattering and len(dims) == 1 and -1 not in dims
        for a in reduced if scatter else ():
            made.layout[target[a]].append(a)
        made.add("reduce-scatter" if scatter else "all-reduce", _mask(reduced))
        made.held |= _mask(reduced) if scatter else 0
    made.slice([a for a in axes if source[a] < 0 <= target[a] and not made.held >> a & 1], target)

    # Ordered by axis, not by dim: what a reshard costs does not depend on how dims are numbered.
    layout = made.layout
    pending = list(dict.fromkeys((source[a], target[a]) for a in axes if source[a] >= 0 <= target[a] != source[a]))
    while pending:
        groups = {pair: [a for a in axes if (source[a], target[a]) == pair] for pair in pending}
        minor = [pair for pair in pending if set(layout[pair[0]][-len(groups[pair]) :]) == set(groups[pair])]
        origin, goal = pair = (minor or pending)[0]
        leaving = groups[pair]
        staying = [a for a in layout[origin] if a not in leaving]
        if not minor:
            before, layout[origin] = layout[origin], staying + leaving
            made.add("collective-permute", _mask(_moved(before, layout[origin])))
        layout[origin] = staying
        layout[goal] = layout[goal] + leaving
        made.add("all-to-all", _mask(leaving))
        pending.remove(pair)

    gathered = [a for a in axes if source[a] >= 0 > target[a]]
    made.arrange([sorted(a for a in dim if a not in gathered) + [a for a in dim if a in gathered] for dim in layout])
    made.gather(gathered, source)
    return made.moves


def _moves_apart(source: Sequence[int], partial: Sequence[bool], target: Sequence[int], rank: int) -> list[_Move]:
    """The sequence of a reshard in which axes arrive on a dim only when those that leave it are gone."""
    axes, made = range(len(source)), _Sequence(source, rank)
    if any(partial):
        made.add("all-reduce", _mask(a for a in axes if partial[a]))
    leaving = [a for a in axes if source[a] >= 0 and target[a] != source[a]]
    made.arrange([[a for a in dim if a not in leaving] + [a for a in dim if a in leaving] for dim in made.layout])
    made.gather(leaving, source)
    made.slice([a for a in axes if target[a] >= 0 and target[a] != source[a]], target)
    made.arrange([sorted(dim) for dim in made.layout])
    return made.moves


def _sequence(
    way: int, source: Sequence[int], partial: Sequence[bool], target: Sequence[int], rank: int
) -> list[_Move]:
    """The sequence of one reshard that is done in one of the three ways."""
    if way == APART:
        return _moves_apart(source, partial, target, rank)
    return _moves(source, partial, target, rank, scattering=way == PLAIN)


@lru_cache(maxsize=2**16)
def _steps_of(key: bytes, axes: int) -> tuple[tuple[int, int, int], ...]:
    """(kind, mask, held) of what moves in a pattern: numbers of the dims of source and target in turn, sums, the way."""
    # Neighbouring axes of which the same becomes move as one: there are few sequences, of many axes too.
    lines = [(key[2 * a], key[2 * a + 1], key[2 * axes + a]) for a in range(axes)]
    runs = [(line, _mask(a for a, _ in of)) for line, of in groupby(enumerate(lines), key=itemgetter(1))]
    found = _steps_of_runs(tuple(line for line, _ in runs), key[-1])
    return tuple((kind, _of_runs(mask, runs), _of_runs(held, runs)) for kind, mask, held in found)


@lru_cache(maxsize=2**16)
def _steps_of_runs(lines: tuple[tuple[int, int, int], ...], way: int) -> tuple[tuple[int, int, int], ...]:
    """(kind, mask, held) of what moves where axes, or runs of them, have these dims and sums, in some way."""
    source, target = ([-1 if line[side] > 127 else line[side] for line in lines] for side in (0, 1))
    rank = max((*source, *target), default=-1) + 1
    moves = _sequence(way, source, [bool(line[2]) for line in lines], target, rank)
    return tuple((COLLECTIVES.index(m.kind), m.mask, m.held) for m in moves if m.kind is not None)


@dataclass(frozen=True, slots=True)
class _Prices:
    """What patterns cost: a fixed value and one per byte of the whole tensor, `steps` how many steps they were made of.

    Of tensors of up to `limit` bytes a step becomes an all-reduce, or is combined with others, so that they cost `small`
    and `small_per_byte`.
    """

    steps: int
    fixed: Floats
    per_byte: Floats
    limit: Floats
    small: Floats
    small_per_byte: Floats

    def of(self, index: npt.NDArray[np.int64], whole_bytes: float) -> Floats:
        """The values of these patterns for a tensor of so many bytes; shape as `index`."""
        value = self.fixed + whole_bytes * self.per_byte
        if whole_bytes <= self.limit.max(initial=0.0):
            value = np.where(whole_bytes <= self.limit, self.small + whole_bytes * self.small_per_byte, value)
        return value[index]


@dataclass
class _Met:
    """The patterns between the specs of one rank that were met: `table[way, source, target]` is a number and one, or 0.

    Specs have places in the table in the order in which they are met, so it is as large as what is used and no more: of
    six axes there are a million pairs of specs of a matrix, and a hundred million of an array of four dims.
    """

    sources: dict[int, int] = field(default_factory=dict[int, int])
    targets: dict[int, int] = field(default_factory=dict[int, int])
    table: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros((WAYS, 0, 0), np.int32))

    def places(
        self, rows: npt.NDArray[np.int64], columns: npt.NDArray[np.int64], ways: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Where in the flat table pairs of specs, by their codes, have their places: shape (n, m), as `ways`."""
        row, column = (
            np.array([known.setdefault(code, len(known)) for code in codes.tolist()], np.int64)
            for known, codes in ((self.sources, rows), (self.targets, columns))
        )
        wanted, have = (len(self.sources), len(self.targets)), self.table.shape[1:]
        if any(want > has for want, has in zip(wanted, have, strict=True)):
            # Twice what is needed, as more are met soon.
            grown = [max(has, 2 * want) for want, has in zip(wanted, have, strict=True)]
            table = np.zeros((WAYS, *grown), np.int32)
            # A way that was not met takes no memory, unless it is written to.
            for way in np.flatnonzero(self.table.any(axis=(1, 2))).tolist():
                table[way, : have[0], : have[1]] = self.table[way]
            self.table = table
        _, height, width = self.table.shape
        return (ways * height + row[:, None]) * width + column


@dataclass
class Patterns:
    """The reshards met so far on meshes of one number of axes, of any sizes: their sequences, worked out once each.

    `met[rank]` has the numbers of patterns; `steps` are those of all patterns as (pattern, kind, mask, held),
    `scattering` the patterns that begin with a reduce-scatter; `prices` keeps what they cost on the meshes seen, `indices`
    the patterns between all specs of two nodes there.
    """

    met: dict[int, _Met] = field(default_factory=dict[int, _Met])
    known: dict[bytes, int] = field(default_factory=dict[bytes, int])
    count: int = 0
    steps: list[tuple[int, int, int, int]] = field(default_factory=list[tuple[int, int, int, int]])
    scattering: list[int] = field(default_factory=list[int])
    prices: dict[tuple[Mesh, bool, Shares, bool], _Prices] = field(
        default_factory=dict[tuple[Mesh, bool, Shares, bool], _Prices]
    )
    indices: dict[object, npt.NDArray[np.int64]] = field(default_factory=dict[object, npt.NDArray[np.int64]])

    def index(
        self,
        source: Locations,
        partial: npt.NDArray[np.bool_],
        target: Locations,
        rank: int,
        ways: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.int64]:
        """The pattern of every pair: shape (n, m), as `ways`."""
        axes = source.shape[1]
        # An axis of the source is on a dim, nowhere, or nowhere with partial sums: rank + 2 states.
        states = np.where(partial & (source < 0), rank + 1, source + 1).astype(np.int64)
        rows = states @ (rank + 2) ** np.arange(axes)
        columns = (target.astype(np.int64) + 1) @ (rank + 1) ** np.arange(axes)
        met = self.met.setdefault(rank, _Met())
        places = met.places(rows, columns, ways)
        table = met.table.reshape(-1)
        found = table.take(places)
        if not found.all():
            i, j = np.nonzero(found == 0)
            table[places[i, j]] = self._learn(source[i], partial[i], target[j], ways[i, j]) + 1
            found = table.take(places)
        return found.astype(np.int64) - 1

    def _learn(
        self, source: Locations, partial: npt.NDArray[np.bool_], target: Locations, ways: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """The patterns of some reshards; those that differ only in the numbers of their dims share one."""
        axes = source.shape[1]
        dims = np.stack([source, target], axis=2).reshape(len(source), 2 * axes)
        number = np.full(dims.shape, -1, np.int8)
        met = np.zeros(len(dims), np.int8)
        for place in range(2 * axes):
            fresh = dims[:, place] >= 0
            for before in range(place):
                same = fresh & (dims[:, before] == dims[:, place])
                number[same, place] = number[same, before]
                fresh &= ~same
            number[fresh, place] = met[fresh]
            met += fresh
        keys = np.concatenate([number, partial, ways[:, None]], axis=1, dtype=np.int8)
        void = keys.view(np.dtype((np.void, keys.shape[1])))
        distinct, of = np.unique(void, return_inverse=True)
        learnt = [self._pattern(key, axes) for key in map(bytes, distinct.tolist())]
        return np.asarray(learnt, np.int64)[of.ravel()]

    def _pattern(self, key: bytes, axes: int) -> int:
        """The number of a pattern, by the key that `_steps_of` has."""
        if key not in self.known:
            steps = _steps_of(key, axes)
            self.steps += [(self.count, *step) for step in steps]
            if steps and steps[0][0] == SCATTER:
                self.scattering.append(self.count)
            self.known[key] = self.count
            self.count += 1
        return self.known[key]

    def scatter(self, index: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which of these patterns begin with a reduce-scatter."""
        return np.isin(index, self.scattering)

    def price(self, mesh: Mesh, *, seconds: bool, shares: Shares, last: bool = False) -> _Prices:
        """The values of every pattern on a mesh, or of the `last` step of each alone."""
        nothing = np.zeros(0)
        known = self.prices.get((mesh, seconds, shares, last), _Prices(0, nothing, nothing, nothing, nothing, nothing))
        priced = len(known.fixed)
        count = self.count - priced
        if not count:
            return known
        fixed, per_byte = (mesh.fixed_seconds, mesh.seconds_per_byte) if seconds else (mesh.fixed, mesh.per_byte)
        owner, kind, mask, held = np.array(self.steps[known.steps :], np.int64).reshape(-1, 4).T
        owner -= priced
        parts, counted = mesh.mask_sizes()[held], np.asarray(shares)
        if_small = np.where(kind == GATHER, BY_SUM, kind)
        always = np.isinf(mesh.all_reduced["all-gather"][mask])
        alone = (not last) | np.append(owner[1:] != owner[:-1], True)
        of_fixed, of_bytes, of_alone = counted[np.where(always, if_small, kind)].T * alone
        of_small_fixed, of_small_bytes, _ = counted[if_small].T * alone

        def found(table: Mapping[str, Floats]) -> Floats:
            return np.stack([table[name] for name in COLLECTIVES])[kind, mask]

        def total(values: Floats) -> Floats:
            return np.bincount(owner, values, minlength=count).astype(np.float64)

        limit = found(mesh.all_reduced) * parts
        # Where it always becomes one, that is what the tables say.
        changes = (limit > 0) & np.isfinite(limit)
        latency, each = found(fixed), of_bytes * found(per_byte) / parts
        combined = (of_alone > of_fixed) & ~changes & math.isfinite(mesh.combined_bytes)
        # What is small shares a latency with others, the less the more bytes it has.
        shared = (of_alone - of_fixed) * latency / (mesh.combined_bytes * parts)
        limits = np.zeros(count)
        for some, most in ((changes, limit), (combined, mesh.combined_bytes * parts)):
            np.maximum.at(limits, owner[some], most[some])
        new = (
            total(np.where(combined, of_alone, of_fixed) * latency),
            total(each),
            limits,
            total(np.where(changes, of_small_fixed * fixed["all-reduce"][mask], of_fixed * latency)),
            total(np.where(changes, of_small_bytes * per_byte["all-reduce"][mask] / parts, each + shared)),
        )
        old = (known.fixed, known.per_byte, known.limit, known.small, known.small_per_byte)
        made = _Prices(len(self.steps), *map(np.concatenate, zip(old, new, strict=True)))
        self.prices[mesh, seconds, shares, last] = made
        return made


def patterns_of(
    mesh: Mesh,
    source: Locations,
    partial: npt.NDArray[np.bool_],
    target: Locations,
    *,
    shape: Sequence[int],
    whole_bytes: float,
    patterns: Patterns,
    orders: Sequence[Sequence[int]] | None = None,
) -> npt.NDArray[np.int64]:
    """The numbers among `patterns` of every reshard from `source[i]` (partial over `partial[i]`) to `target[j]`: (n, m).

    Parameters: locations of shapes (n, axes), (n, axes) and (m, axes); `shape` and `whole_bytes` of the tensor;
    `patterns`, what was met before; `orders`, those in which the dims may lie in memory, most major first, if otherwise
    than in `shape`. `Patterns.price` has what they cost.
    """
    ways = ways_of(mesh, source, partial, target, shape=shape, whole_bytes=whole_bytes, orders=orders)
    return patterns.index(source, partial, target, len(shape), ways)


def reshard_steps(
    mesh: Mesh,
    source: Sequence[int],
    partial: Sequence[bool],
    target: Sequence[int],
    *,
    shape: Sequence[int],
    whole_bytes: float,
    orders: Sequence[Sequence[int]] | None = None,
) -> list[Step]:
    """The steps of one reshard, in order; see the module for the sequence and `reshard_values` for the parameters."""
    sizes = mesh.mask_sizes()
    pair = np.array([source], np.int8), np.array([partial], np.bool_), np.array([target], np.int8)
    way = int(ways_of(mesh, *pair, shape=shape, whole_bytes=whole_bytes, orders=orders)[0, 0])
    return [
        Step(
            kind=move.kind,
            mask=move.mask,
            bytes=0.0 if move.kind is None else whole_bytes / float(sizes[move.held]),
            layout=move.layout,
        )
        for move in _sequence(way, source, partial, target, len(shape))
    ]
