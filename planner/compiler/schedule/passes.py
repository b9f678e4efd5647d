"""The passes of scheduling, declared."""

from __future__ import annotations

from planner.compiler.model import Evidence, Pass
from planner.compiler.program import CompiledProgram
from planner.compiler.schedule.gradients_last import awaiting
from planner.compiler.schedule.last_uses import last_uses
from planner.compiler.schedule.latency_hiding import deferred


def _latency_hiding(program: CompiledProgram) -> None:
    program.scheduled_at = deferred(program.graph, program.fused, program.spans)


def _gradients_last(program: CompiledProgram) -> None:
    program.awaiting = awaiting(program.graph, program.grouping, program.fused, program.materialized, program.spans)


def _live_ranges(program: CompiledProgram) -> None:
    graph = program.graph
    if program.compiler.runs("same-type-reuse"):
        program.same_type = {tensor for tensor, stored in enumerate(program.materialized) if stored}
    program.last_use = last_uses(
        graph,
        program.fused,
        program.materialized,
        program.spans,
        program.same_type,
        program.scheduled_at,
        [program.narrow.fraction(tensor.id) for tensor in graph.tensors],
        program.narrow_of,
    )


LATENCY_HIDING_SCHEDULER = Pass(
    name="latency-hiding-scheduler",
    phase="schedule",
    does="Runs products and sums that nothing waits for later than their place, so that their operands live longer.",
    evidence=Evidence(
        release="jaxlib 0.10.2",
        seen="gradients of weights and biases in train steps on h100:8",
        source="xla/service/latency_hiding_scheduler.cc",
    ),
    writes=("scheduled_at",),
    run=_latency_hiding,
)

SAME_TYPE_REUSE = Pass(
    name="same-type-reuse",
    phase="buffers",
    does="Lets a fused op overwrite only operands of the type of its result.",
    evidence=Evidence(
        release="jaxlib 0.10.2",
        seen="buffer assignments of train steps on h100:8",
        source="xla/service/gpu/alias_info.cc (FusionCanShareBufferHint)",
    ),
)

LIVE_RANGES = Pass(
    name="live-ranges",
    phase="schedule",
    does="Keeps a tensor until its last reader, through everything that is computed from it in passing.",
    evidence=Evidence(
        release="libtpu 0.0.42, jaxlib 0.10.2",
        seen="buffer assignments of all programs of the fidelity suite",
        source="xla/hlo/utils/hlo_live_range.cc",
    ),
    writes=("same_type", "last_use"),
    run=_live_ranges,
)

GRADIENTS_LAST = Pass(
    name="gradients-last",
    phase="schedule",
    does="Where SparseCores sum them one by one, makes gradients of weights last, and keeps what they are made of.",
    evidence=Evidence(
        release="libtpu 0.0.42",
        seen="perceptrons and transformers whose layers are written out on v6e:2x4 and v6e:4x4",
        source="xla/service/latency_hiding_scheduler.cc",
    ),
    writes=("awaiting",),
    run=_gradients_last,
)
