"""XLA's GPU compiler: its passes in their order."""

from __future__ import annotations

from planner.compiler.buffers import passes as buffers
from planner.compiler.collectives import passes as collectives
from planner.compiler.emission import passes as emission
from planner.compiler.fusion import passes as fusion
from planner.compiler.layout import passes as layout
from planner.compiler.model import CompilerModel
from planner.compiler.schedule import passes as schedule
from planner.compiler.simplify import passes as simplify

GPU = CompilerModel(
    platform="gpu",
    release="jaxlib 0.10.2",
    passes=(
        simplify.SHARDING_REMOVER,
        layout.GPU_LAYOUT_ASSIGNMENT,
        layout.UNCOALESCED_TRANSPOSES,
        fusion.INSTRUCTION_FUSION,
        fusion.GATHER_FUSION,
        # Matmuls read their operands from memory, so these are known before anything else is materialized.
        fusion.GEMM_OPERANDS,
        fusion.MATERIALIZATION,
        fusion.MULTI_OUTPUT_FUSION,
        fusion.EXPENSIVE_PRODUCERS,
        fusion.SOFTMAX_REWRITER_TRITON,
        fusion.DYNAMIC_SLICE_COPIES,
        fusion.GEMM_TILING,
        fusion.RAGGED_DOT_EXPANDER,
        # Deferred ops keep their operands alive: the schedule comes before live ranges.
        schedule.LATENCY_HIDING_SCHEDULER,
        schedule.SAME_TYPE_REUSE,
        schedule.LIVE_RANGES,
        buffers.COPY_INSERTION,
        buffers.BUFFER_ASSIGNMENT,
        layout.TRANSPOSED_BUFFERS,
        buffers.MASKED_GROUPS,
        buffers.REMATERIALIZATION,
        collectives.ALL_REDUCE_COMBINER,
        collectives.ASYNC_ALL_GATHER,
        collectives.ASYNC_ALL_REDUCE,
        emission.SUM_BEFORE_SLICE,
        emission.READ_AS_STORED,
        emission.STACKS_IN_CARRY,
    ),
    # From four fifths of the memory on values are computed again, which costs little, but may need more memory in the end
    # and not fit: Llama-3-8B on h100:8 with 81 of 84.9 GB.
    room=0.9,
)
