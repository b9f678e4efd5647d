"""Seconds of what a compiler made of a program: the judge of its platform, on the schedule of a report."""

from __future__ import annotations

from collections.abc import Mapping

from cost_models import Topology
from planner.errors import ArgumentError
from planner.verify.aot import AotReport
from planner.verify.hlo.schedule_walk import ScheduleEstimate
from planner.verify.step_time import step_time

JUDGED = ("tpu", "gpu")
"""The platforms whose compilers' schedules can be read."""


def why_not_judged(topology: Topology) -> str:
    """Why no schedule of a topology's compiler can be read, or ""."""
    platform = topology.chip.platform
    if platform == "tpu" and topology.nodes > 1:
        return "what passes between slices is left to their hosts, and is not in the compiler's schedule"
    return "" if platform in JUDGED else f"the schedules of compilers for {platform} say nothing of time"


def schedule_of(hlo: str, topology: Topology, mesh_shape: Mapping[str, int], platform: str) -> ScheduleEstimate | None:
    """The seconds of a program compiled for a platform, by its schedule; None where that cannot be read."""
    if platform != topology.chip.platform or why_not_judged(topology):
        return None
    try:
        return step_time(hlo, topology, mesh_shape)
    except ArgumentError:
        return None


def scheduled_seconds(report: AotReport, topology: Topology, mesh_shape: Mapping[str, int]) -> ScheduleEstimate:
    """The seconds of one call on one device, by the schedule of a finished compile for a mesh on a topology.

    Raises: ArgumentError where the report has no schedule, or that of a platform of `why_not_judged`.
    """
    why = why_not_judged(topology)
    if why:
        raise ArgumentError(f"topology {topology.name}: {why}; compile for one of {', '.join(JUDGED)}")
    return step_time(report.hlo, topology, mesh_shape)
