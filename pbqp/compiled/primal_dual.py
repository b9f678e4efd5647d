"""The method for large problems with rows: prices and bounds in one thread, good choices in another.

Ties are folded; where what is left is small for the time given, an integer program (`lazy_rows`) closes the gap. Else the
dual (`multiplicative_weights`), and once it is at rest branches (`branching`), raise a bound and propose choices; the
primal (`block_moves`) moves blocks of nodes at the dual's prices and takes over the parts of the proposals that help. When
that comes to rest, it starts again: from its best choice bettered by the program of a core (`cores`) or shaken, and in turn
from what prices multiplied by noise lead to, because with few rows and large tensors good choices are far apart. Where the
bounds rule out many choices, all of this starts anew on what is left. Both run compiled and at the same time, so two cores
are used, and the outcome depends on the machine's timing as well as on the seed.
"""

from __future__ import annotations

import math
from typing import final

import numpy as np

from pbqp.compiled.arrays import Arrays
from pbqp.compiled.block_moves import Primal
from pbqp.compiled.cores import Cores
from pbqp.compiled.kernels import Floats, Ints
from pbqp.compiled.multiplicative_weights import Dual
from pbqp.compiled.rising import Rising
from pbqp.deadline import Deadline
from pbqp.exact.elimination import proven
from pbqp.exact.lazy_rows import LazyRows
from pbqp.incumbent import Incumbent
from pbqp.network.network import Indices
from pbqp.options import SolveOptions
from pbqp.problem import Problem
from pbqp.row_table import RowTable
from pbqp.smaller.folding import Tied
from pbqp.smaller.prepared import Prepared
from pbqp.smaller.smaller import Chain
from pbqp.solution import Detail, Solution

HEAD_START, LOOK = 0.12, 100
"""Part of the time in which only the dual runs, so that the primal starts with prices that mean something, and the steps
between two looks at whether it still rises."""
TELL_SECONDS = 2.0
"""How often a better choice is told at most."""
QUIET_ROUNDS = 4
"""Rounds without progress before the primal starts a descent from elsewhere."""
SETTLED, SETTLED_SECONDS = 4.0, 10.0
"""The search ends after so many times what it took to the last progress, and so many seconds."""
SHAKES = 12
"""How often the best choice is shaken where moves are counted."""
DESCENTS = 3
"""Descents of which one starts from a core, one from the best choice shaken, and the others at prices times noise."""
GOAL = 1e-3
"""Gap from which on the search is no more patient than that, whatever `SolveOptions.patience` says."""
FEWER, MANY_FEWER = 0.9, 0.5
"""The search goes on without the choices that are ruled out once this part of them is left, at rest and before it."""
WORTH = 0.2
"""The search starts anew only with so much time left, in parts of what it has taken on this network."""
FIRST_SHARE, LATER_SHARE = 0.3, 0.5
"""Part of the time left that the integer program of the whole network may take, and that of what pruning leaves."""
PAIRS_PER_SECOND = 5_000
"""How large a program is tried: pairs of choices on edges per second. HiGHS solves 50,000 in one to ten."""
LITTLE = 1e-4
"""What part of value or bound is progress."""
LAST_SECONDS = 0.03
"""Part of the time kept for what follows the search."""
THRIFTIER = (1.0, 1.5, 3.0, 10.0, 100.0, 1e4)
"""By what prices are multiplied in turn until a choice within the rows is found."""
THRIFTY_STEPS = 10
"""Sweeps at each of them."""


def run_primal_dual(problem: Problem, options: SolveOptions) -> Solution:
    """The best choice found within the time and the bound proven, all rows at once."""
    rows = RowTable.of(problem)
    best = Incumbent(problem, rows, options)
    return best.solution("primal_dual", search_priced(problem, rows, best, options))


def search_priced(problem: Problem, rows: RowTable, best: Incumbent, options: SolveOptions) -> Detail:
    """Uses the time left to improve choice and bound of `best`, whose rows are `rows`; what the network became."""
    prepared = Prepared(problem, rows, options.table_cache)
    ended = "gap"
    if prepared.fit() and prepared.reduce(dominance=False) and prepared.fit():
        ended = _improve(prepared, best, options)
    else:
        best.raise_bound(math.inf if best.choice is None else best.value)
    return {**prepared.detail, "ended": ended}


def search_counted(problem: Problem, rows: RowTable, best: Incumbent, options: SolveOptions) -> Detail:
    """What the dual and the primal reach one after the other in sweeps and moves that are counted, not timed.

    The same on every machine; mostly within a thousandth for programs of some thousands of choices.
    """
    prepared = Prepared(problem, rows, options.table_cache)
    if prepared.fit() and prepared.reduce(dominance=False) and prepared.fit() and prepared.network.live:
        tied = Tied(prepared.network.copy(), rows)
        if tied.possible:
            _Stage(prepared, tied, best, options, None).count(options.deadline.within(HEAD_START * options.left()))
    return prepared.detail


