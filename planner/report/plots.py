"""Charts of a report on axes of matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from planner.report.program_report import Line, MemoryOverTime
from planner.units import quantity

MOST_LINES = 12
NEAR = 2.2
"""The limit is drawn where it is at most so many times the peak; else the chart would be all above it."""


def plot_memory(memory: MemoryOverTime, limit: float, title: str, ax: Any) -> Any:
    """The axes with the bytes per device over the schedule of a step, their peak and their limit."""
    steps, sizes = zip(*memory.points, strict=True)
    ax.fill_between(steps, sizes, alpha=0.35)
    ax.plot(steps, sizes, label="alive on a device")
    peak = f"peak {quantity(memory.peak_bytes, 'B')} at {memory.where}"
    ax.plot([memory.peak_step], [memory.peak_bytes], "o", label=peak)
    if limit <= NEAR * memory.peak_bytes:
        ax.axhline(limit, linestyle="--", color="tab:red", label=f"limit {quantity(limit, 'B')}")
    ax.set(xlabel="points of the schedule", ylabel="bytes per device", title=title, ylim=(0, None))
    ax.legend()
    return ax


def plot_time(lines: Sequence[Line], title: str, ax: Any) -> Any:
    """The axes with the seconds of a call by source line, the longest on top: computing and communicating."""
    shown = list(lines[:MOST_LINES])
    rest = lines[MOST_LINES:]
    if rest:
        others = Line(
            source=f"{len(rest)} lines more",
            compute_seconds=sum(line.compute_seconds for line in rest),
            communication_seconds=sum(line.communication_seconds for line in rest),
        )
        shown.append(others)
    names = [line.source for line in shown]
    computing = [line.compute_seconds for line in shown]
    ax.barh(names, computing, label="computing")
    ax.barh(names, [line.communication_seconds for line in shown], left=computing, label="communicating")
    ax.invert_yaxis()
    ax.set(xlabel="seconds per call", title=title)
    ax.legend()
    return ax
