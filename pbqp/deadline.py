"""The one clock of everything that has to be done in time: no other module reads the time."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Deadline:
    """A span of time: when something began, and by when it should end, both of `time.monotonic`."""

    end: float
    start: float = field(default_factory=time.monotonic)

    @staticmethod
    def after(seconds: float) -> Deadline:
        """From now on, for so many seconds."""
        now = time.monotonic()
        return Deadline(now + seconds, now)

    @staticmethod
    def never() -> Deadline:
        """From now on, without an end: a stopwatch."""
        return Deadline.after(math.inf)

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.start

    @property
    def overdue(self) -> float:
        """Seconds since the end; negative before it."""
        return time.monotonic() - self.end

    @property
    def passed(self) -> bool:
        """Whether no time is left."""
        return time.monotonic() >= self.end

    def left(self, least: float = 0.0) -> float:
        """Seconds left, never below `least`."""
        return max(self.end - time.monotonic(), least)

    def within(self, seconds: float) -> Deadline:
        """The same start, and an end after so many seconds from now where that is sooner."""
        return Deadline(min(self.end, time.monotonic() + seconds), self.start)

    def share(self, part: float) -> Deadline:
        """The same start, and an end after this part of the whole span."""
        return Deadline(self.start + part * (self.end - self.start), self.start)
