"""What the walks over scheduled programs of TPUs and GPUs share: a clock per computation, loops, calls, the estimate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from planner.errors import ArgumentError
from planner.verify.hlo.collectives import CompiledCollective, describe_collectives
from planner.verify.hlo.loops import trip_count_of
from planner.verify.hlo.text import Computation, Instruction, Module, kind_of, parse_module

FREE = frozenset(
    {
        "add-dependency",
        "after-all",
        "async-update",
        "bitcast",
        "constant",
        "custom-call-update",
        "domain",
        "get-tuple-element",
        "iota",
        "opt-barrier",
        "parameter",
        "partition-id",
        "replica-id",
        "tuple",
    }
)
"""Opcodes of instructions that take no time."""
WRAPPERS = ("fusion", "async-start", "call-start")
"""Opcodes of instructions that may be made for one collective."""
_CALLS = ("call", "conditional", "async-start", "call-start")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleEstimate:
    """Seconds of one call on one device.

    `seconds` = `compute_seconds` + `exposed_collective_seconds`; `collective_seconds` counts hidden ones too.
    `from_cycles` is the share of the compute time taken from the compiler's own figures; `unknown_loops` the number of
    loops whose trip count could not be read and was taken as 1.
    """

    seconds: float
    compute_seconds: float
    exposed_collective_seconds: float
    collective_seconds: float
    from_cycles: float
    unknown_loops: int


@dataclass(slots=True)
class Totals:
    """Seconds of a computation: of all, of collectives that are exposed, of all collectives, of what the compiler noted.

    `memory` are those in which the memory is busy, on a TPU.
    """

    clock: float = 0.0
    exposed: float = 0.0
    collective: float = 0.0
    noted: float = 0.0
    memory: float = 0.0

    def add(self, other: Totals, times: float = 1.0) -> None:
        """Adds so many runs of another computation."""
        self.clock += times * other.clock
        self.exposed += times * other.exposed
        self.collective += times * other.collective
        self.noted += times * other.noted
        self.memory += times * other.memory


class ScheduleWalk(ABC, Generic[R]):
    """One walk over a scheduled module of so many partitions, on a chip of these rates; `price`: seconds of a collective.

    Raises: ArgumentError when the text is not scheduled, for its order then says nothing about time.
    """

    def __init__(
        self, scheduled_hlo_text: str, num_devices: int, rates: R, price: Callable[[CompiledCollective], float]
    ) -> None:
        if "is_scheduled=true" not in scheduled_hlo_text[:4096]:
            raise ArgumentError(
                f"HLO text without is_scheduled=true, got {scheduled_hlo_text[:60]!r}; pass that of a finished compile "
                "or that dumped after buffer assignment"
            )
        self.module: Module = parse_module(scheduled_hlo_text)
        self.num_devices, self.rates, self.price = num_devices, rates, price
        self.unknown_loops = 0

    @abstractmethod
    def walk(self, computation: Computation) -> Totals:
        """The totals of one run of a computation."""

    def estimate(self) -> ScheduleEstimate:
        """The estimate of the whole program."""
        total = self.walk(self.module.computations[self.module.entry])
        compute = total.clock - total.exposed
        return ScheduleEstimate(
            seconds=total.clock,
            compute_seconds=compute,
            exposed_collective_seconds=total.exposed,
            collective_seconds=total.collective,
            from_cycles=total.noted / compute if total.noted else 0.0,
            unknown_loops=self.unknown_loops,
        )

    def first_collective(self, computation: Computation) -> CompiledCollective | None:
        """The first collective of a computation, looking into what it calls."""
        for instruction in computation.instructions:
            if kind_of(instruction):
                return describe_collectives(instruction, computation, self.module, self.num_devices)
            if instruction.opcode in ("call", *WRAPPERS) and (found := self.wrapped(instruction)) is not None:
                return found
        return None

    def wrapped(self, instruction: Instruction) -> CompiledCollective | None:
        """The first collective of the computations that an instruction calls."""
        inside = (self.first_collective(self.module.computations[name]) for name in instruction.called)
        return next((found for found in inside if found is not None), None)

    def called(self, instruction: Instruction, computation: Computation) -> Totals | None:
        """What a loop, a call or the longest of several branches takes; None for other instructions."""
        if instruction.opcode in _CALLS:
            branches = [self.walk(self.module.computations[name]) for name in instruction.called]
            return max(branches, key=lambda totals: totals.clock, default=Totals())
        if instruction.opcode != "while":
            return None
        trips = trip_count_of(instruction, computation, self.module)
        self.unknown_loops += trips is None
        totals = Totals()
        totals.add(
            self.walk(self.module.computations[instruction.attribute("body") or ""]), 1 if trips is None else trips
        )
        return totals


def start_of(done: Instruction, computation: Computation) -> str:
    """The name of the start that a done belongs to."""
    source = computation.by_name.get(done.operands[0])
    while source is not None and source.opcode.endswith("-update"):
        source = computation.by_name.get(source.operands[0])
    return source.name if source is not None else ""
