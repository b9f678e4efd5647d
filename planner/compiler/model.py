"""A compiler as a list of passes: what each does to a program, where that was seen, and whether it runs on a target."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from cost_models.hardware import Platform

Phase = Literal[
    "simplify",
    "layout",
    "fusion",
    "schedule",
    "buffers",
    "memory space",
    "rematerialization",
    "collectives",
    "emission",
]
"""Where a pass stands in the compiler's own order. "emission" is what the planner writes because of the compiler."""

PassName = Literal[
    "sharding-remover",
    "convert-mover",
    "loop-invariant-convert-motion",
    "cse",
    "row-major-lanes",
    "convolution-layout",
    "dot-layout",
    "layout-assignment",
    "gather-table-layout",
    "large-rows",
    "scattered-rows",
    "dot-operand-layout",
    "gpu-layout-assignment",
    "collective-layout",
    "uncoalesced-transposes",
    "tiling",
    "multi-pass-lowering",
    "dot-strength-reduction",
    "gemm-tiling",
    "whole-sum-kept",
    "transposed-buffers",
    "instruction-fusion",
    "dot-operand-fusion",
    "dot-output-fusion",
    "gemm-operands",
    "gather-fusion",
    "materialization",
    "softmax-window",
    "multi-output-fusion",
    "narrow-reads",
    "shared-operands",
    "expensive-producers",
    "softmax-rewriter-triton",
    "dynamic-slice-copies",
    "sliced-operands",
    "random-bits-fusion",
    "scatter-initialization",
    "operand-reads",
    "ragged-dot-expander",
    "masked-ragged-sums",
    "ragged-operand-layout",
    "latency-hiding-scheduler",
    "live-ranges",
    "gradients-last",
    "same-type-reuse",
    "copy-insertion",
    "while-loop-fusible-sinking",
    "updated-stacks",
    "transposed-operands",
    "buffer-assignment",
    "sibling-operands",
    "widened-siblings",
    "complex-planes",
    "real-transforms",
    "masked-groups",
    "group-masks",
    "separate-results",
    "memory-space-assignment",
    "cross-program-prefetch",
    "rematerialization",
    "all-reduce-reassociate",
    "reduce-scatter-creator",
    "all-reduce-combiner",
    "async-all-gather",
    "async-all-reduce",
    "async-collectives",
    "sparse-core-collectives",
    "async-collective-permute",
    "reduce-scatter-decomposer",
    "cpu-collectives",
    "result-table",
    "one-memory",
    "sum-before-slice",
    "read-as-stored",
    "constrain-anchors-only",
    "slices-of-donated-stacks",
    "no-windowed-einsum",
    "no-space-to-batch",
    "slice-scatters",
    "fused-broadcasts",
    "stacks-in-carry",
    "distinct-stacks",
]
"""Every pass of every target. Where XLA has a pass for it, its name there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Where a behaviour was seen: in programs of which compiler release, for which chips; `source`: the file of XLA.

    Several releases are separated by ", ". `since` is the release from which on compilers behave so where they did not
    before, `until` the one from which on they do no longer.
    """

    release: str
    seen: str
    source: str = ""
    since: str = ""
    until: str = ""

    @property
    def releases(self) -> tuple[str, ...]:
        """The releases, one by one."""
        return tuple(self.release.split(", "))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One step of a compiler, as far as it changes the time or the memory of a program.

    `does` is one sentence. `writes` are the columns of `CompiledProgram` that `run` changes; a pass without `run` is asked
    for by name (`CompilerModel.runs`) where kernels, traffic, collectives or constraints are worked out.
    """

    name: PassName
    phase: Phase
    does: str
    evidence: Evidence
    writes: tuple[str, ...] = ()
    run: Callable[..., None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerModel:
    """The compiler of a target: its passes in their order, and its limits.

    `release` is the one that the passes were read off. `models_kernels`: kernels and their traffic are known, so that time
    is priced kernel by kernel. `room` is the share of a device's memory up to which programs are scheduled as they are.
    `usable_vmem` is the share of the memory on the chip that arrays get; the rest is what kernels work in.
    `products_in_vmem`: results of matmuls, and of ops alone in their kernels, may stay there. `reports_peak`: its report of
    peak memory can be relied on.
    Sums are combined into one of up to `combined_bytes`.
    """

    platform: Platform
    release: str
    passes: tuple[Pass, ...]
    models_kernels: bool = True
    room: float = 1.0
    usable_vmem: float = 7 / 8
    products_in_vmem: bool = True
    reports_peak: bool = True
    combined_bytes: float = math.inf
    _names: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_names", frozenset(one.name for one in self.passes))

    def runs(self, name: PassName) -> bool:
        """Whether the compiler has a pass."""
        return name in self._names

    def releases_of(self, one: Pass) -> tuple[str, ...]:
        """The releases of this compiler from which a pass was read; its own where the pass was read off others alone."""
        package = self.release.split()[0]
        return tuple(name for name in one.evidence.releases if name.split()[0] == package) or (self.release,)

    def without(self, *names: PassName) -> CompilerModel:
        """The same compiler with passes switched off, to measure what they are worth."""
        return replace(self, passes=tuple(one for one in self.passes if one.name not in names))
