"""Lowering of collectives: which of them a compiler turns into all-reduces.

Read off compiled programs, with no device: `planner.verify.aot` compiles for every topology named here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

from cost_models.topology import Topology
from planner.compiler.layout.tiles import TILE_LANES, TILE_ROWS
from planner.compiler.model import CompilerModel
from planner.prediction import Collective

LEAST_SCATTERED_BYTES = 4096
"""A tile of 8 x 128 words of 32 bits: XLA's TPU compiler makes an all-reduce of a reduce-scatter to parts below it."""

LARGE_SLICE = 64
"""Devices of a TPU slice from which on an all-gather over all of them becomes an all-reduce of a buffer of zeros."""

LARGEST_GATHER_BY_SUM_BYTES = 16 * 2**20
"""The largest result for which that is done on a torus of two dims; on one of three it always is."""

SMALL_BLOCK = 4
"""Devices of a block of a torus of two dims over all of which a reduce-scatter stays one; over eight it is an all-reduce.

Compiled by libtpu 0.0.42 for 2, 4, 2 x 2 and 8 devices of v5e:2x4, v5e:4x4, v6e:2x4 and v6e:4x4 (16 MiB of float32).
"""

SCATTERED_TILES = 1882
"""The tiles that a reduce-scatter has at hand, 7.4 MiB: one of each row of tiles in a chunk for every part, and four more.

Compiled by libtpu 0.0.42 for prime numbers of tiles in a row: over 4, 8, 16, 32 and 64 devices of v5e, and 8 and 16 of v5p.
Twice as many on v6e and TPU7x, over 8 and 16.
"""

MOST_CHUNKS = 22
"""A reduce-scatter does rows of tiles in so many chunks of equal size at the most; those of 393 tiles have 3, 131 or 393.

By the same compilations: 22 times 83 tiles are scattered, 23 times 83 are not.
"""

LEAST_OF_ROOM, MOST_OF_ROOM = 8, 0.97
"""Chunks of whole rows have twice the room of those of one row, a little less on v5e and v5p. There they take at least an
eighth of it, in elements of 32 bits: smaller ones take longer than a sum of the whole.

By libtpu 0.0.42 for v5e, over 2 to 16 devices, and for v5p, over 16, rows of one tile each: 16 devices do not scatter 22
times 293 of them, but 23 times 293 in chunks of 23; 181 are scattered at once and 193 not. On v6e chunks of 6 are
scattered; what is least there was not seen.
"""


def all_reduced_bytes(
    kind: str, topology: Topology, *, group: int, devices: int, slice_scatters: bool = False
) -> float:
    """The bytes up to which a collective is compiled to an all-reduce of as many bytes: 0 if never, inf if always.

    `group` is the number of devices that it is over, of the `devices` of the program; its bytes are the larger of the
    local operand and result. XLA's CPU backend has no reduce-scatter. Its TPU compiler sums over all dims of a torus at
    once where the group is the whole slice, and has no emitter of that kind for most scatters and large gathers, which
    take one ring; with `slice_scatters` it is told to scatter nevertheless (`emission.options.SLICE_SCATTERS`). Without:

        reduce-scatter over all    three dims: always (TPU7x: never); a square of 4 x 4 or more: always; of a block that is
                                   not all of the slice: always, but for blocks of up to 4 of two dims; else where small
        all-gather over all        of 64 devices or more: three dims: always; two: up to 16 MiB
        over one of several slices likewise, but that scatters over two dims stay

    By libtpu 0.0.42 for v4, v5e, v5p, v6e and tpu7x slices from 4 to 512 devices and 32 KiB to 512 MiB, bfloat16 and
    float32 alike, in a `shard_map` or by constraint; over axes of a mesh that are not all of it, nothing becomes an
    all-reduce but scatters to parts of less than a tile.
    """
    platform = topology.chip.platform
    if platform == "cpu":
        return math.inf if kind == "reduce-scatter" else 0.0
    if platform != "tpu" or kind not in ("reduce-scatter", "all-gather"):
        return 0.0
    small = LEAST_SCATTERED_BYTES * group - 1.0 if kind == "reduce-scatter" else 0.0
    of_slice, in_slice = topology.num_devices // topology.nodes, devices // topology.nodes
    if group != in_slice or (kind == "reduce-scatter" and slice_scatters):
        return small
    dims = [
        extent for extent, wires in zip(topology.shape, topology.kind, strict=True) if wires == "torus" and extent > 1
    ]
    if kind == "all-gather":
        if in_slice < max(LARGE_SLICE, of_slice):
            return 0.0
        return math.inf if len(dims) > 2 else LARGEST_GATHER_BY_SUM_BYTES
    if topology.chip.name.startswith("tpu7x") or (
        len(dims) == 2 and (in_slice <= min(SMALL_BLOCK, of_slice - 1) or topology.nodes > 1)
    ):
        return small
    block, cores = in_slice < of_slice, topology.kind[-1] != "torus"
    square = len(dims) == 2 and dims[0] == dims[1] >= 4
    return math.inf if block or cores or square or len(dims) > 2 else small


