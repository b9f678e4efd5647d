"""The one clock of everything that has to be done in time."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deadline:
    """A time of `time.monotonic` by which something should be done."""

    end: float

    @staticmethod
    def after(seconds: float) -> Deadline:
        """So many seconds from now."""
        return Deadline(time.monotonic() + seconds)

    def left(self, least: float = 0.0) -> float:
        """Seconds left, never below `least`."""
        return max(self.end - time.monotonic(), least)

    @property
    def passed(self) -> bool:
        """Whether no time is left."""
        return time.monotonic() >= self.end

    def within(self, seconds: float) -> Deadline:
        """This, or so many seconds from now where that is sooner."""
        return Deadline(min(self.end, time.monotonic() + seconds))
