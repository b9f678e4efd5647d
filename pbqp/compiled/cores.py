"""Better choices from integer programs of cores: every node keeps what it has now, and what by its bound may be worth it.

How much the bound of a choice is above that of all measures how unlikely it is to be in the best. A core is made of the
choices below some threshold, so many that HiGHS can solve their program, rows and all, in seconds: it exchanges what no
tree of neighbours and no prices exchange, a large tensor here for two smaller ones there. The threshold is another for
every node and every core: the same for all, drawn at random, or low but for the nodes around one.
Reference: Balas and Zemel, "An algorithm for large zero-one knapsack problems", Operations Research 28 (1980).
"""

from __future__ import annotations

from typing import final

import numpy as np
from numpy.typing import NDArray

from pbqp.compiled.arrays import Arrays
from pbqp.compiled.kernels import Floats, Ints
from pbqp.compiled.multiplicative_weights import Dual
from pbqp.deadline import Deadline
from pbqp.exact.lazy_rows import LazyRows

Mask = NDArray[np.bool_]

PAIRS, MOST_PAIRS, LEAST_PAIRS = 20_000, 400_000, 2_000
"""Pairs of choices of the first core, and of any."""
LARGER, SMALLER = 1.5, 0.5
"""What follows a program that ended in time, and one that did not."""
SECONDS, SHARE = 10.0, 0.1
"""How long a program may take, also as a part of the time left."""
DEAR, MOST_KNOWN = 1e-3, 50
"""Rows are written down from the start whose prices are above this part of the largest, the dearest so many."""
SECONDS_PER_CHOICE, LONGER = 1e-4, 1.5
"""No core is begun with less time left than so often what the longest took; the first is guessed by its choices."""
HALVINGS = 30
"""Steps in which the threshold is found."""
NEAR = 100.0
"""By what the thresholds of the nodes around one are higher than those of others."""
BALL = 0.2
"""Largest part of the nodes that are around one."""


@final
class Cores:
    """Programs of cores of one network, each different from the last."""

    def __init__(self, arrays: Arrays, seed: int) -> None:
        self.arrays = arrays
        self._random = np.random.default_rng(seed)
        self._pairs = PAIRS
        self._turn = 0
        self._longest = SECONDS_PER_CHOICE * arrays.net.unary.size
        net = arrays.net
        self._node = np.repeat(np.arange(net.size.size), net.size)

    def better(self, pick: Ints, value: float, dual: Dual, until: Deadline) -> Ints | None:
        """A choice that costs less than `value`, which `pick` costs, if the next core has one.

        The `dual` bounds every choice, and knows which rows have a price.
        """
        clock = Deadline.never()
        if until.left() < LONGER * self._longest:
            return None
        arrays, net, floors = self.arrays, self.arrays.net, dual.floors
        above = np.maximum(floors - np.minimum.reduceat(floors, net.offset)[self._node], 0.0)
        score = above * self._weights()[self._node]
        score[net.offset + pick] = 0.0
        low, high = 0.0, float(score.max(initial=0.0))
        for _ in range(HALVINGS):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if self._size(score <= middle) <= self._pairs else (low, middle)
        core = score <= low
        core[net.offset + pick] = True
        if core.sum() == net.size.size:
            return None
        narrow = arrays.narrowed(core)
        choice_of = np.flatnonzero(core)
        found: list[Ints] = []

        def take(choice: dict[int, int]) -> None:
            few = np.asarray([choice[node] for node in range(net.size.size)], dtype=np.int64)
            found.append(choice_of[narrow.net.offset + few] - net.offset)

        program = LazyRows(*narrow.unfolded(), value)
        dear = np.flatnonzero(dual.prices > DEAR * dual.prices.max(initial=0.0))
        known = dear[np.argsort(-dual.prices[dear], kind="stable")[:MOST_KNOWN]]
        ended = program.solve(until.within(min(SECONDS, SHARE * until.left())), value, 0.0, take, known=known)
        self._longest = max(self._longest, clock.elapsed)
        pairs = self._pairs * (LARGER if ended else SMALLER)
        self._pairs = int(min(max(pairs, LEAST_PAIRS), MOST_PAIRS))
        fitting = [other for other in found if arrays.over(other).max(initial=0.0) <= 0]
        return fitting[-1] if fitting else None

    def _size(self, core: Mask) -> int:
        """Pairs of choices on the edges of a core."""
        net = self.arrays.net
        left = np.add.reduceat(core.astype(np.int64), net.offset)
        pairs = left[net.first] * left[net.second]
        return int(pairs[(left[net.first] > 1) & (left[net.second] > 1)].sum() + left[left > 1].sum())

    def _weights(self) -> Floats:
        """By what the bounds of every node's choices are multiplied, in this turn."""
        count = self.arrays.net.size.size
        kind, self._turn = self._turn % 3, self._turn + 1
        if kind == 0:
            return np.exp(self._random.normal(0.0, 0.1 * self._turn / (1 + self._turn), count))
        if kind == 1:
            return np.exp(self._random.normal(0.0, 1.5, count))
        near = self._ball(max(2, int(BALL * count * self._random.random() ** 2)))
        return np.where(near, 1.0, NEAR)

    def _ball(self, wanted: int) -> Mask:
        """The nodes around one of more than one choice, drawn at random."""
        net = self.arrays.net
        inside = np.zeros(net.size.size, dtype=np.bool_)
        queue = [int(self._random.choice(np.flatnonzero(net.size > 1)))] if (net.size > 1).any() else []
        inside[queue] = True
        for node in queue:
            edges = net.edges[net.edges_at[node] : net.edges_at[node + 1]]
            for other in np.concatenate([net.first[edges], net.second[edges]]).tolist():
                if not inside[other] and len(queue) < wanted:
                    inside[other] = True
                    queue.append(other)
        return inside
