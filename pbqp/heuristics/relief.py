"""By how much every single move would lower the overflow of memory rows, for all nodes at once.

The bytes of a node's choices in the rows that count it are a block, a line per choice and a column per row; the blocks of
many nodes lie behind one another, so that what all their moves do to the rows is a few operations on flat arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pbqp.network.network import Indices, Network
from pbqp.problem import Array
from pbqp.row_table import RowTable

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
        heights = np.asarray([block.shape[0] for block in blocks])
        widths = np.asarray([block.shape[1] for block in blocks])
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
