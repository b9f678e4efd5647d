"""The method for large problems with rows: prices and bounds in one thread, good choices in another.

The dual (`multiplicative_weights`) raises a bound and proposes choices; the primal (`block_moves`) moves blocks of
nodes at the dual's prices and takes over the parts of the proposals that help. When that comes to rest, it starts
again: from its best choice shaken, and in turn from what prices multiplied by noise lead to, because with few rows and
large tensors good choices are far apart. Both run compiled and at the same time, so two cores are used, and the outcome
depends on the machine's timing as well as on the seed.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager

import numpy as np

from planner.solver.compiled.arrays import Arrays
from planner.solver.compiled.block_moves import Primal
from planner.solver.compiled.kernels import Floats, Ints
from planner.solver.compiled.multiplicative_weights import Dual
from planner.solver.control import Control
from planner.solver.deadline import Deadline
from planner.solver.incumbent import Incumbent
from planner.solver.problem import Problem
from planner.solver.row_table import RowTable
from planner.solver.smaller.folding import Tied
from planner.solver.smaller.prepared import Prepared
from planner.solver.smaller.smaller import Chain
from planner.solver.solution import Detail, Solution

HEAD_START = 0.12
"""Part of the time in which only the dual runs, so that the primal starts with prices that mean something."""
PROPOSALS = 40
"""How many of the dual's latest choices wait to be fused."""
TELL_SECONDS = 2.0
"""How often a better choice is told at most."""
QUIET_ROUNDS = 4
"""Rounds without progress before the primal starts a descent from elsewhere."""
SETTLED, SETTLED_SECONDS = 4.0, 10.0
"""The search ends after so many times what it took to the last progress, and so many seconds."""
LITTLE = 1e-4
"""What part of value or bound is progress."""
LAST_SECONDS = 0.03
"""Part of the time kept for what follows the search."""
THRIFTIER = (1.0, 1.5, 3.0, 10.0, 100.0, 1e4)
"""By what prices are multiplied in turn until a choice within the rows is found."""
THRIFTY_STEPS = 10
"""Sweeps at each of them."""


def run_primal_dual(problem: Problem, control: Control) -> Solution:
    """The best choice found within the time and the bound proven, all rows at once."""
    rows = RowTable.of(problem)
    best = Incumbent(problem, rows, control)
    return best.solution("primal_dual", search_priced(problem, rows, best, control))


def search_priced(problem: Problem, rows: RowTable, best: Incumbent, control: Control) -> Detail:
    """Uses the time left to improve choice and bound of `best`, whose rows are `rows`; what the network became."""
    prepared = Prepared(problem, rows, control.table_cache)
    if prepared.fit() and prepared.reduce(dominance=False) and prepared.fit():
        _improve(prepared, best, control)
    else:
        best.raise_bound(math.inf if best.choice is None else best.value)
    return prepared.detail


def _improve(prepared: Prepared, best: Incumbent, control: Control) -> None:
    """Raises the bound and improves the choice of `best` until it is proven optimal or the time is up.

    The rows of `prepared` must be those of `best`.
    """
    until = Deadline.after(control.left() * (1 - LAST_SECONDS))
    if not prepared.network.live:
        best.offer(prepared.complete({}))
        best.raise_bound(prepared.network.constant)
        return
    tied = Tied(prepared.network.copy(), prepared.rows)
    if not tied.possible:
        best.raise_bound(math.inf if best.choice is None else best.value)
        return
    arrays = Arrays.of(tied.network, prepared.rows, tied.carried)

    steps = Chain((prepared, tied, arrays))

    def offer(pick: Ints) -> None:
        best.offer(steps.lift(pick))

    dual = Dual(arrays)
    head = Deadline.after(HEAD_START * until.left())
    while not head.passed or dual.steps < 2:
        over = dual.step()
        if over.max(initial=0.0) <= 0 and best.settles(dual.value(dual.pick), dual.bound):
            break
    primal = Primal(arrays, dual, control.seed)
    _enter(primal, dual, dual.prices, until)
    known = None if best.choice is None else arrays.picked(best.choice)
    if known is not None:
        primal.restart(known)
    with _rising(dual, until) as proposals:
        _descend(primal, dual, proposals, best, offer, until, control.seed)
    if math.isfinite(primal.value):
        offer(primal.best)
    best.raise_bound(min(dual.bound, best.value))


@contextmanager
def _rising(dual: Dual, until: Deadline) -> Generator[deque[Ints]]:
    """Raises the dual's bound in a thread of its own; the choices that it proposes meanwhile."""
    proposals: deque[Ints] = deque(maxlen=PROPOSALS)
    stop = threading.Event()

    def rise() -> None:
        while not stop.is_set() and not until.passed:
            dual.step()
            proposals.append(dual.pick)

    thread = threading.Thread(target=rise, daemon=True)
    thread.start()
    try:
        yield proposals
    finally:
        stop.set()
        thread.join()


def _descend(
    primal: Primal,
    dual: Dual,
    proposals: deque[Ints],
    best: Incumbent,
    offer: Callable[[Ints], None],
    until: Deadline,
    seed: int,
) -> None:
    """Descents of the primal, one after the other, until the best will do, little is to be hoped for, or time is up."""
    random = np.random.default_rng(seed)
    began = progress = time.monotonic()
    value, bound, descents = math.inf, -math.inf, 0
    told, told_at = math.inf, 0.0
    while (now := time.monotonic()) < until.end:
        primal.fuse([proposals.popleft() for _ in range(len(proposals))])
        primal.round(until)
        best.raise_bound(min(dual.bound, primal.value))
        settled = best.settles(primal.value, dual.bound)
        if primal.value < told and (settled or now >= told_at + TELL_SECONDS):
            told, told_at = primal.value, now
            offer(primal.best)
        if _clearly_less(primal.value, value) or _clearly_less(-dual.bound, -bound):
            value, bound, progress = primal.value, dual.bound, now
        if settled or best.settled or now - began > SETTLED_SECONDS + SETTLED * (progress - began):
            return
        if primal.quiet >= QUIET_ROUNDS:
            descents += 1
            if descents % 2 and math.isfinite(primal.value):
                primal.shake()
            else:
                noise = random.normal(0.0, 1.0, dual.prices.size) + random.normal(0.0, 1.0)
                _enter(primal, dual, dual.prices * np.exp(noise), until)


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
