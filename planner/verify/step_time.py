"""Seconds of a compiled program's schedule on a topology: what a plan's predicted seconds are held against.

Nothing runs: the schedule is the compiler's, the rates are those of the table of chips, and collectives take what the
analytic cost model says of the wires under their mesh axes. Matrix products of a GPU take what its compiler has measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from cost_models import Topology
from planner.errors import ArgumentError
from planner.verify.aot import AotReport
from planner.verify.collective_prices import collective_prices
from planner.verify.hlo.gpu_schedule import estimate_gpu_seconds
from planner.verify.hlo.schedule import Rates, estimate_seconds
from planner.verify.hlo.schedule_walk import ScheduleEstimate


def step_time(
    scheduled_hlo_text: str, topology: Topology, mesh_shape: Mapping[str, int], *, clock_hz: float | None = None
) -> ScheduleEstimate:
    """The estimate of one call on one device, from the scheduled HLO of a program over a mesh on the topology.

    With `clock_hz` an op takes the compiler's own cycles where a TPU's text has them, else what the data sheet says.
    A collective whose groups are those of no set of axes is priced as a ring over the slowest wire.
    Raises: ArgumentError when the text is not scheduled.
    """
    chip = topology.chip
    prices, num_devices = collective_prices(topology, mesh_shape), math.prod(mesh_shape.values())
    if chip.platform == "gpu":
        return estimate_gpu_seconds(
            scheduled_hlo_text, num_devices=num_devices, chip=chip, collective_seconds=prices.compiled
        )
    return estimate_seconds(
        scheduled_hlo_text,
        num_devices=num_devices,
        rates=Rates(
            flops_per_s=chip.peak("bfloat16", "matrix") * chip.efficiency("bfloat16") / topology.slowdown,
            hbm_bytes_per_s=chip.memory_bytes_per_s / topology.slowdown,
            clock_hz=clock_hz,
            kernel_seconds=chip.kernel_latency_s,
            lanes=chip.matrix_lanes if chip.platform == "tpu" else 1,
            attention_efficiency=chip.attention_efficiency,
            host_bytes_per_s=chip.host_link_bytes_per_s,
        ),
        collective_seconds=prices.compiled,
    )


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