def _improve(prepared: Prepared, best: Incumbent, options: SolveOptions) -> str:
    """Raises the bound and improves the choice of `best`; what ended that: "gap", "stall" or "time".

    The rows of `prepared` must be those of `best`. Goes by stages: each has a smaller network, without the choices that the
    bounds of the one before rule out.
    """
    until = Deadline.after(options.left() * (1 - LAST_SECONDS))
    prices: Floats | None = None
    share = FIRST_SHARE
    while True:
        if not prepared.network.live:
            best.offer(prepared.complete({}))
            best.raise_bound(min(proven(prepared.network, prepared.network.constant), best.value))
            return "gap"
        tied = Tied(prepared.network.copy(), prepared.rows)
        if tied.possible:
            _program(prepared, tied, best, options, until.within(share * until.left()))
        else:
            best.raise_bound(math.inf if best.choice is None else best.value)
        if best.settled:
            return "gap"
        stage = _Stage(prepared, tied, best, options, prices)
        ended = stage.run(until)
        if ended != "smaller":
            return ended
        prices, share = stage.dual.prices, LATER_SHARE
        if not stage.shrink():
            best.raise_bound(math.inf if best.choice is None else best.value)
            return "gap"


def _program(prepared: Prepared, tied: Tied, best: Incumbent, options: SolveOptions, until: Deadline) -> None:
    """Closes the gap by the integer program, where it is small for the time there is."""
    pairs = sum(table.size for _, _, table in tied.network.edges())
    if pairs > PAIRS_PER_SECOND * until.left():
        return

    def found(choice: dict[int, int]) -> None:
        whole = np.zeros(len(tied.network.labels), dtype=np.intp)
        for node, label in choice.items():
            whole[node] = label
        best.offer(Chain((prepared, tied)).lift(whole))

    def on_bound(bound: float) -> None:
        best.raise_bound(bound if best.choice is None else min(bound, best.value))

    program = LazyRows(tied.network, prepared.rows, tied.carried, best.value)
    program.solve(until, best.value, options.gap, found, on_bound)


