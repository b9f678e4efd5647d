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
from pbqp.rounding import Rounding
from pbqp.smaller.prepared import Prepared
from pbqp.smaller.reductions import Reducer, undo

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


def priced_rounding(prepared: Prepared, prices: Array, extra: dict[int, Array]) -> Rounding:
    """The rounding of costs that prices of rows (seconds per byte), `extra` in all for each node, add to."""
    rows = prepared.rows
    amount = float(prices @ np.abs(rows.limits)) + sum(float(np.abs(paid).max()) for paid in extra.values())
    return prepared.network.rounding.priced(amount, rows.count)


def minimise_exactly(
    network: Network, extra: dict[int, Array], rounding: Rounding
) -> tuple[dict[int, int], float] | None:
    """The optimal choice of the live nodes with `extra` added to their costs, and what every choice costs at the least.

    None if too dear, or impossible.
    """
    twin = network.copy()
    twin.rounding = rounding
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
    least = elimination.eliminate(twin, order, choice)
    if math.isinf(least):
        return None
    undo(reducer.trail, choice)
    return {node: int(choice[node]) for node in nodes}, elimination.proven(twin, least)


def best_prices(prepared: Prepared, best: Incumbent, options: SolveOptions, seconds: float) -> Priced:
    """The best prices found within `seconds`; every choice met on the way is repaired and offered to `best`."""
    rows = prepared.rows
    until = options.deadline.within(seconds)
    units = np.maximum(np.abs(rows.limits), 1.0)
    prices = np.zeros(rows.count)
    result = Priced(prices=prices, bound=-math.inf)
    cuts: list[tuple[float, Array]] = []
    for _ in range(CUT_ROUNDS):
        optimum = _at(prepared, prices / units)
        if optimum is None:
            break
        picks, lower = optimum
        cost, over = _cut(prepared, picks)
        cuts.append((cost, over))
        if lower > result.bound:
            result = Priced(prices=prices / units, bound=lower)
        cuts += [_cut(prepared, found) for found in _repaired(prepared, best, picks, options)]
        if not any((over <= 0).all() for _, over in cuts):
            thrifty = _at(prepared, np.full(rows.count, THRIFTY_PRICE * abs(cost)) / units)
            if thrifty is None:
                break
            cuts.append(_cut(prepared, thrifty[0]))
            found = _repaired(prepared, best, thrifty[0], options)
            cuts += [_cut(prepared, choice) for choice in found]
        if until.passed or not any((over <= 0).all() for _, over in cuts):
            break
        height, prices = _propose(cuts)
        gap = min(height, best.value) - result.bound
        if gap <= max(options.gap, best.tolerance) * abs(result.bound) or gap < 0.02 * (best.value - result.bound):
            break
    return result


def _at(prepared: Prepared, prices: Array) -> tuple[dict[int, int], float] | None:
    """The best choice of the live nodes at some prices (seconds per byte) and the bound it proves; None if too dear."""
    extra = prepared.rows.price(prices)
    optimum = minimise_exactly(prepared.network, extra, priced_rounding(prepared, prices, extra))
    return None if optimum is None else (optimum[0], optimum[1] - float(prices @ prepared.rows.limits))


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
