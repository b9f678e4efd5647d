"""What became of a plan that was proposed: what decides whether it is handed over or the next best is tried."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from planner.decision import Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to a proposal. Nothing set: the plan is handed over.

    `dropped`: why it must not be; of one that does not fit, `memory_share` is the part of the memory limit that may be
    promised so that as much as the compiler needed fits. `doubt`: why a plan that is predicted to be slower may be faster.
    `seconds` are those of the compiler's schedule, where it is known.
    """

    dropped: str | None = None
    memory_share: float | None = None
    doubt: str | None = None
    seconds: float | None = None

    @property
    def good(self) -> bool:
        """Whether the plan is handed over as it is."""
        return self.dropped is None and self.doubt is None


def again(first: Decision, rest: Generator[Decision, Answer]) -> Generator[Decision, Answer]:
    """Proposals from the first on, which was taken."""
    following = first
    while True:
        following = rest.send((yield following))
