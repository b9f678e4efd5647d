"""Bounds, good choices and pruning for large problems without rows: what `bounds.subgradient.tighten` does, compiled.

Sweeps of messages raise the bound as long as that closes much of the gap; block moves improve the choice that they lead to;
and choices whose own bound is above the best value are taken out of the network. Sweeps and moves are counted, not timed:
where the time does not run out, the same comes of it on every machine.
"""

from __future__ import annotations

import math

from pbqp.compiled.arrays import Arrays
from pbqp.compiled.block_moves import Primal
from pbqp.compiled.kernels import Ints
from pbqp.compiled.multiplicative_weights import Dual
from pbqp.compiled.slack_elimination import eliminate, is_likely
from pbqp.deadline import Deadline
from pbqp.incumbent import Incumbent
from pbqp.network.network import Network
from pbqp.options import SolveOptions
from pbqp.row_table import NO_ROWS
from pbqp.smaller.prepared import Prepared
from pbqp.smaller.smaller import Chain

SWEEPS, MOST_SWEEPS = 40, 400
"""Sweeps between two looks at the gap, and in all."""
PAYS = 0.1
"""Which part of the gap so many sweeps must close for others to follow, and of the choices must go for smaller tables."""
FEW_SWEEPS, PASSES = 8, 4
"""Sweeps between two looks at what can go, where nothing but pruning is wanted, and most such looks."""
QUIET_ROUNDS = 2
"""Rounds of block moves without a better choice after which there are no more."""
SHAKES = 5
"""How often the best choice is shaken, and moved again."""


def squeeze(
    prepared: Prepared, best: Incumbent, options: SolveOptions, seconds: float, before: Dual | None, *, reduced: bool
) -> Dual:
    """Raises the bound of `best`, improves its choice, prunes the network of `prepared` (never the last of a node).

    It goes on with the messages of the last squeeze, `before`, and returns its own. All nodes are eliminated where it is
    `reduced` by all means: tables are small only then.
    """
    until = options.deadline.within(seconds)
    arrays = Arrays.of(prepared.network, prepared.rows, {})
    dual, steps = Dual(arrays) if before is None else before.carried(arrays), Chain((prepared, arrays))
    for turn in range(MOST_SWEEPS // SWEEPS):
        last = dual.bound
        _swept(dual, best, until)
        if turn == 0 and before is None and not best.settles(best.value, dual.bound):
            best.offer(steps.lift(_moved(arrays, dual, options, until, shakes=0)))
        best.raise_bound(min(dual.bound, best.value))
        if best.settled or until.passed or dual.bound - last < PAYS * (best.value - dual.bound):
            break
    if best.settled:
        return dual
    best.offer(steps.lift(_moved(arrays, dual, options, until)))
    if reduced and not best.settled and is_likely(prepared.network):
        found = eliminate(arrays, dual, best.value - options.gap * abs(best.value))
        if found.pick is not None:
            best.offer(steps.lift(found.pick))
        best.raise_bound(min(found.bound, best.value))
    if not best.settled:
        prepared.count("pruned", _prune(prepared.network, arrays, dual, best.value))
    return dual


def pruned(network: Network, upper: float, cutoff: float) -> float:
    """A bound of what costs less than the cutoff; takes out of the network what costs more than `upper`, just above it."""
    arrays = Arrays.of(network, NO_ROWS, {})
    dual, bound = Dual(arrays), -math.inf
    for left in reversed(range(PASSES)):
        for _ in range(FEW_SWEEPS):
            dual.step()
            if dual.bound >= cutoff:
                return dual.bound
        before, bound = bound, dual.bound
        stays = int(dual.possible(upper).sum()) > (1 - PAYS) * dual.bounds.size
        if stays and (bound - before) * left < cutoff - bound:
            break
        if not stays:
            _prune(network, arrays, dual, upper)
            arrays = Arrays.of(network, NO_ROWS, {})
            dual = dual.carried(arrays)
    _prune(network, arrays, dual, upper)
    return bound


def _swept(dual: Dual, best: Incumbent, until: Deadline) -> None:
    """Sweeps so many times, or until that settles it, or the time is up."""
    for _ in range(SWEEPS):
        dual.step()
        if best.settles(best.value, dual.bound) or until.passed:
            return


def _moved(arrays: Arrays, dual: Dual, options: SolveOptions, until: Deadline, *, shakes: int = SHAKES) -> Ints:
    """The best choice that block moves reach from the one that the messages lead to."""
    primal = Primal(arrays, dual, options.seed, timed=False)
    for shaken in range(shakes + 1):
        if shaken:
            primal.shake()
        while primal.quiet < QUIET_ROUNDS and not until.passed:
            primal.round(until)
    return primal.best


def _prune(network: Network, arrays: Arrays, dual: Dual, value: float) -> int:
    """Takes out the choices that cost more than `value` at the least; how many those were."""
    possible = dual.possible(value)
    removed = 0
    offsets, sizes = arrays.net.offset.tolist(), arrays.net.size.tolist()
    for node, offset, size in zip(arrays.names.tolist(), offsets, sizes, strict=True):
        keep = possible[offset : offset + size]
        if keep.any() and not keep.all():
            removed += int(size - keep.sum())
            network.keep(node, keep)
    return removed
