"""Gathered rows: tables that lookups read, and gradients of tables that scatters add to, where they do not lie row by row.

An argument lies in memory as takes the least padding: a table whose rows do not fill the 128 lanes of a tile lies column by
column. XLA's TPU compiler copies it for a lookup, rows filled up to whole tiles, where that wastes little memory; narrow,
where all that read the rows want them so. Else it looks up what lies apart. What is scattered onto zeros it makes so, too,
and copies it back; since libtpu 0.0.50 where that wastes more. Seen in its schedules for tables of 16 thousand to 4 million
rows of 4 to 512 elements.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from planner.compiler.layout.tiles import TILE_LANES, TILE_ROWS
from planner.compiler.simplify.convert_mover import NarrowReads
from planner.program.dataflow import source_through
from planner.program.graph import Graph, Op
from planner.rules.primitives import kinds_where, traits

LOOKUPS = kinds_where(lambda row: row.picks and not row.fused)
MOST_WASTED = 128 * 2**20
"""Bytes of padding for which arrays are laid out by rows."""
MOST_WASTED_SCATTERED = 464 * 2**20
"""The same of scatters since libtpu 0.0.50: 449 MiB are wasted by it, 480 are not."""
LARGEST_ROW = 2**18
"""Elements of a row that is looked up at once: of float32 1 MiB are, 1.25 are not."""
MOST_TIMES = 2.0
"""As how many times its bytes a table is laid out by rows in any case; for scatters as fewer."""


def lies_by_rows(row: float, column_bytes: float) -> bool:
    """Whether a table of rows of so many elements, a column of it of so many bytes, is laid out by rows."""
    filled = -(-row // TILE_LANES) * TILE_LANES
    return filled <= MOST_TIMES * row or column_bytes * (filled - row) < MOST_WASTED


class Rows(NamedTuple):
    """A table with elements of `stored` bytes whose dims `within` are a row: read by a lookup, or `scattered` onto zeros.

    A copy for a lookup has elements of `copied` bytes. `most_wasted`: bytes of padding for which it is laid out by rows. Of
    a `batch` of tables that are written to one is made, with the rows of all: another array only where the rows do not
    lie innermost.
    """

    stored: float
    copied: float
    within: tuple[int, ...]
    scattered: bool = False
    most_wasted: float = MOST_WASTED
    batch: bool = False

    def bytes(self, shape: tuple[int, ...], stored_bytes: float, innermost: int) -> float:
        """Bytes read and written beside the rows themselves for a (local) table of this shape.

        `stored_bytes` are those that it takes as an argument, which has the dim `innermost` innermost in memory.
        """
        if self.batch:
            return 0.0 if innermost in self.within else 2 * stored_bytes
        row = math.prod(shape[dim] for dim in self.within)
        filled = math.prod(shape) / row * -(-row // TILE_LANES) * TILE_LANES
        by_rows = innermost not in self.within and self.stored * filled - stored_bytes < self.most_wasted
        if self.scattered:
            by_rows |= innermost not in self.within and self.stored * filled < MOST_TIMES * stored_bytes
            return stored_bytes + 2 * self.stored * filled * by_rows
        if innermost in self.within:
            return 0.0
        return (
            stored_bytes + self.copied * filled if by_rows or self.stored * filled <= MOST_TIMES * stored_bytes else 0.0
        )


class LargeRows(NamedTuple):
    """A table with elements of `stored` bytes, or what is looked up in it, whose dims `within` are a row.

    Large rows are looked up part by part. For this the table is cut into parts, and the parts of the result are joined.
    """

    stored: float
    within: tuple[int, ...]

    def bytes(self, shape: tuple[int, ...], stored_bytes: float, innermost: int) -> float:
        """Bytes of a (local) array of this shape, `stored_bytes`, where its rows are large; else 0."""
        # Of rows of one dim a tile holds eight.
        row = math.prod(shape[dim] for dim in self.within) * (TILE_ROWS if len(self.within) == 1 else 1)
        return stored_bytes if row > LARGEST_ROW else 0.0


def large_rows(graph: Graph, op: Op) -> tuple[LargeRows, LargeRows] | None:
    """The table of a lookup of whole rows, and its result; None where it looks up parts of rows, or single elements."""
    numbers, sizes = op.params["dimension_numbers"], op.params["slice_sizes"]
    table = graph.tensors[op.operands[0]].aval
    apart = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    within = tuple(dim for dim in range(len(sizes)) if dim not in apart)
    if not within or any(sizes[dim] != table.shape[dim] for dim in within):
        return None
    return LargeRows(table.itemsize, within), LargeRows(table.itemsize, tuple(numbers.offset_dims))


def gathered_rows(graph: Graph, narrow: NarrowReads) -> dict[int, Rows]:
    """What may be copied for lookups in arguments, by op; outside of loops."""
    found: dict[int, Rows] = {}
    for op in graph.of_kinds(LOOKUPS):
        table = _argument(graph, op)
        if op.region or table is None:
            continue
        numbers, sizes = op.params["dimension_numbers"], op.params["slice_sizes"]
        apart = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
        within = tuple(dim for dim, extent in enumerate(sizes) if dim not in apart and extent > 1)
        stored = graph.tensors[table].aval.itemsize
        read = graph.tensors[op.operands[0]].aval.itemsize * narrow.fraction(op.results[0])
        if within:
            found[op.id] = Rows(stored, min(stored, read), within)
    return found


def scattered_rows(graph: Graph, op: Op, most_wasted: float) -> Rows | None:
    """The rows that a scatter adds to; None where it adds single elements."""
    rows = _written_rows(graph, op)
    return rows._replace(most_wasted=most_wasted) if rows.within else None


def batch_of_tables(graph: Graph, op: Op) -> Rows:
    """The rows that a scatter with batch dims writes; of dims that it writes a part of there are rows for each element."""
    rows, numbers = _written_rows(graph, op), op.params["dimension_numbers"]
    table, updates = (graph.tensors[tensor].aval.shape for tensor in (op.operands[0], op.operands[-1]))
    apart = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    window = zip((d for d in range(len(table)) if d not in apart), numbers.update_window_dims, strict=True)
    whole = {dim for dim, at in window if updates[at] == table[dim]}
    return rows._replace(within=tuple(d for d in rows.within if d in whole), scattered=False, batch=True)


def _written_rows(graph: Graph, op: Op) -> Rows:
    aval, numbers = graph.tensors[op.results[0]].aval, op.params["dimension_numbers"]
    apart = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    within = tuple(dim for dim, extent in enumerate(aval.shape) if dim not in apart and extent > 1)
    return Rows(aval.itemsize, aval.itemsize, within, scattered=True)


def _argument(graph: Graph, op: Op) -> int | None:
    """The argument that is the table of a lookup, in whatever type; None where it is computed."""

    def passes(op: Op) -> bool:
        return op.kind == "convert_element_type" or traits(op.kind).renames

    tensor = source_through(graph, op.operands[0], passes)
    return tensor if tensor in graph.taken else None
