"""Variants: other ways to emit what was decided, which only a compiler can tell from the first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from planner.compiler.emission.options import NO_SPACE_TO_BATCH, REMEDIES, other_options, plan_options
from planner.decision import Decision


def variants(decision: Decision) -> tuple[Decision, ...]:
    """The decisions that place the same program the same way and are emitted or compiled otherwise, `decision` left out.

    On TPU: windowed einsum left to the compiler, which costs up to half of a step or gains a few per cent, the space of
    convolutions of few images left to it to cut, and on v5p collectives by its SparseCores. What is predicted of a variant
    is what is predicted of `decision`.
    """
    topology, offloads = decision.request.topology, decision.form.uses_hosts
    convolves = NO_SPACE_TO_BATCH.items() <= decision.compiler_options.items()
    if decision.compiler_options != plan_options(topology, offloads=offloads, convolves=convolves):
        return ()
    others = other_options(topology, offloads=offloads, convolves=convolves)
    return tuple(replace(decision, compiler_options=dict(options)) for options in others)


def remedied(decision: Decision, error: str) -> Decision:
    """The decision with the compiler options of an entry of `REMEDIES`, which its notes tell."""
    return replace(
        decision,
        compiler_options={**decision.compiler_options, **REMEDIES[error].options},
        notes=tuple(dict.fromkeys((*decision.notes, f"compiled {remedy_text(error)}"))),
    )


def remedy_text(error: str) -> str:
    """What a compile took besides its own options, and why."""
    return f'with {options_text(REMEDIES[error].options)}: without, the compiler ends with "{error}"'


def options_text(options: Mapping[str, str]) -> str:
    """Compiler options as they are told."""
    return ", ".join(f"{name}={value}" for name, value in options.items())
