"""Variants: other ways to emit what was decided, which only a compiler can tell from the first."""

from __future__ import annotations

from dataclasses import replace

from cost_models.compilers import NO_WINDOWED_EINSUM
from planner.decision import Decision


def variants(decision: Decision) -> tuple[Decision, ...]:
    """The decisions that place the same program the same way and are emitted or compiled otherwise, `decision` left out.

    On TPU: windowed einsum left to the compiler, which costs up to half of a step or gains a few per cent. What is
    predicted of a variant is what is predicted of `decision`.
    """
    off = NO_WINDOWED_EINSUM[decision.request.topology.chip.platform]
    kept = {name: value for name, value in decision.compiler_options.items() if name not in off}
    return () if kept == decision.compiler_options else (replace(decision, compiler_options=kept),)
