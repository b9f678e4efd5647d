"""Options of a planning run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from planner.errors import ArgumentError

Check = Literal["auto", "always", "never"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to plan.

    `time_limit_s`: seconds for the whole search; what was found by then is returned with its bound.
    `check`: "auto" compiles the plan where its devices are present, and runs it beside the single device where the
    arguments are concrete and that is affordable; "always" insists on both; "never" trusts the prediction.
    `cost_model`: "analytic" (roofline and collective algorithms) or "measured" (a profile of these devices).
    `profile`: the profile's file for "measured"; default where `python -m planner calibrate` writes it.
    `seed`: of everything random in the solver and in verification.
    `max_axes`: most mesh axes searched. `while_trips`: trip count assumed for loops without a static one.
    `affordable_flops`: "auto" runs the numeric check up to this many operations of one device.
    `progress`: called with a `search.Progress` after every mesh.
    """

    time_limit_s: float = 120.0
    check: Check = "auto"
    cost_model: Literal["analytic", "measured"] = "analytic"
    profile: str | None = None
    seed: int = 0
    max_axes: int = 3
    while_trips: float = 1.0
    affordable_flops: float = 2e11
    progress: object = None

    def __post_init__(self) -> None:
        if self.check not in ("auto", "always", "never"):
            raise ArgumentError(f"Options(check={self.check!r}) is unknown; use 'auto', 'always' or 'never'")
        if self.cost_model not in ("analytic", "measured"):
            raise ArgumentError(f"Options(cost_model={self.cost_model!r}) is unknown; use 'analytic' or 'measured'")
        if not self.time_limit_s > 0:
            raise ArgumentError(f"Options(time_limit_s={self.time_limit_s!r}) must be positive seconds")
        if self.max_axes not in (1, 2, 3):
            raise ArgumentError(f"Options(max_axes={self.max_axes!r}) must be 1, 2 or 3")
        if not self.while_trips > 0:
            raise ArgumentError(f"Options(while_trips={self.while_trips!r}) must be a positive trip count")
        if self.progress is not None and not callable(self.progress):
            raise ArgumentError(f"Options(progress={self.progress!r}) must be a function of one argument, or None")
