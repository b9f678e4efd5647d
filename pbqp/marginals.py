"""What every choice of one node would cost in total, everything else at its best: the evidence behind a decision."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

from pbqp.bounds.messages import Messages
from pbqp.deadline import Deadline
from pbqp.errors import SolverError
from pbqp.exact import elimination
from pbqp.heuristics.local_search import LocalSearch
from pbqp.network.network import Indices, Network
from pbqp.options import SolveOptions
from pbqp.problem import Array, Problem
from pbqp.smaller.reductions import Eliminated, Reducer, undo

MARGINAL_KICKS = 4
"""Restarts of the local search for one class where elimination is too dear: it starts near the best."""
SWEEPS = 4
"""Sweeps of messages that say which choices are looked at where not all are: their bounds are near what choices cost."""
PROVEN = 1e-9
"""A value is the least where it is above a bound by no more than this share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is done where elimination is too dear: the best `most` classes are looked at, for `seconds` in all."""

    most: int | None = None
    seconds: float = 10.0
    seed: int = 0


@final
class Marginals:
    """`values[c]`: the least total cost found with a choice of class c, `inf` where it is forbidden or was not looked at.

    `exact[c]`: none is less; `seen[c]`: it was looked at. `choice(c)` are the choices of all nodes that cost so much.
    """

    def __init__(self, count: int, nodes: int, trail: Sequence[Eliminated]) -> None:
        self.values, self.exact, self.seen = (
            np.full(count, math.inf),
            np.ones(count, np.bool_),
            np.ones(count, np.bool_),
        )
        self._nodes, self._trail = nodes, list(trail)
        self._left: dict[int, npt.NDArray[np.intp]] = {}
        self._rest: tuple[elimination.AllBut, Mapping[int, int]] | None = None

    def take(self, of: int, value: float, choice: npt.NDArray[np.intp], *, exact: bool) -> None:
        """Takes over the best of a class; `choice` is that of the nodes that were not eliminated at first."""
        self.values[of], self.exact[of], self._left[of] = value, exact, choice

    def take_all(self, rest: elimination.AllBut, of: Indices) -> None:
        """Takes over what all others were eliminated from; `of` are the classes of the node's choices that are left."""
        order = np.argsort(-rest.totals, kind="stable").tolist()  # the best choice of a class comes last
        self._rest = rest, {int(of[position]): position for position in order}
        for one, position in self._rest[1].items():
            self.values[one] = rest.totals[position]

    def choice(self, of: int) -> tuple[int, ...]:
        """The choice of every node with the value of this class, which must be finite."""
        if of not in self._left:
            if self._rest is None:
                raise SolverError(f"class {of} has no choice that is possible.")
            rest, positions = self._rest
            self._left[of] = np.zeros(self._nodes, np.intp)
            rest.write(positions[of], self._left[of])
        found = self._left[of].copy()
        undo(self._trail, found)
        return tuple(found.tolist())


def min_marginals(problem: Problem, node: int, *, time_limit: float = 10.0, seed: int = 0) -> Array:
    """For each choice of `node`, the least total cost with that choice forced, as far as `marginals` finds it."""
    return marginals(problem, node, effort=Effort(seconds=time_limit, seed=seed)).values


