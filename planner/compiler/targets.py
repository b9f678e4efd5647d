"""Compilers: what those of each platform make of collectives, as tables with their sources, and the options they take.

Read off compiled programs, with no device: `planner.verify.aot` compiles for every topology named here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from cost_models.hardware import Platform
from cost_models.topology import Topology

NO_WINDOWED_EINSUM: Mapping[Platform, Mapping[str, str]] = MappingProxyType(
    {"tpu": {"xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000"}, "gpu": {}, "cpu": {}}
)
"""Compiler options under which gathers and scatters beside matmuls stay what was emitted.

XLA's TPU compiler else makes loops of small matmuls and collective-permutes of those above a threshold, which hide
communication and read the matmul's other operand once per pass (Wang et al. 2023,
https://doi.org/10.1145/3567955.3567959). libtpu 0.0.42 and 0.0.50; the GPU's threshold is 100,000 MiB by default, and the
CPU has none.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """Options under which a compiler of `platform` compiles what it ends in an error of else; `evidence`: seen where."""

    platform: Platform
    options: Mapping[str, str]
    evidence: str


REMEDIES: Mapping[str, Remedy] = MappingProxyType(
    {
        "Couldn't find output tile sizes": Remedy(
            platform="gpu",
            options=MappingProxyType({"xla_gpu_enable_triton_gemm": "False"}),
            evidence=(
                "jaxlib 0.10.2, compiling for h100:8 with no GPU at hand: train steps of attention over 127 and 196 "
                "positions end so, over 128 not; with the option both compile"
            ),
        ),
    }
)
"""What is known to help, by a part of the compiler's message."""


def remedy_of(platform: str, message: str, options: Mapping[str, str]) -> str:
    """The entry of `REMEDIES` for a compile that ended with a message under these options; "" where nothing more helps."""
    for error, remedy in REMEDIES.items():
        if remedy.platform == platform and error in message and not remedy.options.items() <= options.items():
            return error
    return ""


def options_of_plans(platform: Platform) -> Mapping[str, str]:
    """All compiler options that plans for a platform may carry."""
    options = dict(NO_WINDOWED_EINSUM[platform])
    for remedy in REMEDIES.values():
        if remedy.platform == platform:
            options |= remedy.options
    return options


STACKS_CARRIED: frozenset[Platform] = frozenset(("tpu", "gpu"))
"""Platforms for which a loop that makes a new stack of a donated one is emitted with that stack in its carry.

XLA's TPU compiler keeps what a scan takes in slices and what it gives back in slices as two stacks, and copies the second
over the first behind the loop: half as much memory again and twice the traffic of an update in place. libtpu 0.0.42. The
GPU's compiler does the same and makes the second stack of zeros first: decoding with a batch of 256 takes 51 ms for 86
where the stack is carried, and 49 GB for 75 (70B, 25 layers, 8 H100; jaxlib 0.10.2).
"""

ROOM: Mapping[Platform, float] = MappingProxyType({"tpu": 0.95, "gpu": 0.9})
"""The share of a device's memory up to which the compiler schedules a program as it is, where that is not all of it.

Nearer to the limit XLA's TPU compiler computes values again to save memory: Llama-3-8B on v5p:4x4x4 takes 15 % more time
with 102 of 102.8 GB than with 97. XLA's GPU compiler does so from four fifths of the memory on, which costs little, but may
need more memory in the end and not fit: Llama-3-8B on h100:8 with 81 of 84.9 GB.
"""

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


