"""XLA's CPU compiler: its passes in their order. Of its kernels nothing is known; memory and collectives are."""

from __future__ import annotations

from planner.compiler.buffers import passes as buffers
from planner.compiler.collectives import passes as collectives
from planner.compiler.emission import passes as emission
from planner.compiler.fusion import passes as fusion
from planner.compiler.model import CompilerModel
from planner.compiler.schedule import passes as schedule
from planner.compiler.simplify import passes as simplify

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
        collectives.REDUCE_SCATTER_DECOMPOSER,
        collectives.CPU_COLLECTIVES,
        emission.SUM_BEFORE_SLICE,
    ),
    models_kernels=False,
    reports_peak=False,
)
