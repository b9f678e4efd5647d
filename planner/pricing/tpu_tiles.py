"""Tiling: the bytes an array really takes in a TPU's memory, which stores arrays in tiles of 8 x 128 elements.

The rules reproduce the argument sizes that XLA's TPU compiler states (libtpu 0.0.42); its layout is the one with the least
padding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import permutations

import numpy as np

from pbqp.vectors import Floats, distinct_lines
from planner.compiler.layout.gather_tables import LargeRows, Rows, lies_by_rows
from planner.compiler.layout.multiplied import InTiles, Order
from planner.compiler.layout.tiles import TILE_LANES, TILE_ROWS
from planner.pricing.reshards.alternatives import Locations, local_extents

SCALAR_BYTES = 512.0


@lru_cache(maxsize=65536)
def tiled_bytes(shape: tuple[int, ...], itemsize: float) -> float:
    """Bytes of an array of this (local) shape on a TPU, padding included."""
    if 0 in shape or not itemsize:
        return 0.0
    if not shape:
        return SCALAR_BYTES
    if len(shape) == 1:
        unit = min(max(_power_of_2(shape[0]), TILE_LANES), TILE_ROWS * TILE_LANES)
        return _round(shape[0], unit) * itemsize
    return min(_tiles(shape, second, minor) for minor, second in permutations(_distinct(shape), 2)) * itemsize


@lru_cache(maxsize=65536)
def argument_order(shape: tuple[int, ...], itemsize: float) -> tuple[int, ...]:
    """The dims of an argument of this (local) shape from the outermost to the innermost in memory.

    The two innermost are those with the least padding, of equal ones the last; the others lie in their order. Elements
    below 4 bytes are packed: a tile has as many rows as make up a word, or more.
    """
    rank = len(shape)
    if rank < 2 or 0 in shape:
        return tuple(range(rank))
    packed = max(1, int(4 / itemsize))

    def padding(pair: tuple[int, int]) -> float:
        minor, second = shape[pair[0]], shape[pair[1]]
        rows = max(packed, min(TILE_ROWS, _power_of_2(second)))
        return _round(minor, TILE_LANES) * _round(second, rows) / (minor * second)

    minor, second = min(permutations(reversed(range(rank)), 2), key=padding)
    return (*(dim for dim in range(rank) if dim not in (minor, second)), second, minor)


@lru_cache(maxsize=65536)
def row_bytes(shape: tuple[int, ...], itemsize: float, in_rows: Order) -> float:
    """Bytes of an array of this (local) shape whose tiles are of two dims: its last two, or those of an image.

    In rows it lies where the table does whose rows it has; elsewhere with the least padding. An image has at least as many
    rows in a tile as make up a word.
    """
    if isinstance(in_rows, InTiles):
        packed = max(1, int(4 / itemsize)) if itemsize else 1
        pairs = {(shape[one], shape[other]) for one in in_rows.first for other in in_rows.second}
        sides = pairs | {(other, one) for one, other in pairs}
        return min(_tiles(shape, second, minor, packed) for second, minor in sides) * itemsize
    long = [extent for extent in shape if extent != 1]
    if len(long) < 2 or 0 in shape or not lies_by_rows(math.prod(shape[-in_rows.rank :]), in_rows.column):
        return tiled_bytes(shape, itemsize)
    if in_rows.single and sum(extent != 1 for extent in shape[-in_rows.rank :]) > 1:
        return tiled_bytes(shape, itemsize)
    return _tiles(tuple(long), long[-2], long[-1]) * itemsize


def _tiles(shape: tuple[int, ...], second: int, minor: int, packed: int = 1) -> int:
    """The elements of the tiles of an array whose two innermost dims have these extents."""
    if not second * minor:
        return 0
    rows = max(packed, min(TILE_ROWS, _power_of_2(second)))
    return math.prod(shape) // (second * minor) * _round(second, rows) * _round(minor, TILE_LANES)


def local_tiled_bytes(
    locations: Locations,
    axis_sizes: Sequence[int],
    shape: Sequence[int],
    itemsize: float,
    *,
    in_rows: Order | None = None,
) -> Floats:
    """Bytes per device of an array of this whole shape at each of the locations (see `reshard.Locations`).

    `in_rows`: how it lies in rows, if it does. What is given back may be given out again, and is not to be changed.
    """
    specs = locations.tobytes(), locations.shape
    return _local_tiled_bytes(specs, tuple(axis_sizes), tuple(shape), itemsize, in_rows)


@lru_cache(maxsize=2**11)
def _local_tiled_bytes(
    specs: tuple[bytes, tuple[int, ...]],
    axis_sizes: tuple[int, ...],
    shape: tuple[int, ...],
    itemsize: float,
    in_rows: Order | None,
) -> Floats:
    """The same at locations of this content and shape; arrays of one shape are asked for again and again."""

    def sized(local: tuple[int, ...]) -> float:
        return tiled_bytes(local, itemsize) if in_rows is None else row_bytes(local, itemsize, in_rows)

    locations = np.frombuffer(specs[0], np.int8).reshape(specs[1])
    return _of_parts(sized, locations, axis_sizes, shape)


def in_argument_order(
    locations: Locations, axis_sizes: Sequence[int], shape: Sequence[int], dim: int, itemsize: float
) -> Floats:
    """1 where a device's part of an argument has several elements along a dim and lies in their order, else 0."""
    in_order = tuple(range(len(shape)))

    def is_in_order(local: tuple[int, ...]) -> float:
        return float(local[dim] > 1 and argument_order(local, itemsize) == in_order)

    return _of_parts(is_in_order, locations, axis_sizes, shape)


def copied_for_rows(
    locations: Locations, axis_sizes: Sequence[int], shape: Sequence[int], rows: Rows | LargeRows
) -> Floats:
    """Bytes that a device moves to lay out its part of a table for lookups, at each of the locations."""

    def copied(local: tuple[int, ...]) -> float:
        return rows.bytes(local, tiled_bytes(local, rows.stored), argument_order(local, rows.stored)[-1])

    return _of_parts(copied, locations, axis_sizes, shape)


def _of_parts(
    figure: Callable[[tuple[int, ...]], float], locations: Locations, axis_sizes: Sequence[int], shape: Sequence[int]
) -> Floats:
    """A figure of the shape of a device's part of an array at each of the locations."""
    rows, row_of = distinct_lines(locations)
    parts = map(tuple, local_extents(rows, axis_sizes, shape).tolist())
    return np.asarray([figure(local) for local in parts], np.float64)[row_of]


def _distinct(shape: Sequence[int]) -> list[int]:
    """The extents, each at most twice: enough for every pair of dims."""
    return sorted(extent for i, extent in enumerate(shape) if shape[:i].count(extent) < 2)


def _round(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _power_of_2(value: int) -> int:
    return 1 << max(value - 1, 0).bit_length()
