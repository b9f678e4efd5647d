"""Least memory: the plan of one mesh whose peak memory is about the smallest, with a bound.

    minimise over choices x   max over points t   usage_t(x)

For weights w over points of the schedule, summing to 1, the least of sum_t w_t usage_t(x) is a lower bound of the smallest
peak, and its x is tried. The weights are found in two ways, in turn:

- points that a plan uses much gain weight (multiplicative weights, Arora, Hazan & Kale 2012,
  https://doi.org/10.4086/toc.2012.v008a006), which meets many different plans;
- the duals of the least peak of a mixture of the plans met so far, in shares that sum to 1 (cutting planes, Kelley 1960,
  https://doi.org/10.1137/0108053), which mostly ends after a few rounds: no weights prove more than that peak.

A small part of the weight lies on all points alike: without it, what is alive at none of the points met so far would be
placed anyhow, and a long program would need as many rounds as it has layers. (There fetched copies are left out, which only
lowers the bound.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.optimize import linprog

from pbqp.options import SolveOptions
from pbqp.problem import Edge, Problem
from pbqp.smaller.quotient import solve_shared
from pbqp.vectors import Floats
from planner.pricing.memory.memory_model import MemoryModel

WEIGHT_ROUNDS = 40
GAP = 0.01
RATE = 4.0
POINTS = 8
"""Points of the schedule that get a weight after a plan: those it uses most."""
NEAR_LEAST = 0.9
"""They use at least this part of what the fullest uses."""
SOLVED = 0.25
"""Part of the gap that a problem at some weights may be left with."""
CONVERGED = 0.6
"""Part of the gap that the bound may be below the least peak of a mixture, more than which no weights prove.

