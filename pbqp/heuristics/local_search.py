"""Good choices, not proofs: descent over single nodes and over pairs of neighbours, with random kicks between descents.

For every live node n the search keeps the vector   cost_n[p] = unary[n][p] + sum over neighbours m  E[p, x_m]   and a
count of the forbidden pairs each p would be in, so the gain of a move is a difference of two numbers, and a move
updates only its neighbours' vectors. Rows are kept as bytes used; a move must leave every row within its limit, or,
where it already is over, bring the sum of relative overflows down. A search that starts beyond a limit first repairs:
it takes the moves with the least cost per relative overflow removed.

By how much every single move would lower the overflow is computed for all nodes at once. The bytes of a node's choices
in the rows that count it are a block, a line per choice and a column per row; the blocks of many nodes lie behind one
another, so that what all their moves do to the rows is a few operations on flat arrays.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
from numpy.typing import NDArray

from pbqp.deadline import Deadline
from pbqp.network.network import Indices, Network
from pbqp.options import SolveOptions
from pbqp.problem import Array
from pbqp.row_table import RowTable

PAIR_CANDIDATES = 8
"""How many of the cheapest joint moves of two nodes are tried against the rows."""


@final
class LocalSearch:
    """A choice of every live node of a network, with the gains of all single moves; `rows` may be None."""

    def __init__(self, network: Network, rows: RowTable | None, start: Mapping[int, int] | None = None) -> None:
        self.network = network
        self.nodes = sorted(network.live)
        self.rows = rows
        self.finite: dict[int, dict[int, Array]] = {}
        self.banned: dict[int, dict[int, NDArray[np.bool_]]] = {}
        for node in self.nodes:
            self.finite[node], self.banned[node] = {}, {}
        for m, n, table in network.edges():
            good = np.isfinite(table)
            if good.all():
                self.finite[m][n], self.finite[n][m] = table, table.T
            else:
                clean = np.where(good, table, 0.0)
                self.finite[m][n], self.finite[n][m] = clean, clean.T
                self.banned[m][n], self.banned[n][m] = ~good, ~good.T
        self._lines: dict[int, Indices] = {}
        self.pick: dict[int, int] = {}
        for node in self.nodes:
            wanted = 0 if start is None else int(np.searchsorted(network.labels[node], start[node]))
            self.pick[node] = min(wanted, network.labels[node].size - 1)
        self.reset()

    def reset(self) -> None:
        """Recomputes every sum from the present picks."""
        self.cost: dict[int, Array] = {}
        self.clash: dict[int, NDArray[np.int64]] = {}
        for node in self.nodes:
            cost = self.network.unary[node].copy()
            clash = np.zeros(cost.size, dtype=np.int64)
            for other, table in self.finite[node].items():
                cost += table[:, self.pick[other]]
            for other, ban in self.banned[node].items():
                clash += ban[:, self.pick[other]]
            self.cost[node], self.clash[node] = cost, clash
        if self.rows is not None:
            labels = self.network.labels
            base = np.zeros(max(labels_node for labels_node in range(len(labels))) + 1, dtype=np.intp)
            for node in range(len(labels)):
                base[node] = labels[node][self.pick.get(node, 0)]
            self.used = self.rows.used(base)

    @cached_property
    def _blocks(self) -> tuple[Blocks, ...]:
        """The bytes of all choices in the rows."""
        return () if self.rows is None else tuple(blocks_of(self.network, self.rows))

    def choice(self) -> dict[int, int]:
        """The present choice of the live nodes in the problem's numbering."""
        return {node: int(self.network.labels[node][self.pick[node]]) for node in self.nodes}

    def value(self) -> float:
        """Cost of the present choice; `inf` while it holds a forbidden pair."""
        if any(self.clash[node][self.pick[node]] for node in self.nodes):
            return math.inf
        unary = math.fsum(self.network.unary[node][self.pick[node]] for node in self.nodes)
        both = math.fsum(self.cost[node][self.pick[node]] for node in self.nodes)
        return self.network.constant + (unary + both) / 2

    def overflow(self) -> float:
        """Sum over rows of the bytes over the limit, in parts of the limit; 0 when all rows hold."""
        if self.rows is None:
            return 0.0
        over = np.maximum(self.used - self.rows.limits, 0.0)
        return float((over / np.maximum(np.abs(self.rows.limits), 1.0)).sum())

    def move(self, node: int, pick: int) -> None:
        """Changes one node's pick and updates its neighbours and rows."""
        old = self.pick[node]
        if old == pick:
            return
        for other, table in self.finite[node].items():
            self.cost[other] += table[pick] - table[old]
        for other, ban in self.banned[node].items():
            self.clash[other] += ban[pick].astype(np.int64) - ban[old]
        if self.rows is not None:
            labels = self.network.labels[node]
            for piece in self.rows.pieces_of.get(node, ()):
                usage = self.rows.usages[piece]
                self.used[self._rows_of(piece)] += usage[labels[pick]] - usage[labels[old]]
        self.pick[node] = pick

    def _rows_of(self, piece: int) -> Indices:
        if piece not in self._lines:
            self._lines[piece] = np.zeros(0, np.intp) if self.rows is None else self.rows.rows_of(piece)
        return self._lines[piece]

    def fits(self, node: int) -> NDArray[np.bool_]:
        """Which choices of a node leave its rows within their limits, or no further beyond them than now."""
        labels = self.network.labels[node]
        fitting = np.ones(labels.size, dtype=bool)
        if self.rows is None:
            return fitting
        for piece in self.rows.pieces_of.get(node, ()):
            lines = self._rows_of(piece)
            usage = self.rows.usages[piece][labels]
            slack = (self.rows.limits[lines] - self.used[lines]).min()
            fitting &= usage - usage[self.pick[node]] <= max(slack, 0.0)
        return fitting

    def descend(self, nodes: list[int], options: SolveOptions) -> bool:
        """Best single moves, node by node, until none helps; True if anything improved."""
        waiting, queued, moved = list(nodes), set(nodes), False
        while waiting and options.left() > 0:
            node = waiting.pop()
            queued.discard(node)
            clash, cost, pick = self.clash[node], self.cost[node], self.pick[node]
            usable = (clash <= clash[pick]) & self.fits(node)
            usable &= (clash < clash[pick]) | (cost < cost[pick] - 1e-12 * abs(cost[pick]))
            if not usable.any():
                continue
            least = clash[usable].min()
            best = int(np.where(usable & (clash == least), cost, np.inf).argmin())
            self.move(node, best)
            moved = True
            for other in self.finite[node]:
                if other not in queued:
                    queued.add(other)
                    waiting.append(other)
        return moved

    def improve_pair(self, m: int, n: int) -> bool:
        """The best joint move of two neighbours, if one improves."""
        table = self.finite[m][n]
        now_m, now_n = self.pick[m], self.pick[n]
        joint = (self.cost[m] - table[:, now_n])[:, None] + (self.cost[n] - table[now_m])[None, :] + table
        ban = self.banned[m].get(n)
        clash_m, clash_n = self.clash[m], self.clash[n]
        if ban is not None:
            clash_m, clash_n = clash_m - ban[:, now_n], clash_n - ban[now_m]
            joint[ban] = np.inf
        joint[clash_m > 0] = np.inf
        joint[:, clash_n > 0] = np.inf
        before = self.cost[m][now_m] + self.cost[n][now_n] - table[now_m, now_n]
        if (ban is not None and ban[now_m, now_n]) or clash_m[now_m] > 0 or clash_n[now_n] > 0:
            before = np.inf
        flat = joint.ravel()
        count = min(PAIR_CANDIDATES, flat.size)
        nearest = np.argpartition(flat, count - 1)[:count]
        for index in nearest[np.argsort(flat[nearest], kind="stable")].tolist():
            if not flat[index] < before - 1e-12 * abs(before if math.isfinite(before) else 0.0):
                return False
            excess = self.overflow()
            self.move(m, index // table.shape[1])
            self.move(n, index % table.shape[1])
            if self.overflow() <= excess:
                return True
            self.move(m, now_m)
            self.move(n, now_n)
        return False

    def repair(self, options: SolveOptions) -> bool:
        """Moves of least cost per overflow removed, until every row holds; False if no move removes any."""
        if self.rows is None:
            return True
        limits = np.maximum(np.abs(self.rows.limits), 1.0)
        while options.left() > 0:
            over = self.used - self.rows.limits
            if not (over > 0).any():
                return True
            of_worst = set(self.rows.nodes[self.rows.counted_by(int((over / limits).argmax()))].tolist())
            offers = [offer for blocks in self._blocks if (offer := self._offer(blocks, of_worst, over, limits))]
            if not offers:
                return False
            _, _, node, pick = min(offers)
            self.move(node, pick)
        return False

    def _offer(
        self, blocks: Blocks, of_worst: set[int], over: Array, limits: Array
    ) -> tuple[int, float, int, int] | None:
        """Of the moves of some nodes that lower the overflow the best: new clashes, cost per overflow, node and pick."""
        picks = np.asarray([self.pick[node] for node in blocks.nodes], np.intp)
        change = blocks.changes(picks, over, limits)
        counted = np.asarray([node in of_worst for node in blocks.nodes], np.bool_)
        helping = np.flatnonzero((change < -1e-15) & counted[blocks.holders])
        if not helping.size:
            return None
        now = (blocks.choices + picks)[blocks.holders[helping]]
        clash = np.concatenate([self.clash[node] for node in blocks.nodes])
        cost = np.concatenate([self.cost[node] for node in blocks.nodes])
        worse = np.maximum(clash[helping] - clash[now], 0)
        price = (cost[helping] - cost[now]) / -change[helping]
        first = int(np.lexsort((price, worse))[0])
        place = int(blocks.holders[helping[first]])
        return int(worse[first]), float(price[first]), blocks.nodes[place], int(helping[first] - blocks.choices[place])

    def run(self, options: SolveOptions, seconds: float, kicks: int) -> tuple[float, dict[int, int]] | None:
        """The best feasible value and choice found within `seconds` and `kicks` restarts from kicked choices."""
        until = options.deadline.within(seconds)
        random = np.random.default_rng(options.seed)
        best: tuple[float, dict[int, int]] | None = None
        best_picks = dict(self.pick)
        movable = [node for node in self.nodes if self.network.unary[node].size > 1]
        for turn in range(kicks + 1):
            touched = list(movable)
            if turn:
                for node, pick in best_picks.items():
                    self.move(node, pick)
                centre = movable[int(random.integers(len(movable)))]
                touched = [centre, *self.finite[centre]]
                for node in touched[: 1 + int(random.integers(3))]:
                    self.move(node, int(random.integers(self.network.unary[node].size)))
            self.repair(options)
            self.descend(touched, options)
            self._improve_pairs(touched, options, until)
            value = self.value() if self.overflow() == 0 else math.inf
            if value < (math.inf if best is None else best[0]):
                best, best_picks = (value, self.choice()), dict(self.pick)
            if until.passed or not movable:
                break
        return best

    def _improve_pairs(self, nodes: list[int], options: SolveOptions, until: Deadline) -> None:
        waiting = sorted({tuple(sorted((n, m))) for n in nodes for m in self.finite[n]})
        while waiting and not until.passed:
            m, n = waiting.pop()
            if self.improve_pair(m, n):
                self.descend([m, n, *self.finite[m], *self.finite[n]], options)


MOST_ENTRIES = 1 << 20
"""How many bytes of choices in rows are looked at together."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Blocks:
    """The bytes of the choices of some `nodes` in the rows that count them.

    Entry i is of a choice of nodes[owners[i]], in row rows[i]; in the line of that node's choice p the same row is entry
    columns[i] + p * widths[i]. The entries of a choice begin at `lines`; the choices of nodes[j] begin at choices[j], and
    choice c is of nodes[holders[c]].
    """

    nodes: tuple[int, ...]
    owners: Indices
    rows: Indices
    columns: Indices
    widths: Indices
    bytes: Array
    lines: Indices
    choices: Indices
    holders: Indices

    @staticmethod
    def of(nodes: Sequence[int], network: Network, rows: RowTable) -> Blocks:
        """The blocks of nodes that rows count."""
        blocks: list[Array] = []
        counted: list[Indices] = []
        for node in nodes:
            at = [rows.rows_of(piece) for piece in rows.pieces_of[node]]
            usages = [rows.usages[piece][network.labels[node], None] for piece in rows.pieces_of[node]]
            of_pieces = [np.repeat(usage, some.size, axis=1) for usage, some in zip(usages, at, strict=True)]
            blocks.append(np.concatenate(of_pieces, axis=1))
            counted.append(np.concatenate(at))
        heights = np.asarray([block.shape[0] for block in blocks], np.intp)
        widths = np.asarray([block.shape[1] for block in blocks], np.intp)
        sizes = heights * widths
        begins = np.cumsum(sizes) - sizes
        owners = np.repeat(np.arange(len(nodes)), sizes)
        inside = np.arange(int(sizes.sum())) - begins[owners]
        holders = np.repeat(np.arange(len(nodes)), heights)
        choices = np.cumsum(heights) - heights
        return Blocks(
            nodes=tuple(nodes),
            owners=owners,
            rows=np.concatenate([np.tile(at, height) for at, height in zip(counted, heights.tolist(), strict=True)]),
            columns=begins[owners] + inside % widths[owners],
            widths=widths[owners],
            bytes=np.concatenate([block.ravel() for block in blocks]),
            lines=begins[holders] + (np.arange(holders.size) - choices[holders]) * widths[holders],
            choices=choices,
            holders=holders,
        )

    def changes(self, picks: Indices, over: Array, limits: Array) -> Array:
        """What the overflow, in parts of the limits, would change by for every choice in the place of its node's pick.

        `picks[j]` is that of nodes[j]; `over` is what every row has over its limit.
        """
        now = over[self.rows]
        after = now + self.bytes - self.bytes[self.columns + picks[self.owners] * self.widths]
        change = (np.maximum(after, 0.0) - np.maximum(now, 0.0)) / limits[self.rows]
        return np.add.reduceat(change, self.lines)


def blocks_of(network: Network, rows: RowTable) -> Iterator[Blocks]:
    """The blocks of all live nodes that rows count, as many together as are looked at at a time."""
    batch: list[int] = []
    entries = 0
    for node in sorted(network.live & rows.pieces_of.keys()):
        size = network.labels[node].size * sum(rows.rows_of(piece).size for piece in rows.pieces_of[node])
        if batch and entries + size > MOST_ENTRIES:
            yield Blocks.of(batch, network, rows)
            batch, entries = [], 0
        batch.append(node)
        entries += size
    if batch:
        yield Blocks.of(batch, network, rows)
