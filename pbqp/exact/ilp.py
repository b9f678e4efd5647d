"""Exact solution of a reduced network, with or without memory rows, as a mixed integer linear program.

    minimise    sum over n, p   c[n, p] s[n, p]   +   sum over edges, P, Q   E[P, Q] e[P, Q]
    subject to  sum over p   s[n, p] = 1                                   one choice per node
                sum over Q   e[P, Q] = sum over p in P   s[m, p]           marginals of edge (m, n), for every P
                sum over P   e[P, Q] = sum over q in Q   s[n, q]           and for every Q
                sum over n, p   usage[r, n, p] s[n, p] <= limit[r]         every row r
                s in {0, 1},  e >= 0 and continuous

P and Q are classes of choices that an edge cannot tell apart once the least cost of every choice has moved into its
node, which shrinks a table of 216 x 216 choices to the few specs they differ in without weakening the relaxation. A
forbidden pair has no variable. Costs are measured from a lower bound and in units of the room up to the best known
value, so seconds from 1e-9 to 1e3 reach HiGHS as numbers of one size; what does not fit in the room is left out as
well.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from pbqp.exact.elimination import proven
from pbqp.network.network import Network, normalise
from pbqp.problem import Array
from pbqp.row_table import RowTable
from pbqp.solution import RELATIVE_TOLERANCE

ROW_MARGIN = 1e-5
"""By which part of its room a row is tightened where HiGHS (feasibility tolerance 1e-6) overstepped it."""
UNITS = 1e8
"""The room between lower bound and best value, in the program's units: HiGHS's tolerances are absolute."""
TOLERANCE = 1e-7
"""What HiGHS may be off by for every cost that a choice sums up, in those units; and ten times that for all of it."""


Lines = tuple[sparse.csr_array, Array]
"""Memory rows over all variables: a matrix and its limits, in parts of the room above everyone's least bytes."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answer:
    """What HiGHS says: `values` of the variables (None if it found none), a lower `bound` of the cost, and whether it
    `ended` before its time did. A bound of `inf` says: infeasible.
    """

    values: Array | None
    bound: float
    ended: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IlpResult:
    """`choice` of the live nodes (None if none was found), a lower `bound`, and whether HiGHS `ended`."""

    choice: dict[int, int] | None
    bound: float
    ended: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Stated:
    """The program as matrices: `costs` of the variables, which are `possible`, `equalities`, their `sides`, memory rows."""

    costs: Array
    possible: Array
    equalities: sparse.csr_array
    sides: Array
    rows: Lines | None