What the weight on all points leaves out and what problems are left with is about as much.
"""
EVERYWHERE = 0.003
"""Part of the weight that all points of the schedule share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Least:
    """A plan of about the least peak memory, its peak and a lower bound of any in bytes per device.

    `weights` are those of the points of the schedule that decided, summing to 1.
    """

    choice: tuple[int, ...]
    peak_bytes: float
    bound: float
    weights: Mapping[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """When to end: once the bound passes `good_bytes`, or once a plan needs no more than `enough_bytes`.

    It also ends after so many `rounds`. `weights` of points of the schedule, in any unit, are tried first.
    """

    good_bytes: float
    enough_bytes: float = 0.0
    rounds: int = WEIGHT_ROUNDS
    weights: Mapping[int, float] = field(default_factory=dict[int, float])


def least_memory(memory: MemoryModel, start: Sequence[int], aim: Aim, solving: SolveOptions) -> Least:
    """The plan of about the smallest peak memory, from the choice `start`.

    It ends at a gap of 1 %, as far as it is aimed at, or where no weights prove more. Infinite where no plan is allowed.
    """
    count = len(memory.instance.strategies)
    bare = Problem(
        name="least memory",
        node_costs=tuple(EVERYWHERE * values for values in memory.average_bytes()),
        edges=tuple(_forbidden(memory.instance.problem)),
        node_names=tuple(node.name for node in memory.instance.model.flow.nodes),
    )
    if bare.edges and math.isinf(bare.evaluate(start[:count])):
        allowed = solve_shared(bare, solving.afresh()).choice
        if allowed is None:
            return Least(choice=tuple(start[:count]), peak_bytes=math.inf, bound=memory.floor_bytes(), weights={})
        start = allowed
    best, peak, bound = tuple(start[:count]), float(memory.profile(start).max()), memory.floor_bytes()
    if peak <= 0:  # arrays without elements only
        return Least(choice=best, peak_bytes=peak, bound=peak, weights={})
    known = {point: weight for point, weight in aim.weights.items() if weight > 0}
    gains = {point: math.log(weight / max(known.values())) for point, weight in known.items()}
    choice: Sequence[int] = best
    met: list[Floats] = []
    weights: dict[int, float] = {}
    for turn in range(aim.rounds):
        profile = memory.profile(choice)
        met.append(profile)
        top = int(profile.argmax())
        if turn or not known:
            _gain(gains, profile)
        if profile[top] < peak:
            best, peak = tuple(choice[:count]), float(profile[top])
        enough = bound >= aim.good_bytes or peak <= aim.enough_bytes
        if peak - bound <= GAP * peak or enough or solving.deadline.passed:
            break
        tried = _shares(gains)
        if turn % 2:
            mixed, duals = _mixture(met)
            if bound >= (1 - CONVERGED * GAP) * mixed:
                break
            tried = duals or tried
        prices = {point: (1 - EVERYWHERE) * share for point, share in tried.items()}
        solution = solve_shared(memory.priced(bare, prices), solving.afresh(), gap=SOLVED * GAP)
        if solution.choice is None:
            break
        if solution.bound > bound or not weights:
            weights = tried
        bound, choice = max(bound, solution.bound), solution.choice
    return Least(choice=best, peak_bytes=peak, bound=min(bound, peak), weights=weights or _shares(gains))


def _forbidden(problem: Problem) -> Iterator[Edge]:
    """The pairs of choices that are forbidden, such as those of a copy to a host that would also move between devices."""
    known: dict[int, Floats] = {}
    for edge in problem.edges:
        if id(edge.costs) not in known:
            known[id(edge.costs)] = np.where(np.isinf(edge.costs), math.inf, 0.0)
        if known[id(edge.costs)].any():
            yield Edge(nodes=edge.nodes, costs=known[id(edge.costs)])


def _gain(gains: dict[int, float], profile: Floats) -> None:
    """Adds to the gains of the points what a plan of this profile uses there; its own fullest are points from now on."""
    top, highest = float(profile.max()), max(gains.values(), default=0.0)
    # The fullest point of the first plan alone, the arguments mostly, often has the best bound.
    for point in peaks(profile, POINTS if gains else 1):
        if profile[point] >= NEAR_LEAST * top:
            gains.setdefault(point, highest)
    for point in gains:
        gains[point] += RATE * (float(profile[point]) / top - 1.0)


def _shares(gains: Mapping[int, float]) -> dict[int, float]:
    """The weights that gains stand for."""
    highest = max(gains.values())
    weights = np.exp([gain - highest for gain in gains.values()])
    return dict(zip(gains, (weights / weights.sum()).tolist(), strict=True))


def _mixture(met: Sequence[Floats]) -> tuple[float, dict[int, float]]:
    """The least peak of a mixture of plans with these profiles, and the weights of the points that keep it from less."""
    use = np.stack(met)
    scale = max(float(use.max()), 1.0)
    peak, duals = best_mixture(np.append(np.zeros(len(met)), 1.0), use / scale)
    total = float(np.sum(list(duals.values())))
    return peak * scale, {point: dual / total for point, dual in duals.items() if dual > 0}


def best_mixture(costs: Floats, use: Floats) -> tuple[float, dict[int, float]]:
    """The least cost of plans mixed in shares that sum to 1, so that what they use is at most 0 at every point, and the
    duals of points.

    `use` has a row for every plan, `costs` a number for each; one more is the cost of a level that takes the place of 0.
    The points are those where a mixture was found to use too much, one after the other.
    """
    points = sorted({int(line.argmax()) for line in use})
    count, levels = len(use), len(costs) - len(use)
    while True:
        answer: Any = linprog(
            costs,
            A_ub=np.hstack([use[:, points].T, -np.ones((len(points), levels))]),
            b_ub=np.zeros(len(points)),
            A_eq=np.append(np.ones(count), np.zeros(levels))[None, :],
            b_eq=[1.0],
            bounds=(0.0, None),
        )
        if answer.x is None:
            return math.inf, {}
        full = np.asarray(answer.x)[:count] @ use
        worst = int(full.argmax())
        if full[worst] <= (float(answer.fun) if levels else 0.0) + 1e-9 or worst in points:
            break
        points.append(worst)
    duals = np.maximum(-np.asarray(answer.ineqlin.marginals), 0.0)
    return float(answer.fun), dict(zip(points, duals.tolist(), strict=True))


def charged(limited: Problem, prices: Sequence[float]) -> Problem:
    """The problem with a price for every byte of each of its rows instead of the rows."""
    costs = list(limited.node_costs)
    for price, row in zip(prices, limited.rows, strict=True):
        for node, usage in zip(row.nodes, row.usages, strict=True):
            costs[node] = costs[node] + price * usage
    return replace(limited, node_costs=tuple(costs), rows=())


def peaks(profile: Floats, count: int) -> list[int]:
    """The highest local maxima of a profile, highest first."""
    inner = np.flatnonzero((profile >= np.roll(profile, 1)) & (profile > np.roll(profile, -1)))
    order = np.lexsort((inner, -profile[inner]))
    return inner[order[:count]].tolist() or [int(profile.argmax())]
