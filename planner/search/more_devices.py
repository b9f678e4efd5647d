"""More devices: on how many a plan would fit, where nothing fits those there are.

So many times as many devices are tried as powers of two, from the least on that could do: n devices need at least an n-th
of what one needs. How they are wired plays no part, as memory asks for the sizes of the axes only: each axis of the best
mesh so far is made longer in turn, the most even mesh first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress

from pbqp.options import SolveOptions
from planner.errors import InfeasibleError, MeshError, Offer, PinError
from planner.pricing.memory import MemoryModel, whole_bytes
from planner.search.least_memory import Aim, least_memory
from planner.search.problem_source import ProblemSource
from planner.units import quantity

MOST_TIMES = 64
"""So many times as many devices are thought of at most."""
MESHES = 2
"""Meshes tried for one number of devices."""


def more_devices(
    problem: ProblemSource, memory: MemoryModel, limit_bytes: float, solving: SolveOptions
) -> Offer | None:
    """The offer of the fewest devices, of powers of two times those there are, on which a plan was found to fit.

    `memory` is that of the best mesh there is. Where time ends before, or they are very many: of the fewest that could do.
    None where the program fixes its devices, or no number tried does.
    """
    if problem.program.effects.ordered or problem.program.parallelism is not None:
        return None
    instance = memory.instance
    shape, devices = instance.mesh.shape, instance.mesh.num_devices
    fewest = math.ceil(whole_bytes(instance.model) / limit_bytes)
    if fewest > MOST_TIMES * devices:
        return Offer(text=f"use at least {fewest} devices")
    for times in (1 << i for i in range(1, MOST_TIMES.bit_length())):
        if solving.deadline.passed:
            many = f"at least {fewest}" if fewest > devices else "more"
            return Offer(text=f"use {many} devices")
        if times * devices < fewest:
            continue
        found = _fitting(problem, shape, times, limit_bytes, solving)
        if found is not None:
            mesh, peak = found
            text = f"use {times * devices} devices: a plan on the mesh {dict(mesh)} needs {quantity(peak, 'B')} of each"
            return Offer(text=text, needs_bytes=peak)
    return None


def _fitting(
    problem: ProblemSource, shape: Mapping[str, int], times: int, limit_bytes: float, solving: SolveOptions
) -> tuple[Mapping[str, int], float] | None:
    """A mesh of so many times as many devices on which a plan fits, and its peak; None where none was found."""
    longer = [{**shape, axis: times * size} for axis, size in shape.items()]
    for mesh in sorted(longer, key=lambda mesh: max(mesh.values()))[:MESHES]:
        with suppress(InfeasibleError, MeshError, PinError):
            memory = MemoryModel(instance=problem.on_more_devices(times).instance(mesh))
            if memory.floor_bytes() <= limit_bytes:
                start = [int(sizes.argmin()) for sizes in memory.average_bytes()]
                aim = Aim(good_bytes=limit_bytes, enough_bytes=limit_bytes)
                peak = least_memory(memory, start, aim, solving).peak_bytes
                if peak <= limit_bytes:
                    return mesh, peak
    return None