@final
class IntegerProgram:
    """The linear program of a network; `solve` runs HiGHS on it. Its `size` is known before its matrices are made."""

    def __init__(self, network: Network, rows: RowTable | None, upper: float) -> None:
        self.network, self._rows = network, rows
        self._unary, edges = normalise(network)
        unary = self._unary
        self.base = network.constant + sum(float(costs.min()) for costs in unary.values())
        largest = max(
            [float(np.ptp(costs[np.isfinite(costs)])) for costs in unary.values() if np.isfinite(costs).any()]
            + [float(edge.costs[np.isfinite(edge.costs)].max(initial=0.0)) for edge in edges],
            default=0.0,
        )
        room = upper - self.base
        self._least = proven(network, self.base)
        self.room = upper - self._least if 0 < room < math.inf else largest
        self.scale = UNITS / self.room if self.room > 0 else 1.0
        self._error = TOLERANCE * (network.rounding.terms + 10) / self.scale
        self._tolerance = 0.0 if network.rounding.whole else 0.2 * RELATIVE_TOLERANCE
        self.offsets: dict[int, int] = {}
        self.binaries = 0
        for node, values in unary.items():
            self.offsets[node] = self.binaries
            self.binaries += values.size
        most = self.room if room < math.inf else math.inf
        self._edges = [(edge, (edge.costs <= most) & np.isfinite(edge.costs)) for edge in edges]
        self.size = self.binaries + sum(int(np.count_nonzero(allowed)) for _, allowed in self._edges)
        """Number of variables."""

    @cached_property
    def _stated(self) -> _Stated:
        costs: list[Array] = []
        triplets: list[tuple[Any, Any, Any]] = []
        sides: list[Array] = []
        lines, count = 0, self.binaries
        for node, values in self._unary.items():
            costs.append(values - values.min() if math.isfinite(values.min()) else values)
            columns = self.offsets[node] + np.arange(values.size)
            triplets.append((np.full(values.size, lines), columns, np.ones(values.size)))
            sides.append(np.ones(1))
            lines += 1
        for edge, allowed in self._edges:
            left, right = np.nonzero(allowed)
            columns = count + np.arange(left.size)
            costs.append(edge.costs[left, right])
            count += left.size
            for end, (node, members) in enumerate(zip(edge.nodes, edge.classes, strict=True)):
                triplets.append((lines + (right if end else left), columns, np.ones(left.size)))
                triplets.append((lines + members, self.offsets[node] + np.arange(members.size), -np.ones(members.size)))
                height = edge.costs.shape[end]
                sides.append(np.zeros(height))
                lines += height
        joined = np.concatenate(costs) if costs else np.zeros(0)
        possible = np.isfinite(joined)
        rows = self._rows
        return _Stated(
            costs=np.where(possible, joined, 0.0) * self.scale,
            possible=possible,
            equalities=_sparse(triplets, (lines, count)),
            sides=np.concatenate(sides) if sides else np.zeros(0),
            rows=_row_constraint(rows, self.network, self.offsets, count) if rows is not None and rows.count else None,
        )

    def solve(self, time_limit: float, upper: float = math.inf, gap: float = 0.0) -> IlpResult:
        """The best choice within `time_limit` seconds; `gap`, a part of `upper`, is small enough.

        A choice that HiGHS let pass a row by its tolerance is sought again under a limit lowered by as much.
        """
        started = time.perf_counter()
        result, fits = self._attempt(time_limit, upper, gap, 0.0)
        if fits:
            return result
        left = time_limit - (time.perf_counter() - started)
        again, _ = self._attempt(left, upper, gap, ROW_MARGIN)
        return IlpResult(choice=again.choice, bound=result.bound, ended=result.ended and again.ended)

    def _attempt(self, time_limit: float, upper: float, gap: float, margin: float) -> tuple[IlpResult, bool]:
        """The result with row limits lowered by `margin` (in parts of their room), and whether it keeps all rows."""
        rows = self._stated.rows
        lines = None if rows is None else (rows[0], rows[1] - margin)
        answer = self.run(time_limit, lines, upper, gap)
        if answer.values is None:
            return IlpResult(choice=None, bound=answer.bound, ended=answer.ended), True
        picked = self.whole(answer.values)
        fits = rows is None or bool((rows[0] @ picked <= rows[1] + 1e-12).all())
        return IlpResult(choice=self.choice_of(picked), bound=answer.bound, ended=answer.ended), fits

    def run(
        self,
        time_limit: float,
        lines: Lines | None,
        upper: float = math.inf,
        gap: float = 0.0,
        *,
        relaxed: bool = False,
    ) -> Answer:
        """One run of HiGHS under these rows, as long as `time_limit` at most; `relaxed` lets parts of choices be taken.

        `gap` is as in `solve`.
        """
        stated = self._stated
        if self.size == 0:
            return Answer(values=stated.costs, bound=self._least, ended=True)
        if not math.isfinite(self.base):
            return Answer(values=None, bound=math.inf, ended=True)
        enough = max(gap, self._tolerance)
        enough = enough * abs(upper) / self.room if self.room > 0 and math.isfinite(upper) else 0.0
        constraints: list[Any] = [LinearConstraint(stated.equalities, _any(stated.sides), _any(stated.sides))]
        if lines is not None:
            constraints.append(LinearConstraint(lines[0], -np.inf, _any(lines[1])))
        answer: Any = milp(
            stated.costs,
            integrality=(np.arange(self.size) < self.binaries) & (not relaxed),
            bounds=Bounds(0.0, _any(stated.possible.astype(np.float64))),
            constraints=constraints,
            options={"time_limit": max(time_limit, 0.01), "mip_rel_gap": min(enough, 0.5)},
        )
        if answer.status == 2:
            return Answer(values=None, bound=math.inf, ended=True)
        ended = answer.status == 0
        if relaxed:
            dual = float(answer.fun) if ended else 0.0
        else:
            dual = 0.0 if answer.mip_dual_bound is None else float(answer.mip_dual_bound)
        values = None if answer.x is None else np.asarray(answer.x)
        return Answer(values=values, bound=self._least + max(0.0, dual / self.scale - self._error), ended=ended)

    def whole(self, values: Array) -> Array:
        """The variables with 1 at the largest of every node, and 0 elsewhere."""
        picked = np.zeros(self.size)
        for node, offset in self.offsets.items():
            picked[offset + int(values[offset : offset + self.network.labels[node].size].argmax())] = 1.0
        return picked

    def choice_of(self, values: Array) -> dict[int, int]:
        """The choice of the live nodes that has the largest variables."""
        choice: dict[int, int] = {}
        for node, offset in self.offsets.items():
            labels = self.network.labels[node]
            choice[node] = int(labels[int(values[offset : offset + labels.size].argmax())])
        return choice


def _any(value: Any) -> Any:
    """The value itself: scipy's stubs know scalars only where arrays are meant."""
    return value


def _sparse(triplets: list[tuple[Any, Any, Any]], shape: tuple[int, int]) -> sparse.csr_array:
    if not triplets:
        return sparse.csr_array(shape)
    rows, columns, values = (np.concatenate(part) for part in zip(*triplets, strict=True))
    return sparse.csr_array((values, (rows, columns)), shape=shape)


def _row_constraint(rows: RowTable, network: Network, offsets: dict[int, int], count: int) -> tuple[Any, Array]:
    """The rows over the binaries and their limits, in parts of the room above everyone's least bytes."""
    least = rows.least(network.labels)
    room = rows.limits - least
    unit = np.where(room > 0, room, 1.0)
    pieces = sorted({piece for node in offsets for piece in rows.pieces_of.get(node, ())})
    where: list[tuple[Any, Any, Any]] = []
    for line, piece in enumerate(pieces):
        node = int(rows.nodes[piece])
        extra = rows.usages[piece][network.labels[node]]
        extra = extra - extra.min()
        used = np.flatnonzero(extra)
        where.append((np.full(used.size, line), offsets[node] + used, extra[used]))
    by_choice = _sparse(where, (len(pieces), count))
    matrix = sparse.csr_array(sparse.diags_array(1.0 / unit) @ rows.incidence()[:, pieces] @ by_choice)
    return matrix, room / unit
