"""What the page of a plan shows, as plain records without any drawing."""

from __future__ import annotations

from dataclasses import dataclass

from planner.decision import Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What the ops and moves at one place take; seconds per call."""

    source: str
    compute_seconds: float
    communication_seconds: float

    @property
    def seconds(self) -> float:
        """Both."""
        return self.compute_seconds + self.communication_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """An array that is in memory at the fullest point, in bytes per device."""

    name: str
    bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOverStep:
    """Bytes per device over the schedule, as (op, bytes) points that keep every peak, and what makes the fullest."""

    points: tuple[tuple[int, float], ...]
    steps: int
    peak_step: int
    peak_bytes: float
    where: str
    held: tuple[Held, ...]
    held_more: int
    held_more_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """The collectives of one kind over the same axes: runs and bytes per device and call, seconds where prices are known.

    `links` says over which wires; `hidden` whether `seconds` leave out what the compiler hides behind computing.
    """

    kind: str
    axes: tuple[str, ...]
    devices: int
    links: str
    runs: float
    bytes: float
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Ops of one module or source line in one body: what they compute, and how the longest of them is split."""

    id: int
    region: str
    trips: float
    source: str
    ops: int
    kinds: tuple[str, ...]
    seconds: float
    flops: float
    strategy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """What travels from one stage to another, all its arrays together; `collective` are the kinds that take it there."""

    source: int
    target: int
    tensor: str
    arrays: int
    bytes: float
    moved_bytes: float
    seconds: float
    collective: str
    spec_from: str
    spec_to: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """The op graph with the ops of one place as one stage; `name` says what a place is."""

    name: str
    stages: tuple[Stage, ...]
    flows: tuple[Flow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Arrays of one type and spec, as one: the axes that split each dim, and what a device holds of all of them."""

    name: str
    type: str
    shape: tuple[int, ...]
    axes: tuple[tuple[str, ...], ...]
    bytes: float
    count: int
    also: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PageData:
    """All that the page of a plan shows.

    `lines` are by source line, `modules` by the modules that names tell, else by file. Without the program of a plan
    `lines` tell of communication alone, and `modules`, `memory` and `folds` are not there.
    """

    decision: Decision
    lines: tuple[Line, ...]
    modules: tuple[Line, ...]
    memory: MemoryOverStep | None
    moved: tuple[Moved, ...]
    folds: tuple[Folded, ...]
    arguments: tuple[Placed, ...]
    results: tuple[Placed, ...]
    has_program: bool
