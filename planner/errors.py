"""Every error a user of the planner can meet; each message says what was wrong, the value got and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pbqp.errors import SolverError as SolverError
from planner.former_names import former_attributes


class PlannerError(Exception):
    """Base of all errors raised on purpose by the planner."""


class ArgumentError(PlannerError):
    """An argument of the public API, or of the planned function, is not what it must be."""


class NothingSharedError(ArgumentError):
    """A plan that another one is to follow has none of its arrays."""


class PinError(PlannerError):
    """A pin names nothing, names an unknown axis, or cannot split the tensor it names."""


class MeshError(PlannerError):
    """A mesh or topology does not exist, or does not match the devices."""


class TraceError(PlannerError):
    """The function could not be traced to a jaxpr."""


class RuleError(PlannerError):
    """A sharding rule is malformed or does not fit the op it is given for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a user could do so that a plan fits, or comes nearer to it, in words that follow "you could".

    In bytes per device, where they are known: what a plan needs then, or what this saves at most.
    """

    text: str
    needs_bytes: float | None = None
    saves_bytes: float | None = None

    if not TYPE_CHECKING:
        __getattr__ = former_attributes({"words": "text"})


class InfeasibleError(PlannerError):
    """No plan fits the memory limit or the pins; says what conflicts and the least memory that would do.

    `least_bytes` is that memory per device, None where it is not memory that conflicts or it was not found in time.
    `conflict` are the points of the schedule that cannot all be within the limit, in the user's names; none of them can
    be left out. It is empty where the conflict was not found in time. `offers` are what could be done, also told in the
    message.
    """

    def __init__(
        self,
        message: str,
        *,
        least_bytes: float | None = None,
        conflict: tuple[str, ...] = (),
        offers: tuple[Offer, ...] = (),
    ) -> None:
        super().__init__(message)
        self.least_bytes = least_bytes
        self.conflict = conflict
        self.offers = offers

    def with_sentence(self, sentence: str) -> InfeasibleError:
        """The same error with one more sentence."""
        return InfeasibleError(
            f"{self}. {sentence}", least_bytes=self.least_bytes, conflict=self.conflict, offers=self.offers
        )


class PlanFileError(PlannerError):
    """A saved plan is unreadable, of a foreign format, or of another function."""


class CompileError(PlannerError):
    """The compiler rejected or died of every plan that was tried."""


class ProcessError(PlannerError):
    """The processes that own the devices of a plan ask for different things, or one of them failed or did not come."""
