"""The integer program of a network with very many rows, of which only those that would be violated are written down.

The relaxed program comes first: solved with the rows known so far, its fullest rows are added, until it violates none. Then
choices are whole: what is found is checked under all rows, and the fullest ones are added again. Every program leaves
out rows, so its bound holds. Of 20,000 rows of a schedule some forty are ever needed.
Reference: Dantzig, Fulkerson and Johnson, "Solution of a large-scale traveling-salesman problem", Operations Research 2
(1954), for adding only what is violated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import final

import numpy as np
from scipy import sparse

from pbqp.deadline import Deadline
from pbqp.exact.ilp import ROW_MARGIN, IntegerProgram, Lines
from pbqp.memory_rows import Array, Indices, spread
from pbqp.network.network import Network
from pbqp.row_table import RowTable

AT_ONCE = 20
"""How many rows are added at once, at most: the fullest, none beside a fuller one."""
FULL, BARELY_FULL = 1e-6, 1e-12
"""By what part of its room a relaxed program may overfill a row (HiGHS's tolerance), and whole choices (rounding)."""

Carried = Mapping[int, Sequence[tuple[int, Array]]]
"""Pieces of memory by node: the number of each in the row table, and its bytes per remaining choice."""


@final
class LazyRows:
    """The program of a network whose nodes carry memory; only choices that cost less than `upper` are sought."""

    def __init__(self, network: Network, rows: RowTable, carried: Carried, upper: float) -> None:
        self.program = IntegerProgram(network, None, upper)
        spans: dict[int, list[tuple[int, int]]] = {}
        for piece, begin, end in zip(rows.pieces.tolist(), rows.begins.tolist(), rows.ends.tolist(), strict=True):
            spans.setdefault(piece, []).append((begin, end))
        runs: list[tuple[int, int]] = []
        least: list[float] = []
        columns: list[Indices] = []
        bytes_of: list[Array] = []
        for node, offset in self.program.offsets.items():
            for piece, usage in carried.get(node, ()):
                low = float(usage.min())
                used = np.flatnonzero(usage > low)
                for span in spans.get(piece, ()):
                    runs.append(span)
                    least.append(low)
                    columns.append(offset + used)
                    bytes_of.append(usage[used] - low)
        pairs = np.asarray(runs, dtype=np.intp).reshape(-1, 2)
        self._begins, self._ends = pairs[:, 0], pairs[:, 1]
        self.room = rows.limits - spread(self._begins, self._ends, np.asarray(least), rows.count)
        counts = np.asarray([0, *(values.size for values in bytes_of)])
        self._by_run = sparse.csr_array(
            (
                np.concatenate([*bytes_of, np.zeros(0)]),
                np.concatenate([*columns, np.zeros(0, np.intp)]),
                counts.cumsum(),
            ),
            shape=(len(runs), self.program.size),
        )

    @property
    def size(self) -> int:
        """Number of variables."""
        return self.program.size

    def solve(
        self,
        until: Deadline,
        upper: float,
        gap: float,
        found: Callable[[dict[int, int]], None],
        on_bound: Callable[[float], None] | None = None,
        known: Indices | None = None,
    ) -> bool:
        """Tells of every bound and of every whole choice of the live nodes, which may violate rows; a bound of `inf` says
        that nothing costs less than `upper`, from which `gap` is measured as in `IntegerProgram.solve`.

        `known` are rows worth writing down from the start: then nothing is relaxed.
        True if that settled it: what was found last is best, or nothing costs less than `upper`.
        """
        if (self.room < 0).any():
            if on_bound is not None:
                on_bound(math.inf)
            return True
        active: Indices = np.zeros(0, np.intp) if known is None else np.unique(known)
        tightened: set[int] = set()
        relaxed = known is None
        while not until.passed:
            answer = self.program.run(until.left(), self._lines(active, tightened), upper, gap, relaxed=relaxed)
            if not tightened:
                if on_bound is not None:
                    on_bound(answer.bound)
                if answer.bound >= upper:
                    return True
            if answer.values is None or (relaxed and not answer.ended):
                return False
            values = answer.values if relaxed else self.program.whole(answer.values)
            if not relaxed:
                found(self.program.choice_of(values))
            over = self._over(values)
            fullest = _peaks(over, FULL if relaxed else BARELY_FULL)
            if not fullest.size and relaxed:
                relaxed = False
            elif tightened.issuperset(fullest.tolist()):
                return answer.ended and not tightened
            tightened.update(np.intersect1d(fullest, active).tolist())
            active = np.union1d(active, fullest)
        return False

    def _over(self, values: Array) -> Array:
        """By what part of its room every row is overfull."""
        used = spread(self._begins, self._ends, np.asarray(self._by_run @ values), self.room.size)
        return (used - self.room) / np.where(self.room > 0, self.room, 1.0)

    def _lines(self, active: Indices, tightened: set[int]) -> Lines | None:
        """The rows to write down; those that HiGHS let pass by its tolerance are tightened by as much."""
        if not active.size:
            return None
        counted = (self._begins <= active[:, None]) & (active[:, None] < self._ends)
        room = np.where(self.room > 0, self.room, 1.0)[active]
        matrix = sparse.csr_array(
            sparse.diags_array(1.0 / room) @ sparse.csr_array(counted.astype(np.float64)) @ self._by_run
        )
        return matrix, self.room[active] / room - ROW_MARGIN * np.isin(active, list(tightened))


def _peaks(over: Array, least: float) -> Indices:
    """The fullest of the overfull rows, none beside a fuller one."""
    before, after = np.append(-math.inf, over[:-1]), np.append(over[1:], -math.inf)
    peaks = np.flatnonzero((over > least) & (over >= before) & (over > after))
    return peaks[np.argsort(-over[peaks], kind="stable")[:AT_ONCE]]
