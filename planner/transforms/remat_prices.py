"""Prices of the equations that make values: seconds and operations on one chip that holds everything."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import cost_models
from cost_models.hardware import Chip, Platform
from planner.program.graph import Aval
from planner.program.jaxpr.remat.residuals import Step
from planner.rules.kernels.kernel_parts import kernel_work
from planner.rules.primitives import PRIMITIVES

FUSED_PASS: Mapping[Platform, float] = {"tpu": 0.1, "gpu": 0.2, "cpu": 1.0}
"""Part of a pass over its result that an op costs which a compiler fuses with what reads it: a TPU's matmuls compute their
operands on the way, a GPU's read some from memory."""


def step_seconds(step: Step, chip: Chip) -> float:
    """Seconds of a leaf of the program, as often as it runs, on one chip."""
    made = sum(aval.bytes for aval in step.results)
    row = PRIMITIVES.get(step.kind)
    if row is not None and row.fused:
        return step.runs * FUSED_PASS[chip.platform] * made / chip.memory_bytes_per_s
    kernel = kernel_work(step.kind, step.params)
    flops = step_flops(step) / step.runs
    dtype, engine = step.operands[0].dtype if step.operands else "float32", cost_models.engine(step.kind)
    moved, reached = made + sum(aval.bytes for aval in step.operands), 1.0
    if kernel is not None:
        engine, dtype = kernel.engine, kernel.dtype or dtype
        declared = kernel.bytes(_shapes(step.operands)) if callable(kernel.bytes) else kernel.bytes
        moved = moved if declared is None else declared
        reached = chip.attention_efficiency if kernel.attends and engine == "matrix" else 1.0
    rate = chip.peak(dtype, engine) * (chip.efficiency(dtype) if engine == "matrix" else 1.0)
    return step.runs * max(flops / rate, moved / chip.memory_bytes_per_s) / reached


def step_flops(step: Step) -> float:
    """Operations of a leaf of the program, as often as it runs."""
    kernel = kernel_work(step.kind, step.params)
    if kernel is not None and kernel.flops is not None:
        return step.runs * (kernel.flops(_shapes(step.operands)) if callable(kernel.flops) else kernel.flops)
    return step.runs * cost_models.flops(step.kind, _shapes(step.operands), _shapes(step.results), step.params)


def _shapes(avals: Sequence[Aval]) -> list[tuple[int, ...]]:
    return [aval.shape for aval in avals]


def program_seconds(steps: Iterator[Step], chip: Chip) -> float:
    """What a whole program takes on one chip, at the prices of the front."""
    return math.fsum(step_seconds(step, chip) for step in steps)


def program_flops(steps: Iterator[Step]) -> float:
    """Operations of a whole program."""
    return math.fsum(map(step_flops, steps))


def is_fused(step: Step) -> bool:
    """Whether compilers fuse an op with what reads it."""
    row = PRIMITIVES.get(step.kind)
    return row is not None and row.fused


def is_view(step: Step) -> bool:
    """Whether an op computes nothing: it names, moves, converts or repeats."""
    return is_fused(step) and (step.kind == "convert_element_type" or step_flops(step) == 0)
