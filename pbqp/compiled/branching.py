"""Branch and bound on bytes: what prices leave of the gap where a few large tensors fill a row.

Where a row has room for two and a half of its large tensors, prices bound as if it held two and a half. So the search
branches: of the node that the dual's choices are least decided about, weighted by what its memory is charged, those choices
that pay up to their average are tried without those that pay more, and the other way round. Either side starts from the
messages and prices of both; what no row can hold any more beside everyone's least bytes goes, and so does what its bounds
rule out. The least bound of the open leaves bounds the problem; the leaf that has it is next.
Reference: Land and Doig, "An automatic method of solving discrete programming problems", Econometrica 28 (1960).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import numpy as np
from numpy.typing import NDArray

from pbqp.compiled.arrays import Arrays
from pbqp.compiled.kernels import Floats, Ints
from pbqp.compiled.multiplicative_weights import Dual
from pbqp.deadline import Deadline
from pbqp.exact.lazy_rows import LazyRows
from pbqp.memory_rows import spread
from pbqp.row_table import least_within

Mask = NDArray[np.bool_]
Offer = Callable[[Ints], None]

QUICK, STEPS, MOST_STEPS = 6, 10, 60
"""Sweeps to compare two sides, sweeps of a leaf between two looks at its bound, and in all."""
PAYS = 0.03
"""What part of the gap so many sweeps must close for others to follow."""
CANDIDATES = 4
"""How many nodes are compared by what they are charged, and as many by how undecided they are."""
LEAST_GAIN = 1e-6
"""What a side gains at the least, in parts of the gap, where two are compared by the product of their sides' gains."""
NARROWER = 0.7
"""Arrays are made anew for a leaf that has at most this part of their choices."""
MOST_PAIRS, PROGRAM_SECONDS = 50_000, 5.0
"""How many pairs of choices a leaf has at most that is tried as an integer program, and how long that may take."""
MOST_CHOICES = 20_000_000
"""How many choices all open leaves have at most: they take about a hundred bytes each."""
PLUNGES = 6
"""Every so many leaves of least bound one is plunged from: on to the better of its halves, until that is closed, or as
often as there were leaves of least bound.
"""
FITS = 5
"""How often rows and nodes take turns in removing choices."""
ROUNDING = 1e-9
"""What sums of bytes may be off by, relative."""


