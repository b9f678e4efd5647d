"""The compiler of every platform, and its limits on every chip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType

from cost_models import Chip, Topology
from cost_models.hardware import Platform
from planner.compiler.buffers import passes as buffers
from planner.compiler.collectives import passes as collectives
from planner.compiler.emission import passes as emission
from planner.compiler.emission.options import COMBINED_BYTES, FUSED_BROADCASTS, uses_sparse_cores
from planner.compiler.fusion import passes as fusion
from planner.compiler.layout import passes as layout
from planner.compiler.model import CompilerModel, Pass
from planner.compiler.release import installed_release, is_from
from planner.compiler.schedule import passes as schedule
from planner.compiler.simplify import passes as simplify

TPU = CompilerModel(
    platform="tpu",
    release="libtpu 0.0.42",
    passes=(
        simplify.SHARDING_REMOVER,
        simplify.CONVERT_MOVER,
        simplify.MULTI_PASS_LOWERING,
        simplify.DOT_STRENGTH_REDUCTION,
        layout.TILING,
        layout.DOT_OPERAND_LAYOUT,
        layout.LAYOUT_ASSIGNMENT,
        layout.GATHER_TABLE_LAYOUT,
        layout.LARGE_ROWS,
        layout.SCATTERED_ROWS,
        # Fusion decides about tensors in turns: a softmax is seen once its neighbours are materialized.
        fusion.INSTRUCTION_FUSION,
        fusion.RANDOM_BITS_FUSION,
        fusion.DOT_OPERAND_FUSION,
        fusion.DOT_OUTPUT_FUSION,
        fusion.MASKED_RAGGED_SUMS,
        fusion.SCATTER_INITIALIZATION,
        fusion.MATERIALIZATION,
        fusion.SOFTMAX_WINDOW,
        fusion.MULTI_OUTPUT_FUSION,
        fusion.NARROW_READS,
        fusion.SHARED_OPERANDS,
        layout.CONVOLUTION_LAYOUT,
        layout.DOT_LAYOUT,
        layout.ROW_MAJOR_LANES,
        schedule.LIVE_RANGES,
        schedule.GRADIENTS_LAST,
        # Copies are inserted where live ranges overlap, and buffers are allocated for what is not in place.
        buffers.COPY_INSERTION,
        buffers.WHILE_LOOP_FUSIBLE_SINKING,
        buffers.BUFFER_ASSIGNMENT,
        buffers.SEPARATE_RESULTS,
        simplify.CSE,
        buffers.WIDENED_SIBLINGS,
        buffers.COMPLEX_PLANES,
        buffers.REAL_TRANSFORMS,
        buffers.RAGGED_OPERAND_LAYOUT,
        buffers.GROUP_MASKS,
        simplify.LOOP_INVARIANT_CONVERTS,
        buffers.MEMORY_SPACE_ASSIGNMENT,
        buffers.CROSS_PROGRAM_PREFETCH,
        collectives.ALL_REDUCE_REASSOCIATE,
        collectives.REDUCE_SCATTER_CREATOR,
        collectives.ALL_REDUCE_COMBINER,
        collectives.ASYNC_ALL_GATHER,
        collectives.SPARSE_CORE_COLLECTIVES,
        collectives.ASYNC_COLLECTIVE_PERMUTE,
        collectives.REDUCE_SCATTER_DECOMPOSER,
        collectives.WHOLE_SUM_KEPT,
        emission.CONSTRAIN_ANCHORS_ONLY,
        emission.SLICES_OF_DONATED_STACKS,
        emission.NO_WINDOWED_EINSUM,
        emission.NO_SPACE_TO_BATCH,
        emission.SLICE_SCATTERS,
        emission.FUSED_BROADCASTS,
        emission.DISTINCT_STACKS,
        emission.STACKS_IN_CARRY,
    ),
    # Nearer to the limit values are computed again to save memory: Llama-3-8B on v5p:4x4x4 takes 15 % more time with 102 of
    # 102.8 GB than with 97.
    room=0.95,
)


GPU = CompilerModel(
    platform="gpu",
    release="jaxlib 0.10.2",
    combined_bytes=COMBINED_BYTES,
    passes=(
        simplify.SHARDING_REMOVER,
        layout.UNCOALESCED_TRANSPOSES,
        layout.COLLECTIVE_LAYOUT,
        layout.GPU_LAYOUT_ASSIGNMENT,
        fusion.INSTRUCTION_FUSION,
        fusion.GATHER_FUSION,
        # Matmuls read their operands from memory, so these are known before anything else is materialized.
        fusion.GEMM_OPERANDS,
        fusion.MATERIALIZATION,
        fusion.MULTI_OUTPUT_FUSION,
        fusion.EXPENSIVE_PRODUCERS,
        fusion.SOFTMAX_REWRITER_TRITON,
        fusion.DYNAMIC_SLICE_COPIES,
        fusion.SLICED_OPERANDS,
        fusion.SCATTER_INITIALIZATION,
        fusion.GEMM_TILING,
        fusion.RAGGED_DOT_EXPANDER,
        # Deferred ops keep their operands alive: the schedule comes before live ranges.
        schedule.LATENCY_HIDING_SCHEDULER,
        schedule.SAME_TYPE_REUSE,
        schedule.LIVE_RANGES,
        buffers.COPY_INSERTION,
        buffers.UPDATED_STACKS,
        buffers.BUFFER_ASSIGNMENT,
        layout.TRANSPOSED_BUFFERS,
        layout.TRANSPOSED_OPERANDS,
        buffers.MASKED_GROUPS,
        buffers.REMATERIALIZATION,
        collectives.ALL_REDUCE_COMBINER,
        collectives.ASYNC_ALL_GATHER,
        collectives.ASYNC_ALL_REDUCE,
        collectives.ASYNC_COLLECTIVES,
        emission.SUM_BEFORE_SLICE,
        emission.READ_AS_STORED,
        emission.STACKS_IN_CARRY,
    ),
    # What is more than 0.95 of four fifths of the memory is scheduled for memory alone: values are computed again, and no
    # collective hides (XLA's `GetSchedulerMemoryLimit`). Of a stacked LSTM on h100:8 with 72 of 84.9 GB 105 of 165 ms are
    # exposed, and 11 of 169 with 37 GB.
    room=0.76,
)


CPU = CompilerModel(
    platform="cpu",
    release="jaxlib 0.10.2",
    passes=(
        simplify.SHARDING_REMOVER,
        fusion.INSTRUCTION_FUSION,
        fusion.DOT_OPERAND_FUSION,
        fusion.RAGGED_DOT_EXPANDER,
        fusion.MATERIALIZATION,
        fusion.MULTI_OUTPUT_FUSION,
        fusion.OPERAND_READS,
        schedule.LIVE_RANGES,
        buffers.COPY_INSERTION,
        buffers.BUFFER_ASSIGNMENT,
        buffers.SIBLING_OPERANDS,
        buffers.MASKED_GROUPS,
        collectives.ALL_REDUCE_REASSOCIATE,
        collectives.ALL_REDUCE_COMBINER,
        buffers.RESULT_TABLE,
        buffers.ONE_MEMORY,
        collectives.REDUCE_SCATTER_DECOMPOSER,
        collectives.CPU_COLLECTIVES,
        emission.SUM_BEFORE_SLICE,
    ),
    models_kernels=False,
    reports_peak=False,
)


COMPILERS: Mapping[str, CompilerModel] = MappingProxyType({"tpu": TPU, "gpu": GPU, "cpu": CPU})

CLOCK_HZ: Mapping[str, float] = MappingProxyType(
    {"v4": 1.05e9, "v5e": 1.5e9, "v5p": 1.75e9, "v6e": 1.75e9, "tpu7x": 1.9e9}
)
"""Cycles per second of each chip, in which its compiler counts (the chips' rates over the operations of a cycle)."""

USABLE_VMEM: Mapping[str, float] = MappingProxyType({"v5p": 0.74, "v6e": 0.74})
"""The share of the memory on a chip that its compiler gives to arrays, where it is not that of v5e, 112 of 128 MiB.

By libtpu 0.0.42 scores of attention in float32 and what a backward pass makes of them in bfloat16, 96 of 128 MiB together,
both stay on the chip on v5e; on v6e 84 MiB do. On v5p 40 of 64 MiB do, and 48 do not.
"""


def compiler_of(chip: Chip) -> CompilerModel:
    """The compiler of a chip, with its limits there: as it is installed, or a new one where none is."""
    sparse = uses_sparse_cores(chip.name)
    return _compiler(chip.platform, chip.name, chip.cores, sparse, installed_release(chip.platform))


def is_of(one: Pass, installed: str | None) -> bool:
    """Whether a compiler has a pass in its installed release, or in a new one where none is installed."""
    since, until = one.evidence.since, one.evidence.until
    if installed is None:
        return not until
    return (not since or is_from(installed, since)) and not (until and is_from(installed, until))


@lru_cache(maxsize=64)
def _compiler(platform: Platform, name: str, cores: int, by_sparse_cores: bool, installed: str | None) -> CompilerModel:
    own = COMPILERS[platform]
    of_chips = (
        (collectives.SPARSE_CORE_COLLECTIVES, by_sparse_cores),
        (schedule.GRADIENTS_LAST, by_sparse_cores),
        (fusion.SHARED_OPERANDS, name == "v5p"),
        (buffers.GROUP_MASKS, name == "v5p"),
        (emission.FUSED_BROADCASTS, name in FUSED_BROADCASTS),
    )
    absent = [one for one, there in of_chips if not there]
    passes = tuple(one for one in own.passes if one not in absent and is_of(one, installed))
    # Several cores share the result of a matmul, or of an op with which none is fused: it does not stay on the chip.
    usable = USABLE_VMEM.get(name, own.usable_vmem)
    return replace(own, passes=passes, usable_vmem=usable, products_in_vmem=cores == 1)


def flops_that_hide(topology: Topology) -> tuple[float, float]:
    """The flops of matmuls beside which a gather is hidden however it is done: of any, and of each byte of its result.

    All devices together multiply as much while it passes hop by hop through all of them, and while what it and the gathers
    before it bring, twice its bytes, comes over the slowest wire that as many groups share as it can have; both twice, as
    it may be compiled to an all-reduce. Nothing where no gather is hidden.
    """
    if not compiler_of(topology.chip).runs("async-all-gather"):
        return 0.0, 0.0
    flops_per_s = topology.num_devices * topology.chip.peak("bfloat16", "matrix")
    seconds = 2 * topology.num_devices * max(topology.link_latency_s)
    return flops_per_s * seconds, flops_per_s * 4 * max(topology.shape) / min(topology.link_bytes_per_s)
