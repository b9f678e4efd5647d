"""Bounds and good choices under rows: each row gets a price, and messages bound the priced problem.

    L(price)  =  min over x   cost(x) + sum over rows   price[r] (usage_r(x) - limit[r])      for price >= 0

is at most the optimum, whatever the prices. The prices climb along the (smoothed) overuse of the choices the messages
decode to, by Polyak's step   (best value - L) / |overuse|^2; messages are kept between steps, so one step costs a
sweep or two. Every few steps a decoded choice is repaired and improved by local search, and choices that the bound
rules out are pruned from the network for good. Without rows the same loop is plain message passing.
Reference: Barahona and Anbil, "The volume algorithm", Mathematical Programming 87 (2000), for the smoothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pbqp.bounds.cutting_planes import Priced, priced_rounding
from pbqp.bounds.messages import Messages
from pbqp.exact.elimination import proven
from pbqp.heuristics.local_search import LocalSearch
from pbqp.incumbent import Incumbent
from pbqp.network.network import Indices
from pbqp.options import SolveOptions
from pbqp.problem import Array, Problem
from pbqp.row_table import RowTable
from pbqp.smaller.prepared import Prepared
from pbqp.solution import Solution

PAIR_STEPS = 5
"""Pairs of choices are pruned every so many steps, single choices at each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long to go on: most steps, seconds, and the least part of the gap ten steps must close to go on."""

    steps: int
    seconds: float
    progress: float = 0.03
    kicks: int = 5


def tighten(
    prepared: Prepared, best: Incumbent, options: SolveOptions, effort: Effort, priced: Priced | None = None
) -> float:
    """The best lower bound found; improves `best` and prunes `prepared.network` (never below one choice per node).

    With `priced` the prices are held there, and only the messages move.
    """
    network, rows = prepared.network, prepared.rows
    if not network.live:
        best.offer(prepared.complete({}))
        return proven(network, network.constant)
    until = options.deadline.within(effort.seconds)
    messages = Messages(network)
    units = np.maximum(np.abs(rows.limits), 1.0)
    prices = np.zeros(rows.count) if priced is None else priced.prices * units
    smooth: Array | None = None
    _charge(messages, prepared, prices / units)
    bound = -math.inf if priced is None else priced.bound
    marks = [-math.inf]
    reached = -math.inf
    agility = 1.0
    for step in range(effort.steps):
        offset = -float(prices @ (rows.limits / units))
        messages.sweep()
        lower = messages.bound + offset
        reached = max(reached, lower)
        agility = min(1.0, agility * 1.1) if lower > bound else max(0.05, agility * 0.8)
        bound = max(bound, lower)
        picks = messages.decode()
        left = sum(network.unary[node].size for node in network.live)
        if step % 10 == 3 or (step < 3 and best.choice is None):
            _search(prepared, best, picks, options, until.left(), effort.kicks)
        if math.isfinite(best.value):
            if step % PAIR_STEPS == PAIR_STEPS - 1:
                for m, n, pruned in messages.forbid_pairs(best.value, offset):
                    prepared.count("pruned_pairs", int(pruned.sum()))
                    network.forbid_pairs(m, n, pruned)
            kept = messages.above(best.value, offset) or messages.unsupported()
            if not _prune(prepared, messages, kept):
                bound = max(bound, best.value)
                break
        if left != sum(network.unary[node].size for node in network.live):
            picks = messages.decode()
        gap = best.value - bound
        if gap <= max(options.gap, 0.2 * best.tolerance) * abs(best.value) or until.passed:
            break
        if all(network.unary[node].size == 1 for node in network.live):
            best.offer(prepared.complete({node: int(network.labels[node][0]) for node in network.live}))
            bound = max(bound, proven(network, best.value))
            break
        if step % 10 == 9:
            if reached - marks[-1] < effort.progress * (best.value - reached if math.isfinite(gap) else abs(bound)):
                break
            marks.append(reached)
        if rows.count and priced is None:
            labels = {node: int(network.labels[node][pick]) for node, pick in picks.items()}
            over = (rows.used(_spread(prepared, labels)) - rows.limits) / units
            smooth = over if smooth is None else 0.6 * smooth + 0.4 * over
            active = np.where((prices > 0) | (smooth > 0), smooth, 0.0)
            norm = float(active @ active)
            target = best.value if math.isfinite(best.value) else lower + 0.1 * abs(lower)
            if norm > 0:
                prices = np.maximum(0.0, prices + agility * max(target - lower, 0.0) / norm * smooth)
                _charge(messages, prepared, prices / units)
    return bound


def _charge(messages: Messages, prepared: Prepared, prices: Array) -> None:
    """Sets the prices (seconds per byte) that the messages see."""
    network = prepared.network
    extra = prepared.rows.price(prices)
    messages.extra = {node: paid[network.labels[node]] for node, paid in extra.items() if node in network.live}
    messages.rounding = priced_rounding(prepared, prices, extra)


def _prune(prepared: Prepared, messages: Messages, kept: dict[int, Indices]) -> bool:
    """Keeps only the given choices, and those that still have partners; False if a node would lose all."""
    prepared.network.table_cache.tidy()
    while kept:
        if any(keep.size == 0 for keep in kept.values()):
            return False
        messages.prune(kept)
        for node, keep in kept.items():
            prepared.count("pruned", prepared.network.unary[node].size - keep.size)
            prepared.network.keep(node, keep)
        kept = messages.unsupported()
    return True


def _spread(prepared: Prepared, labels: dict[int, int]) -> Indices:
    """A choice of all nodes that is right for the live ones, which are all that a row counts."""
    choice = np.zeros(len(prepared.network.labels), dtype=np.intp)
    for node, label in labels.items():
        choice[node] = label
    return choice


def _search(
    prepared: Prepared, best: Incumbent, picks: dict[int, int], options: SolveOptions, seconds: float, kicks: int
) -> None:
    """Local search from decoded picks; offers what it finds."""
    network, rows = prepared.network, prepared.rows
    start = {node: int(network.labels[node][pick]) for node, pick in picks.items()}
    search = LocalSearch(network, rows if rows.count else None, start)
    found = search.run(options, seconds, kicks)
    if found is not None:
        best.offer(prepared.complete(found[1]))


def solve_lagrangian(problem: Problem, options: SolveOptions) -> Solution:
    """The best choice found and the bound proven by prices, messages and local search alone, all rows at once."""
    rows = RowTable.of(problem)
    best = Incumbent(problem, rows, options)
    prepared = Prepared(problem, rows)
    if not prepared.fit() or not prepared.reduce():
        best.raise_bound(math.inf)
        return best.solution("lagrangian", prepared.detail)
    effort = Effort(steps=100_000, seconds=options.left(), progress=1e-4, kicks=50)
    best.raise_bound(tighten(prepared, best, options, effort))
    return best.solution("lagrangian", prepared.detail)