@final
class _Stage:
    """The search on one network: `dual` and `primal` go on from where they are whenever it runs again."""

    def __init__(
        self, prepared: Prepared, tied: Tied, best: Incumbent, options: SolveOptions, prices: Floats | None
    ) -> None:
        self.prepared, self.tied, self.best, self.options = prepared, tied, best, options
        self.arrays = Arrays.of(tied.network, prepared.rows, tied.carried)
        self.dual = Dual(self.arrays, prices)
        self.rising = Rising(self.dual)
        self._steps = Chain((prepared, tied, self.arrays))
        self._random = np.random.default_rng(options.seed)
        self._reported, self._reported_at = math.inf, -math.inf

    def run(self, until: Deadline) -> str:
        """Searches until the gap is closed, the time is up, or nothing moves, and says which ("gap", "time", "stall").

        "smaller": many choices are ruled out, so the search should go on without them.
        """
        dual, best = self.dual, self.best
        self._swept(Deadline.after(HEAD_START * until.left()), good_enough=True)
        primal = Primal(self.arrays, dual, self.options.seed)
        _enter(primal, dual, dual.prices, until)
        known = None if best.choice is None else self.arrays.picked(best.choice)
        if known is not None:
            primal.restart(known)
        with self.rising.beside(until):
            ended = self._descend(primal, until)
        found = self.rising.found()
        if found is not None:
            primal.restart(found)
        if math.isfinite(primal.value):
            best.offer(self._steps.lift(primal.best))
        best.raise_bound(min(self.rising.bound, best.value))
        return "gap" if best.settled else ended

    def count(self, until: Deadline) -> None:
        """Sweeps to rest, and moves to rest from what the prices lead to, from the best that sweeps met, and shaken."""
        best, dual = self.best, self.dual
        met = self._swept(until, good_enough=False)
        best.raise_bound(min(dual.bound, best.value))
        primal = Primal(self.arrays, dual, self.options.seed, timed=False)
        _enter(primal, dual, dual.prices, until)
        for turn in range(2 + SHAKES):
            if turn == 1 and met is not None:
                primal.restart(met)
            elif turn > 1:
                primal.shake()
            while primal.quiet < QUIET_ROUNDS and not until.passed:
                primal.round(until)
        if math.isfinite(primal.value):
            best.offer(self._steps.lift(primal.best))

    def _swept(self, until: Deadline, *, good_enough: bool) -> Ints | None:
        """Sweeps until the bound hardly rises, the time is up, or a choice within the rows is `good_enough`, if asked.

        The cheapest choice within the rows that was met.
        """
        dual, mark = self.dual, -math.inf
        met, least = None, math.inf
        while not until.passed or dual.steps < 2:
            if dual.steps and dual.steps % LOOK == 0:
                if not _clearly_less(-dual.bound, -mark):
                    break
                mark = dual.bound
            over = dual.step()
            if over.max(initial=0.0) <= 0 and (value := dual.value(dual.pick)) < least:
                met, least = dual.pick, value
                if good_enough and self.best.settles(value, dual.bound):
                    break
        return met

    def shrink(self) -> bool:
        """Takes out of `prepared` what the bounds rule out; False if nothing is left."""
        network = self.prepared.network
        possible = self.dual.possible(self.best.value)
        kept: dict[int, Indices] = {}
        offsets, sizes = self.arrays.net.offset.tolist(), self.arrays.net.size.tolist()
        for i, (name, offset, size) in enumerate(zip(self.arrays.names.tolist(), offsets, sizes, strict=True)):
            kept[name] = self.arrays.labels[i][possible[offset : offset + size]]
        for node, labels in self.tied.labels_of(kept).items():
            keep = np.isin(network.labels[node], labels)
            if not keep.all():
                self.prepared.count("pruned", int(keep.size - keep.sum()))
                network.keep(node, keep)
            if not keep.any():
                return False
        return self.prepared.fit() and self.prepared.reduce(dominance=False) and self.prepared.fit()

    def _descend(self, primal: Primal, until: Deadline) -> str:
        """Descents of the primal, one after the other; what ended them, as for `run`."""
        dual, best, rising = self.dual, self.best, self.rising
        cores = Cores(self.arrays, self.options.seed)
        little = 0.5 * max(self.options.gap, best.tolerance)
        began = progress = self.options.elapsed()
        value, bound, descents = math.inf, -math.inf, 0
        open_choices = self.arrays.net.unary.size - self.arrays.net.size.size
        while not until.passed:
            now = self.options.elapsed()
            found = rising.found()
            if found is not None:
                primal.restart(found)
            primal.fuse([rising.proposals.popleft() for _ in range(len(rising.proposals))])
            primal.round(until)
            if math.isfinite(primal.value):
                rising.value = primal.value - little * abs(primal.value)
            best.raise_bound(min(rising.bound, primal.value))
            settled = best.settles(primal.value, best.bound)
            if primal.value < self._reported and (settled or now >= self._reported_at + TELL_SECONDS):
                self._reported, self._reported_at = primal.value, now
                best.offer(self._steps.lift(primal.best))
            if _clearly_less(primal.value, value) or _clearly_less(-best.bound, -bound):
                value, bound, progress = primal.value, best.bound, now
            if settled or best.settled:
                return "gap"
            rest = now - began - (SETTLED_SECONDS + SETTLED * (progress - began))
            if (rest > 0 or now - began > SETTLED_SECONDS) and until.left() > WORTH * (now - began):
                left = int(self.dual.possible(primal.value).sum()) - self.arrays.net.size.size
                if left < (FEWER if rest > 0 else MANY_FEWER) * open_choices:
                    return "smaller"
            goal = primal.value - best.bound <= GOAL * abs(primal.value)
            if now - began > (1.0 if goal else self.options.patience) * (now - began - rest):
                return "stall"
            if primal.quiet >= QUIET_ROUNDS:
                descents += 1
                if math.isfinite(primal.value) and descents % DESCENTS == 1:
                    core = cores.better(primal.best, primal.value, dual, until)
                    if core is None:
                        primal.shake()
                    else:
                        primal.restart(core)
                elif math.isfinite(primal.value) and descents % DESCENTS == 2:
                    primal.shake()
                else:
                    noise = self._random.normal(0.0, 1.0, dual.prices.size) + self._random.normal(0.0, 1.0)
                    _enter(primal, dual, dual.prices * np.exp(noise), until)
        return "time"


def _clearly_less(new: float, old: float) -> bool:
    return new < (old if math.isinf(old) else old - LITTLE * abs(old))


def _enter(primal: Primal, dual: Dual, prices: Floats, until: Deadline) -> None:
    """Starts the primal at some prices, or where they leave a row overfull at dearer and dearer ones."""
    if not prices.size:
        primal.restart(dual.pick)
        return
    trial = Dual(dual.arrays)
    start = prices if prices.any() else np.full(prices.size, abs(dual.bound))
    for factor in THRIFTIER:
        trial.hold(start * factor + (factor - 1) * start.mean())
        for _ in range(THRIFTY_STEPS):
            trial.step()
        primal.restart(trial.pick)
        if primal.fullest <= 0 or until.passed:
            return