def all_reduced_bytes(kind: str, topology: Topology, *, group: int, devices: int) -> float:
    """The bytes up to which a collective is compiled to an all-reduce of as many bytes: 0 if never, inf if always.

    `group` is the number of devices that it is over, of the `devices` of the program; its bytes are the larger of the
    local operand and result. XLA's CPU backend has no reduce-scatter. Its TPU compiler sums over all dims of a torus at
    once where the group is the whole slice, and has no emitter of that kind for most scatters and large gathers, which
    take one ring:

        reduce-scatter over all    three dims: always (TPU7x: never); a square of 4 x 4 or more: always; of a block that is
                                   not all of the slice: always, but for blocks of up to 4 of two dims; else where small
        all-gather over all        of 64 devices or more: three dims: always; two: up to 16 MiB

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
    if group < devices or topology.nodes > 1:
        return small
    dims = [
        extent for extent, wires in zip(topology.shape, topology.kind, strict=True) if wires == "torus" and extent > 1
    ]
    if kind == "all-gather":
        if devices < max(LARGE_SLICE, topology.num_devices):
            return 0.0
        return math.inf if len(dims) > 2 else LARGEST_GATHER_BY_SUM_BYTES
    if topology.chip.name.startswith("tpu7x") or (
        len(dims) == 2 and devices <= min(SMALL_BLOCK, topology.num_devices - 1)
    ):
        return small
    block, cores = devices < topology.num_devices, topology.kind[-1] != "torus"
    square = len(dims) == 2 and dims[0] == dims[1] >= 4
    return math.inf if block or cores or square or len(dims) > 2 else small


HIDDEN_GATHERS: Mapping[str, float] = MappingProxyType(
    {"v5e": 0.9, "tpu7x": 0.9} | dict.fromkeys(("a100", "h100", "h200", "b200"), 0.9)
)
"""By chip, the share of an all-gather that runs beside matmuls where enough of them stand before it, as of weights.

In schedules by libtpu 0.0.42 of Llama, GPT and ViT train steps on v5e:4x4 whose layers are a loop, 0.04 to 0.16 of the
gathers are exposed; of gathers of activations, of reductions and of all-to-alls everything is. The schedules for v4, v5p
and v6e hide neither. Those by jaxlib 0.10.2 for 8 H100 hide 0.9 to all of the gathers of weights in the loops of Llama
and GPT, and next to nothing else.
"""


def flops_that_hide(topology: Topology) -> tuple[float, float]:
    """The flops of matmuls beside which a gather is hidden however it is done: of any, and of each byte of its result.

    All devices together multiply as much while it passes hop by hop through all of them, and while what it and the gathers
    before it bring, twice its bytes, comes over the slowest wire that as many groups share as it can have; both twice, as
    it may be compiled to an all-reduce. Nothing where no gather is hidden.
    """
    if topology.chip.name not in HIDDEN_GATHERS:
        return 0.0, 0.0
    flops_per_s = topology.num_devices * topology.chip.peak("bfloat16", "matrix")
    seconds = 2 * topology.num_devices * max(topology.link_latency_s)
    return flops_per_s * seconds, flops_per_s * 4 * max(topology.shape) / min(topology.link_bytes_per_s)


MATRIX_LANES = 128
"""Rows and columns of the tile of weights that products of matrices on a TPU are filled up to."""

TILE_ROWS, TILE_LANES = 8, 128
"""A tile of words of 32 bits, in which TPUs keep the last two dims of an array; narrower types take several in one."""


@lru_cache(maxsize=65536)
def scatters(chip_name: str, shape: tuple[int, ...], dim: int, *, parts: int, itemsize: int) -> bool:
    """Whether a TPU's compiler has a reduce-scatter of an array of this shape onto one of its dims; else it sums the whole.

    `shape` is that of what each of `parts` devices holds, from the most to the least major dim, in elements of `itemsize`
    bytes. Its emitters cut an array at its major end, or between its tiles:

        last dim            parts must be whole tiles, of 128 lanes in 32 bits and 256 in 16
        last but one        parts must be whole tiles, of 8 rows in 32 bits and 16 in 16, of several matrices; a single one
                            is cut anywhere, unless a dim of one element stands before it
        before these        only where no dim before it has more than one element

    Arrays of one dim, of less than a tile or of 8-bit elements are summed whole. TPU7x cuts everywhere but rows within
    tiles. By libtpu 0.0.42 for v4, v5e, v5p, v6e and tpu7x slices of 8 and 16 devices, over groups of 2, 4 and 8.
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
    if chip_name.startswith("tpu7x"):
        return dim != rows or not several or part % (packed * TILE_ROWS) == 0
    if extents[rows] < TILE_ROWS or extents[lanes] < TILE_LANES:
        return False
    if dim == lanes:
        return part % (packed * TILE_LANES) == 0
    if dim == rows:
        return part % (packed * TILE_ROWS) == 0 if several else rows == 0
    return not several


CLOCK_HZ: Mapping[str, float] = MappingProxyType(
    {"v4": 1.05e9, "v5e": 1.5e9, "v5p": 1.75e9, "v6e": 1.75e9, "tpu7x": 1.9e9}
)
"""Cycles per second of each chip, in which its compiler counts (the chips' rates over the operations of a cycle)."""
