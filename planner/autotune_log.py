"""What a plan has learnt from its compiler, or from runs: every plan tried, round by round, and the prices corrected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "oom", "error", "crash", "timeout", "unavailable"]
"""What became of a trial: "oom" where it does not fit, "error" where the compiler refused it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Collectives of one kind over the same axes: bytes per device and call, predicted and found."""

    kind: str
    axes: tuple[str, ...]
    predicted_bytes: float
    found_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One plan that was compiled, or run.

    `emission` says how it was emitted, `why` how it came to be tried, `compiler_options` with what it was compiled.
    `predicted_seconds` are those of the cost model, `expected_seconds` with the corrections known before the trial,
    `found_seconds` those of the compiler's schedule, or measured; None where there are none. The peaks are bytes per
    device; of a plan that does not fit, `found_peak_bytes` is what it would need, where that is known.
    """

    round: int
    mesh: Mapping[str, int]
    why: str
    emission: str
    compiler_options: Mapping[str, str]
    status: Status
    message: str
    predicted_seconds: float
    expected_seconds: float
    found_seconds: float | None
    predicted_peak_bytes: float
    found_peak_bytes: float | None
    collectives: tuple[Moved, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """By how much the cost model was off for this program: `factor` times what it says of `what` on a mesh.

    `what` is "computing", "memory" or a kind of collectives, these over `axes`.
    """

    mesh: Mapping[str, int]
    what: str
    axes: tuple[str, ...]
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Refined:
    """How a plan was chosen among those tried: `chosen` is the position of its trial, None where none served.

    `how` is "compile" or "measure"; `seconds` is what it all took, `ended` says why it went on no longer.
    """

    how: Literal["compile", "measure"]
    rounds: int
    trials: tuple[Trial, ...]
    corrections: tuple[Correction, ...]
    chosen: int | None
    seconds: float
    ended: str