@final
class _Part:
    """Arrays with some of the choices of the root: choice c is number `root[c]` there."""

    def __init__(self, arrays: Arrays, root: Ints) -> None:
        self.arrays, self.root = arrays, root
        net, uses = arrays.net, arrays.uses
        holder = np.repeat(np.arange(net.size.size), np.diff(uses.uses_at))
        sizes = net.size[holder]
        self._first = np.cumsum(sizes) - sizes
        self._use = np.repeat(np.arange(sizes.size), sizes)
        within = np.arange(self._use.size) - self._first[self._use]
        self._choice = net.offset[holder][self._use] + within
        self._bytes = uses.bytes[uses.bytes_at[self._use] + within]
        self.node = np.repeat(np.arange(net.size.size), net.size)

    def fit(self, possible: Mask) -> Mask | None:
        """Those of the choices that fit beside everyone's least bytes; None where a node is left without any."""
        a = self.arrays
        possible = possible.copy()
        for _ in range(FITS):
            if not np.logical_or.reduceat(possible, a.net.offset).all():
                return None
            bytes_of = np.where(possible[self._choice], self._bytes, np.inf)
            least = np.minimum.reduceat(bytes_of, self._first)
            slack = ROUNDING * a.units
            room = a.limits - spread(a.uses.begin, a.uses.end, least, a.limits.size) + slack
            if (room < 0).any():
                return None
            wrong = np.isfinite(bytes_of)
            wrong &= bytes_of - least[self._use] > least_within(room, a.uses.begin, a.uses.end)[self._use]
            if not wrong.any():
                return possible
            possible[self._choice[wrong]] = False
        return possible if np.logical_or.reduceat(possible, a.net.offset).all() else None

    def masked(self, possible: Mask) -> Arrays:
        """The arrays with all other choices forbidden."""
        net = self.arrays.net
        return replace(self.arrays, net=net._replace(unary=np.where(possible, net.unary, np.inf)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Leaf:
    """A part of the choices, those `possible`, and the `dual` that bounds them; `sides` are choices of one node each, by
    which the leaf may be divided.
    """

    bound: float
    part: _Part
    possible: Mask
    dual: Dual
    sides: tuple[Mask, ...]


_Entry = tuple[float, int, _Leaf]
"""A leaf in the heap: by its bound, then by its number."""


@final
class Tree:
    """The open leaves below a root whose bound the dual has raised; `grow` divides the one of the least bound.

    What costs `value` (`inf` where no choice is known) or more is of no interest; choices that are met are offered.
    """

    def __init__(self, dual: Dual, value: float, until: Deadline, offer: Offer) -> None:
        arrays = dual.arrays
        self._offsets, self._offer = arrays.net.offset, offer
        self._leaves: list[_Entry] = []
        self._deep: _Entry | None = None
        self._count, self._choices, self._grown, self._depth = 0, 0, 0, 0
        self._pairs = MOST_PAIRS
        self.bound = dual.bound
        """What every choice costs at the least; the last `value` where nothing is left that may cost less."""
        possible = dual.possible(value)
        root = _Part(arrays, np.arange(arrays.net.unary.size))
        whole = self._bounded(root, dual, possible, dual.bound, value, STEPS)
        if whole is not None:
            self._settle(whole, value, until)
        self._look(value)

    @property
    def grows(self) -> bool:
        """Whether there is a leaf to divide, and room for more."""
        return bool(self._leaves) and self._choices < MOST_CHOICES

    def grow(self, value: float, until: Deadline) -> None:
        """Closes the leaf of the least bound by a program, if it is small, or divides it; or goes on to plunge.

        A leaf is divided by that side, of those it knows, which raises the bounds of both most.
        """
        first = self._leaves[0] if self._deep is None else self._deep
        self._grown += self._deep is None
        self._depth = 0 if self._deep is None else self._depth + 1
        leaf = first[2]
        halves: list[_Leaf] = []
        if leaf.bound < value and not self._closed(leaf, value, until):
            halves = self._halves(leaf, value, until)
            if until.passed:
                return
        self._leaves.remove(first)
        heapq.heapify(self._leaves)
        self._choices -= leaf.possible.size
        kept = [entry for entry in (self._settle(child, value, until) for child in halves) if entry is not None]
        plunges = self._depth < self._grown if self._deep is not None else self._grown % PLUNGES == 0
        self._deep = min(kept) if kept and (plunges or math.isinf(value)) else None
        self._look(value)

    def _look(self, value: float) -> None:
        """The bound is that of the first leaf."""
        self.bound = max(self.bound, min(self._leaves[0][0] if self._leaves else math.inf, value))

    def _closed(self, leaf: _Leaf, value: float, until: Deadline) -> bool:
        """Whether a program of the leaf ended; the next may be larger then, else it must be smaller."""
        arrays, root = leaf.part.arrays, leaf.part.root
        left = np.add.reduceat(leaf.possible.astype(np.int64), arrays.net.offset)
        pairs = int((left[arrays.net.first] * left[arrays.net.second]).sum())
        if pairs > self._pairs:
            return False
        if not leaf.possible.all():
            arrays, root = arrays.narrowed(leaf.possible), root[leaf.possible]

        def found(choice: dict[int, int]) -> None:
            pick = np.asarray([choice[node] for node in range(arrays.net.size.size)], dtype=np.int64)
            self._offer(root[arrays.net.offset + pick] - self._offsets)

        program = LazyRows(*arrays.unfolded(), value)
        ended = program.solve(until.within(PROGRAM_SECONDS), value, 0.0, found)
        self._pairs = min(MOST_PAIRS, max(self._pairs, 2 * pairs)) if ended else pairs // 2
        return ended

    def _halves(self, leaf: _Leaf, value: float, until: Deadline) -> list[_Leaf]:
        """Two leaves in place of one, or fewer where one side or both hold nothing of interest."""
        bound = leaf.bound
        reach = min(value, bound + abs(bound)) - bound
        best: tuple[float, list[_Leaf]] = (-math.inf, [])
        for side in leaf.sides:
            here = leaf.part.node == leaf.part.node[int(side.argmax())]
            pair: list[_Leaf] = []
            gain = 1.0
            for half in (side, here & ~side):
                child = self._bounded(leaf.part, leaf.dual, leaf.possible & (half | ~here), bound, value, QUICK)
                if child is not None:
                    gain *= max(min(child.bound, value) - bound, LEAST_GAIN * reach)
                    pair.append(child)
            if len(pair) < 2 or until.passed:
                return pair
            if gain > best[0]:
                best = (gain, pair)
        return best[1]

    def _settle(self, leaf: _Leaf, value: float, until: Deadline) -> _Entry | None:
        """Bounds a leaf as well as it pays, and keeps it if something in it may cost less than `value`."""
        dual, part, net = leaf.dual, leaf.part, leaf.part.arrays.net
        charges, squares = np.zeros(net.size.size), np.zeros(net.size.size)
        picks: list[Ints] = []
        reached = dual.bound
        for step in range(MOST_STEPS):
            over = dual.step()
            charge = dual.paid[net.offset + dual.pick]
            charges += charge
            squares += charge * charge
            picks.append(dual.pick)
            if over.max(initial=0.0) <= 0 or step == MOST_STEPS - 1:
                self._offer(part.root[net.offset + dual.pick] - self._offsets)
            if dual.bound >= value:
                return None
            if step % STEPS == STEPS - 1:
                if until.passed or dual.bound - reached < PAYS * (value - dual.bound):
                    break
                reached = dual.bound
        fitting = part.fit(leaf.possible & dual.possible(value))
        if fitting is None:
            return None
        count = len(picks)
        variance = squares / count - (charges / count) ** 2
        sides = self._sides(part, dual, fitting, charges / count, variance, np.asarray(picks))
        if not sides:
            return None
        bound = max(leaf.bound, dual.bound)
        if fitting.sum() <= NARROWER * fitting.size:
            narrow = _Part(part.arrays.narrowed(fitting), part.root[fitting])
            dual = Dual.following(dual, narrow.arrays, fitting)
            sides = tuple(side[fitting] for side in sides)
            part, fitting = narrow, np.ones(narrow.root.size, dtype=np.bool_)
        kept = _Leaf(bound=bound, part=part, possible=fitting, dual=dual, sides=sides)
        self._count += 1
        self._choices += fitting.size
        entry = bound, self._count, kept
        heapq.heappush(self._leaves, entry)
        return entry

    def _bounded(
        self, part: _Part, start: Dual, possible: Mask, bound: float, value: float, steps: int
    ) -> _Leaf | None:
        """A part of the choices after some steps; None where nothing in it costs less than `value`."""
        fitting = part.fit(possible)
        if fitting is None:
            return None
        dual = Dual.following(start, part.masked(fitting))
        for _ in range(steps):
            dual.step()
            if dual.bound >= value:
                return None
        return _Leaf(bound=max(bound, dual.bound), part=part, possible=fitting, dual=dual, sides=())

    def _sides(
        self, part: _Part, dual: Dual, possible: Mask, mean: Floats, variance: Floats, picks: Ints
    ) -> tuple[Mask, ...]:
        """By what a leaf may be divided; nothing where it has no choice but one."""
        net = part.arrays.net
        left = np.add.reduceat(possible.astype(np.intp), net.offset)
        if (left == 1).all():
            return ()
        sides: list[Mask] = []
        lower = possible & (dual.paid <= mean[part.node])
        below = np.add.reduceat(lower.astype(np.intp), net.offset)
        splits = np.where((below > 0) & (below < left), variance, 0.0)
        for node in np.argsort(-splits, kind="stable")[:CANDIDATES].tolist():
            if splits[node] > 0:
                sides.append(lower & (part.node == node))
        changes = np.where(left > 1, (picks[1:] != picks[:-1]).sum(axis=0), -1)
        for node in np.argsort(-changes, kind="stable")[:CANDIDATES].tolist():
            if changes[node] > 0:
                sides.append(self._alike(part, possible, node, picks[:, node]))
        if not sides:
            node = int(left.argmax())
            inside = np.flatnonzero(possible & (part.node == node))
            side = np.zeros_like(possible)
            side[inside[np.argsort(dual.bounds[inside], kind="stable")[: inside.size // 2]]] = True
            sides.append(side)
        return tuple(sides)

    def _alike(self, part: _Part, possible: Mask, node: int, picks: Ints) -> Mask:
        """The choices of a node that are more like the one picked most often than like the next."""
        net = part.arrays.net
        offset, size = int(net.offset[node]), int(net.size[node])
        counts = np.bincount(picks, minlength=size).astype(np.float64)
        counts[~possible[offset : offset + size]] = -1.0
        first, second = np.argsort(-counts, kind="stable")[:2].tolist()
        far_first, far_second = np.zeros(size), np.zeros(size)
        for edge in net.edges[net.edges_at[node] : net.edges_at[node + 1]].tolist():
            shape = (int(net.size[net.first[edge]]), int(net.size[net.second[edge]]))
            begin = int(net.table_at[edge])
            table = net.tables[begin : begin + shape[0] * shape[1]].reshape(shape)
            table = table if int(net.first[edge]) == node else table.T
            far_first += np.abs(table - table[first]).mean(axis=1)
            far_second += np.abs(table - table[second]).mean(axis=1)
        near = far_first < far_second
        near[first], near[second] = True, False
        side = np.zeros_like(possible)
        side[offset : offset + size] = near
        return side & possible