@lru_cache(maxsize=65536)
def scatters(chip_name: str, shape: tuple[int, ...], dim: int, *, parts: int, itemsize: int) -> bool:
    """Whether a TPU's compiler has a reduce-scatter of an array of this shape onto one of its dims; else it sums the whole.

    `shape` is that of what each of `parts` devices holds, from the most to the least major dim, in elements of `itemsize`
    bytes. Its emitters cut an array at its major end, or between its tiles:

        last dim            parts must be whole tiles, of 128 lanes in 32 bits and 256 in 16
        last but one        parts must be whole tiles, of 8 rows in 32 bits and 16 in 16, of several matrices; a single one
                            is cut anywhere, unless a dim of one element stands before it, into parts that are more
                            than half a tile of 8 rows: they are filled up to whole ones
        before these        only where no dim before it has more than one element

    Of a single matrix rows of tiles must fall into few chunks of equal size that have room (`_in_chunks`), and parts of a
    last dim into chunks of whole rows that are neither too large nor too small (`_rows_in_chunks`): the gradient of an
    embedding of 50,304 tokens is summed whole, one of 50,176 is scattered, and of 50,277 tokens one is summed whole that
    is cut along its width. Arrays of one dim, of less than a tile or of 8-bit elements are summed whole. TPU7x cuts all
    else but rows within tiles. By libtpu 0.0.42 for v4, v5e, v5p, v6e and tpu7x slices of 8 and 16 devices, over groups of
    2, 4 and 8, and for v5e:16x16 over 16 and 128.
    """
    if len(shape) < 2 or itemsize < 2:
        return False
    rows, lanes = len(shape) - 2, len(shape) - 1
    extents = list(shape)
    if shape[lanes] < TILE_LANES <= shape[rows]:
        # Kept the other way round, so that lanes are used.
        extents[rows], extents[lanes] = shape[lanes], shape[rows]
        dim = {rows: lanes, lanes: rows}.get(dim, dim)
    part, several = extents[dim] // parts, math.prod(extents[:dim]) > 1
    packed = max(1, 4 // itemsize)
    single = dim == rows and not several
    if single and not _in_chunks(chip_name, extents[lanes], parts):
        return False
    tall = math.prod(extents[:rows]) * math.ceil(extents[rows] / (packed * TILE_ROWS))
    if dim == lanes and not _rows_in_chunks(chip_name, tall, math.ceil(part / TILE_LANES), parts, packed):
        return False
    if chip_name.startswith("tpu7x"):
        return dim != rows or (part % (packed * TILE_ROWS) == 0 if several else 2 * part > TILE_ROWS)
    if extents[rows] < TILE_ROWS or extents[lanes] < TILE_LANES:
        return False
    if dim == lanes:
        return part % (packed * TILE_LANES) == 0
    if dim == rows:
        return part % (packed * TILE_ROWS) == 0 if several else rows == 0 and 2 * part > TILE_ROWS
    return not several


def _in_chunks(chip_name: str, lanes: int, parts: int) -> bool:
    """Whether rows of so many lanes may be scattered in chunks, over so many parts."""
    tiles, room = math.ceil(lanes / TILE_LANES), _room(chip_name, parts)
    return any(tiles % count == 0 and tiles // count <= room for count in range(1, MOST_CHUNKS + 1))


def _rows_in_chunks(chip_name: str, rows: int, wide: int, parts: int, packed: int) -> bool:
    """Whether so many rows of parts of so many tiles may be scattered in chunks of whole rows, over so many parts."""
    room = 2 * _room(chip_name, parts)
    least, most = (1, room) if _is_roomy(chip_name) else (room // LEAST_OF_ROOM / packed, MOST_OF_ROOM * room)
    return rows * wide <= most or any(
        rows % chunk == 0 and least <= chunk * wide for chunk in range(1, int(most) // wide + 1)
    )


def _room(chip_name: str, parts: int) -> int:
    """The tiles of a chunk of a row that have room, over so many parts."""
    return (2 if _is_roomy(chip_name) else 1) * SCATTERED_TILES // (parts + 4)


def _is_roomy(chip_name: str) -> bool:
    return chip_name.startswith(("v6e", "tpu7x"))


def as_lowered(
    collectives: Sequence[Collective], compiler: CompilerModel, runs_as: Callable[[str, Sequence[str], float], str]
) -> tuple[Collective, ...]:
    """The collectives as a compiler writes them; `runs_as` says by kind, axes and bytes which kind one becomes.

    XLA's CPU backend has no reduce-scatter (an all-reduce and a slice do its work) and moves narrow floats wider; it moves
    out of loops what none of their trips changes, and sums over split dims one after the other, which the TPU's does not.
    """
    emitted = [replace(c, kind=c.emitted or c.kind, emitted=c.emitted or c.kind) for c in collectives]
    if not compiler.runs("cpu-collectives"):
        return tuple(replace(c, kind=runs_as(c.kind, c.axes, c.bytes)) for c in emitted)
    return tuple(
        replace(
            c,
            kind="all-reduce" if c.kind == "reduce-scatter" else c.kind,
            bytes=c.bytes / c.narrowed * _times_wider(c.dtype),
            narrowed=1.0,
            count=c.lifted[0],
            assumed=c.lifted[1],
            axes=axes,
            by_dim=(),
        )
        for c in emitted
        for axes in (c.by_dim or (c.axes,))
    )


def _times_wider(dtype: str) -> int:
    """How many times as wide XLA's CPU backend moves a type: bfloat16 as float32, 8-bit floats as float16."""
    return 2 if dtype == "bfloat16" or dtype.startswith("float8") else 1
