"""How many processes this machine has room for: its cores and its memory, as far as this process may use them."""

from __future__ import annotations

import math
import os
from pathlib import Path

GROUP = Path("/sys/fs/cgroup")
"""Where Linux says what the control group of a process may use, as in a container."""
ROOM = 0.5
"""Part of the memory left that workers may take, each as much as the process had when they were forked."""


def usable_cores() -> int:
    """The cores that this process may use: those it may run on, or fewer where its control group gets less time."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = (GROUP / "cpu.max").read_text().split()
        return cores if quota == "max" else max(1, min(cores, round(int(quota) / int(period))))
    except (OSError, ValueError):
        return cores


def copies_that_fit(most: int) -> int:
    """How many copies of this process memory has room for, of `most`; all where the machine does not say what is left."""
    try:
        left = bytes_left()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, StopIteration):
        return most
    return max(1, min(most, int(ROOM * left / (pages * os.sysconf("SC_PAGE_SIZE")))))


def memory_of_host() -> float | None:
    """The bytes of memory of this machine, or of the control group of this process; None where it does not say."""
    try:
        total = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        return min(total, _limit_of_group())
    except (AttributeError, OSError, ValueError):
        return None


def bytes_left() -> float:
    """The bytes of memory that this process and its children can still take. Raises: OSError where that is not said."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    left = 1024.0 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    limit, used = _limit_of_group(), GROUP / "memory.current"
    if math.isfinite(limit) and used.exists():
        left = min(left, limit - float(used.read_text()))
    return left


def _limit_of_group() -> float:
    """The most bytes that the control group of this process may take; inf without a limit."""
    limit = GROUP / "memory.max"
    text = limit.read_text().strip() if limit.exists() else "max"
    return math.inf if text == "max" else float(text)
