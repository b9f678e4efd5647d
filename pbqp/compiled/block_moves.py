"""Good choices for large networks with rows: blocks moved to their best choice, and choices of the dual fused in.

A block is a tree of nodes, small or most of the network, whose best choice beside all others is found by one pass of
dynamic programming. Memory is charged at the dual's prices; a move must lower cost plus charge (or in every third
round the cost alone), and must not overfill a row. Large blocks find what small ones cannot, small ones fit where
large ones overfill: all sizes take turns, for about the same time each. Where rounds bring nothing, blocks drawn at a
temperature shake the best choice, or the descent starts from elsewhere.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import final

import numpy as np

from pbqp.compiled.arrays import Arrays
from pbqp.compiled.kernels import Descent, Floats, Ints, Peaks, build, fuse, move_blocks
from pbqp.compiled.multiplicative_weights import Dual
from pbqp.deadline import Deadline

SIZES: tuple[int, ...] = (30, 100, 300, 1000, 3000, 10000)
"""Largest blocks of the turns of a round, in nodes."""
CHARGES = np.asarray([1.0, 1.0, 1.0, 2.0, 0.5, 0.0])
"""Of which one is drawn for every block: by what the prices are multiplied."""
FREE_CHARGES = np.asarray([0.0, 0.0, 0.5, 1.0])
"""The same where moves are judged by their cost alone."""
TURN_SECONDS = 0.1
"""How long the blocks of one size are moved, at most, before the next size has its turn."""
TURN_VISITS = 20
"""How often every node is in a block of a turn, on average, at most."""
UNTIMED_VISITS = 4
"""The same where turns are not timed."""
MOVE_PAYS = 1e-7
"""By what part a choice must be cheaper to count as progress."""
HEAT = 2.0
"""Temperature of the shaking, in the average cost of a node."""


@final
class Primal:
    """One choice that moves, `pick`, and the best within the rows, `best` with its `value`; `inf` before there is one.

    Turns last as long as they may where they are `timed`, else they have as many moves on every machine.
    """

    def __init__(self, arrays: Arrays, dual: Dual, seed: int, *, timed: bool = True) -> None:
        self.arrays, self.dual, self._timed = arrays, dual, timed
        self._random = np.random.default_rng(seed)
        width = 1 << max(1, int(arrays.limits.size - 1).bit_length())
        self._peaks = Peaks(tree=np.zeros(2 * width), added=np.zeros(width))
        self._paid = np.zeros(arrays.net.unary.size)
        self._moves = dict.fromkeys(SIZES, 1)
        self._cost = np.asarray([0.0, math.inf])
        self._round = 0
        self.quiet = 0
        self._lowest = math.inf
        self.best: Ints = dual.pick.copy()
        self.pick: Ints = dual.pick.copy()
        self.restart(dual.pick)

    @property
    def value(self) -> float:
        """Cost of the best choice within the rows."""
        return float(self._cost[1])

    @property
    def fullest(self) -> float:
        """Bytes of the fullest row over its limit, under the choice that moves."""
        return float(self._peaks.tree[1])

    def restart(self, pick: Ints) -> None:
        """Goes on from a choice."""
        self.pick = pick.copy()
        self.quiet, self._lowest = 0, math.inf
        self._resume()

    def _resume(self) -> None:
        """Sums cost and memory of the present choice anew, so that rounding does not add up."""
        over = self.arrays.over(self.pick)
        build(over if over.size else np.full(1, -1.0), self._peaks)
        self._cost[0] = self.dual.value(self.pick)
        if self.fullest <= 0 and self._cost[0] < self._cost[1]:
            self._cost[1] = self._cost[0]
            self.best = self.pick.copy()

    def fuse(self, proposals: Sequence[Ints]) -> None:
        """Takes over what helps of each proposal."""
        self.dual.per_choice(self.dual.prices, self._paid)
        for proposal in proposals:
            for hot in (1.0, 0.0):
                fuse(proposal, hot, self.arrays.net, self.arrays.uses, self._descent)

    def round(self, until: Deadline) -> None:
        """One turn of every block size, as long as there is time.

        `quiet` counts the rounds since the choice that moves was last cheaper than ever since its start.
        """
        self.dual.per_choice(self.dual.prices, self._paid)
        free = self._round % 3 == 2 and self.fullest <= 0
        self._round += 1
        for largest in SIZES:
            if until.passed:
                break
            self._turn(largest, FREE_CHARGES if free else CHARGES, 0.0 if free else 1.0, 0.0)
            if largest >= self.arrays.names.size:
                break
        self._resume()
        better = self._cost[0] < self._lowest * (1 - math.copysign(MOVE_PAYS, self._lowest))
        self.quiet = 0 if better else self.quiet + 1
        self._lowest = min(self._lowest, float(self._cost[0]))

    def shake(self) -> None:
        """Goes on from the best choice, after blocks of one size drawn at a temperature."""
        self.restart(self.best)
        heat = HEAT * self._random.random() ** 2 * abs(self.value) / self.arrays.names.size
        self.dual.per_choice(self.dual.prices, self._paid)
        self._turn(int(self._random.choice(SIZES)), CHARGES, 1.0, heat)

    def _turn(self, largest: int, charges: Floats, hot: float, heat: float) -> None:
        began = time.perf_counter()
        block = min(largest, int(self.arrays.names.size))
        seed = int(self._random.integers(1 << 31))
        moves = self._moves[largest] if self._timed else max(1, UNTIMED_VISITS * int(self.arrays.names.size) // block)
        arrays = self.arrays
        move_blocks(seed, moves, block, charges, hot, heat, arrays.net, arrays.transposed, arrays.uses, self._descent)
        spent = max(time.perf_counter() - began, 1e-6)
        visits = max(8, TURN_VISITS * int(self.arrays.names.size) // block)
        self._moves[largest] = min(visits, max(1, int(moves * min(4.0, TURN_SECONDS / spent))))

    @property
    def _descent(self) -> Descent:
        return Descent(prices=self._paid, peaks=self._peaks, pick=self.pick, cost=self._cost, best=self.best)
