"""The best prices of a few memory rows, where the priced problem can be solved exactly: Kelley's cutting planes.

    maximise z   subject to   z <= cost(x_k) + sum over rows   price[r] (usage_r(x_k) - limit[r])   for every x_k seen,
                              price >= 0

Each x_k is the exact optimum at the prices that the program above proposed, found by reductions and elimination, so z
and the priced optimum close in on the Lagrangian bound from both sides. A choice that violates no row must be among
the first x_k: it keeps z, and in effect the prices, from running away.
Reference: Kelley, "The cutting-plane method for solving convex programs", SIAM Journal 8 (1960).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import linprog

from pbqp.exact import elimination
from pbqp.heuristics.local_search import LocalSearch
from pbqp.incumbent import Incumbent
from pbqp.network.network import Indices, Network
from pbqp.options import SolveOptions
from pbqp.problem import Array
from pbqp.smaller.prepared import Prepared
from pbqp.smaller.reductions import Reducer, undo
from pbqp.solution import RELATIVE_TOLERANCE

THRIFTY_PRICE = 1e4
"""Price of a whole limit, in costs of the free optimum, at which the cheapest choice takes next to the least bytes."""
REPAIR_KICKS = 3
"""Kicks of the local search that repairs each priced optimum."""
CUT_ROUNDS = 25
"""Most exact priced problems solved."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Priced:
    """Prices per row (seconds per byte) and the lower bound they prove."""

    prices: Array
    bound: float


def minimise_exactly(network: Network, extra: dict[int, Array]) -> dict[int, int] | None:
    """The optimal choice of the live nodes with `extra` added to their costs; None if too dear, or impossible."""
    twin = network.copy()
    for node in twin.live & extra.keys():
        twin.unary[node] = twin.unary[node] + extra[node][twin.labels[node]]
    nodes = sorted(twin.live)
    reducer = Reducer(twin)
    if not reducer.run():
        return None
    order = elimination.plan_order(twin, max_entries=elimination.MAX_ENTRIES)
    if not elimination.affordable(order):
        return None
    choice = np.zeros(len(network.labels), dtype=np.intp)
    if math.isinf(elimination.eliminate(twin, order, choice)):
        return None
    undo(reducer.trail, choice)
    return {node: int(choice[node]) for node in nodes}


def best_prices(prepared: Prepared, best: Incumbent, options: SolveOptions, seconds: float) -> Priced:
    """The best prices found within `seconds`; every choice met on the way is repaired and offered to `best`."""
    network, rows = prepared.network, prepared.rows
    until = options.deadline.within(seconds)
    units = np.maximum(np.abs(rows.limits), 1.0)
    prices = np.zeros(rows.count)
    result = Priced(prices=prices, bound=-math.inf)
    cuts: list[tuple[float, Array]] = []
    for _ in range(CUT_ROUNDS):
        picks = minimise_exactly(network, rows.price(prices / units))
        if picks is None:
            break
        cost, over = _cut(prepared, picks)
        lower = cost + float(prices @ over)
        cuts.append((cost, over))
        if lower > result.bound:
            result = Priced(prices=prices / units, bound=lower)
        cuts += [_cut(prepared, found) for found in _repaired(prepared, best, picks, options)]
        if not any((over <= 0).all() for _, over in cuts):
            thrifty = minimise_exactly(network, rows.price(np.full(rows.count, THRIFTY_PRICE * abs(cost)) / units))
            if thrifty is None:
                break
            cuts.append(_cut(prepared, thrifty))
            found = _repaired(prepared, best, thrifty, options)
            cuts += [_cut(prepared, choice) for choice in found]
        if until.passed or not any((over <= 0).all() for _, over in cuts):
            break
        height, prices = _propose(cuts)
        gap = min(height, best.value) - result.bound
        if gap <= max(options.gap, RELATIVE_TOLERANCE) * abs(result.bound) or gap < 0.02 * (best.value - result.bound):
            break
    return result


def _cut(prepared: Prepared, picks: dict[int, int]) -> tuple[float, Array]:
    """Cost of a choice of the live nodes (the rest as cheap as can be) and its overuse of the rows, per limit."""
    choice: Indices = np.zeros(len(prepared.network.labels), dtype=np.intp)
    for node, pick in picks.items():
        choice[node] = pick
    rows = prepared.rows
    over = (rows.used(choice) - rows.limits) / np.maximum(np.abs(rows.limits), 1.0)
    return prepared.network.value(choice), over


def _repaired(
    prepared: Prepared, best: Incumbent, picks: dict[int, int], options: SolveOptions
) -> list[dict[int, int]]:
    """A choice within the rows near `picks`, if the local search finds one."""
    found = LocalSearch(prepared.network, prepared.rows, picks).run(options, options.left(), REPAIR_KICKS)
    if found is None:
        return []
    best.offer(prepared.complete(found[1]))
    return [found[1]]


def _propose(cuts: Sequence[tuple[float, Array]]) -> tuple[float, Array]:
    """The highest z under all cuts, and the prices that reach it."""
    scale = max(max(abs(cost) for cost, _ in cuts), 1e-300)
    matrix = np.asarray([[1.0, *-over] for _, over in cuts])
    count = matrix.shape[1] - 1
    answer: Any = linprog(
        [-1.0, *[0.0] * count],
        A_ub=matrix,
        b_ub=[cost / scale for cost, _ in cuts],
        bounds=[(None, None), *[(0.0, None)] * count],
    )
    if answer.x is None:
        return math.inf, np.zeros(count)
    return float(answer.x[0]) * scale, np.asarray(answer.x[1:]) * scale