def marginals(
    problem: Problem,
    node: int,
    *,
    classes: Indices | None = None,
    start: Sequence[int] | None = None,
    effort: Effort | None = None,
) -> Marginals:
    """For each class of choices of `node`, the least total cost with one of them forced.

    `classes[p]` is the class of choice p; default each its own. Rows are ignored: the figures say what a choice costs, not
    whether it fits. Exact where elimination is affordable; elsewhere local search from `start`, a choice of all nodes,
    finds a good one for the classes whose lower bounds are the least, that of `start` among them.
    Raises SolverError for a node that does not exist.
    """
    if not 0 <= node < len(problem.node_costs):
        raise SolverError(f"node {node} does not exist: nodes are 0 .. {len(problem.node_costs) - 1}.")
    effort = effort or Effort()
    of = np.arange(problem.node_costs[node].size) if classes is None else np.asarray(classes, np.intp)
    network = Network.of(problem)

    def incomparable(other: int) -> Array:
        """Bytes by which every choice beats every other in one of two rows, so that none is dominated."""
        labels = network.labels[node].astype(np.float64)
        return np.stack([labels, -labels]) if other == node else np.zeros((0, network.labels[other].size))

    reducer = Reducer(network, keep=(node,), usage_of=incomparable)
    possible = reducer.run()
    found = Marginals(int(of.max(initial=0)) + 1, len(network.labels), reducer.trail)
    if not possible:
        return found
    left = of[network.labels[node]]
    order = elimination.plan_order(network, last=(node,), max_entries=elimination.MAX_ENTRIES)
    if elimination.affordable(order):
        found.take_all(elimination.eliminate_all_but(network, order, node), left)
        return found
    _search(network, node, left, found, start, effort)
    return found


def cheapest_near(
    problem: Problem, start: Sequence[int], *, seconds: float, seed: int = 0
) -> tuple[float, tuple[int, ...]]:
    """The least total cost found near a choice of all nodes, and the choice with it; rows are ignored.

    The least of all where elimination is affordable, else what local search from `start` finds in so many `seconds`. The
    cost is `inf` where every choice is forbidden, or all that were found.
    """
    choice = np.zeros(len(problem.node_costs), np.intp)
    options = SolveOptions(deadline=Deadline.after(seconds), seed=seed)
    value, _ = _least(Network.of(problem), dict(enumerate(start)), options, choice)
    return value, tuple(choice.tolist())


def _search(
    network: Network, node: int, of: Indices, found: Marginals, start: Sequence[int] | None, effort: Effort
) -> None:
    """Looks for the best of each class; `of` are those of the choices that are left."""
    messages = Messages(network)
    for _ in range(SWEEPS):
        messages.sweep()
    bounds = np.full(found.values.size, math.inf)
    np.minimum.at(bounds, of, messages.bounds[node])
    order = np.argsort(bounds, kind="stable")[: np.unique(of).size].tolist()
    if start is not None:
        mine = of[network.labels[node] == start[node]]
        order = [*mine.tolist(), *(one for one in order if one not in mine)]
    looked = order[: effort.most]
    for one in order[len(looked) :]:
        found.seen[one] = found.exact[one] = False
    begun = dict(enumerate(start)) if start is not None else None
    for one in looked:
        forced = _only(network, node, np.flatnonzero(of == one))
        options = SolveOptions(deadline=Deadline.after(effort.seconds / len(looked)), seed=effort.seed)
        choice = np.zeros(len(network.labels), np.intp)
        value, exact = _least(forced, begun, options, choice)
        found.take(one, value, choice, exact=exact or value <= float(bounds[one]) * (1 + PROVEN))


def _only(network: Network, node: int, positions: Indices) -> Network:
    """The network with these choices of a node only."""
    forced = network.copy()
    forced.keep(node, positions)
    return forced


def _least(
    network: Network, start: Mapping[int, int] | None, options: SolveOptions, choice: npt.NDArray[np.intp]
) -> tuple[float, bool]:
    """The least cost of a network, and whether it is proven; the choices of its live nodes are written into `choice`."""
    reducer = Reducer(network, keep=(), usage_of=lambda node: np.zeros((0, network.labels[node].size)))
    if not reducer.run(dominance=False):
        return math.inf, True
    order = elimination.plan_order(network, max_entries=elimination.MAX_ENTRIES)
    if elimination.affordable(order):
        value, exact = elimination.eliminate(network, order, choice), True
    else:
        found = LocalSearch(network, None, start).run(options, options.left(), MARGINAL_KICKS)
        if found is None:
            return math.inf, False
        (value, picks), exact = found, False
        for node, pick in picks.items():
            choice[node] = pick
    undo(reducer.trail, choice)
    return value, exact
