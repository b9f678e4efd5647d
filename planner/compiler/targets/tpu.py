"""XLA's TPU compiler (libtpu): its passes in their order."""

from __future__ import annotations

from planner.compiler.buffers import passes as buffers
from planner.compiler.collectives import passes as collectives
from planner.compiler.emission import passes as emission
from planner.compiler.fusion import passes as fusion
from planner.compiler.layout import passes as layout
from planner.compiler.model import CompilerModel
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
        layout.GATHER_TABLE_LAYOUT,
        # Fusion decides about tensors in turns: a softmax is seen once its neighbours are materialized.
        fusion.INSTRUCTION_FUSION,
        fusion.DOT_OPERAND_FUSION,
        fusion.DOT_OUTPUT_FUSION,
        fusion.SCATTER_INITIALIZATION,
        fusion.MATERIALIZATION,
        fusion.MULTI_OUTPUT_FUSION,
        fusion.SOFTMAX_WINDOW,
        layout.ROW_MAJOR_LANES,
        schedule.LIVE_RANGES,
        # Copies are inserted where live ranges overlap, and buffers are allocated for what is not in place.
        buffers.COPY_INSERTION,
        buffers.BUFFER_ASSIGNMENT,
        simplify.CSE,
        buffers.WIDENED_SIBLINGS,
        simplify.LOOP_INVARIANT_CONVERTS,
        buffers.MEMORY_SPACE_ASSIGNMENT,
        buffers.CROSS_PROGRAM_PREFETCH,
        collectives.ALL_REDUCE_REASSOCIATE,
        collectives.ALL_REDUCE_COMBINER,
        collectives.ASYNC_ALL_GATHER,
        collectives.ASYNC_COLLECTIVE_PERMUTE,
        collectives.REDUCE_SCATTER_DECOMPOSER,
        collectives.WHOLE_SUM_KEPT,
        emission.CONSTRAIN_ANCHORS_ONLY,
        emission.SLICES_OF_DONATED_STACKS,
        emission.NO_WINDOWED_EINSUM,
        emission.STACKS_IN_CARRY,
    ),
    # Nearer to the limit values are computed again to save memory: Llama-3-8B on v5p:4x4x4 takes 15 % more time with 102 of
    # 102.8 GB than with 97.
    room=0.95,
)
