"""The passes of simplification, declared."""

from __future__ import annotations

from functools import partial

from planner.compiler.fusion.materialization import is_needed
from planner.compiler.model import Evidence, Pass
from planner.compiler.program import CompiledProgram
from planner.compiler.simplify.cse import equivalents, without_duplicates
from planner.compiler.simplify.loop_invariant_converts import hoisted_casts


def _cse(program: CompiledProgram) -> None:
    graph, fused = program.graph, program.fused
    replaced = equivalents(graph, fused, program.materialized, partial(is_needed, graph, fused))
    program.buffers = without_duplicates(program.buffers, replaced)


def _loop_invariant_converts(program: CompiledProgram) -> None:
    program.hoisted = hoisted_casts(program.graph, program.narrow, program.spans, program.materialized)
    program.buffers += program.hoisted


SHARDING_REMOVER = Pass(
    name="sharding-remover",
    phase="simplify",
    does="Removes sharding constraints, so that fusion and buffer assignment see through them.",
    evidence=Evidence(
        release="libtpu 0.0.42, jaxlib 0.10.2",
        seen="constraints that repeat a placement cost nothing in MaxText and in own programs",
        source="xla/service/sharding_remover.cc",
    ),
)

CONVERT_MOVER = Pass(
    name="convert-mover",
    phase="simplify",
    does="Makes, moves and stacks a tensor in the narrowest type that all of its readers want.",
    evidence=Evidence(
        release="libtpu 0.0.42",
        seen="float32 parameters of bfloat16 matmuls in all train steps on v5e and v5p",
        source="xla/hlo/transforms/convert_mover.cc",
    ),
)

LOOP_INVARIANT_CONVERTS = Pass(
    name="loop-invariant-convert-motion",
    phase="simplify",
    does="Converts a stack to a narrower type before the loop that reads its slices only so.",
    evidence=Evidence(
        release="libtpu 0.0.42",
        seen="scanned layers with float32 parameters on v5e and v5p",
        source="xla/service/while_loop_invariant_code_motion.cc",
    ),
    writes=("buffers", "hoisted"),
    run=_loop_invariant_converts,
)

MULTI_PASS_LOWERING = Pass(
    name="multi-pass-lowering",
    phase="simplify",
    does="Lowers sorts, scans and the like to several passes over memory (`cost_models.tpu_passes`).",
    evidence=Evidence(
        release="libtpu 0.0.42", seen="sorts and cumulative sums of 1 thousand to 4 million rows on v5e:4x4"
    ),
)

DOT_STRENGTH_REDUCTION = Pass(
    name="dot-strength-reduction",
    phase="simplify",
    does="Multiplies by a vector in the vector unit, element by element.",
    evidence=Evidence(
        release="libtpu 0.0.42",
        seen="decode steps with one query per sequence on v5e and v5p",
        source="xla/hlo/transforms/simplifiers/algebraic_simplifier.cc (HandleDotStrengthReduction)",
    ),
)

CSE = Pass(
    name="cse",
    phase="simplify",
    does="Keeps one of several equal tensors, and none that one fused op computes from a stored one of its type.",
    evidence=Evidence(
        release="libtpu 0.0.42",
        seen="residual blocks of ResNet, edge indices of graph networks on v5e:4x4",
        source="xla/service/hlo_cse.cc",
    ),
    writes=("buffers",),
    run=_cse,
)
