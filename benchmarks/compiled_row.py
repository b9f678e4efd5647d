"""The row of a compile in a benchmark's results: fit, seconds of the compiler's schedule, peak, collectives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cost_models import Topology
from planner.verify.aot import AotReport
from planner.verify.step_time import step_time

Row = dict[str, Any]
UNKNOWN_AXES = ("?",)
"""Where a collective's groups are those of no axes of the mesh."""


def by_kind(collectives: Iterable[tuple[str, Sequence[str], float]]) -> dict[str, float]:
    """Bytes by "kind axes", of kinds, axes and bytes."""
    found: dict[str, float] = {}
    for kind, axes, moved in collectives:
        key = f"{kind} {','.join(axes)}"
        found[key] = found.get(key, 0.0) + moved
    return found


def compiled_row(report: AotReport, topology: Topology, mesh: Mapping[str, int]) -> Row:
    """What a compiler reports, per device. Of what does not compile, its message and the bytes that it needs, if known.

    A program whose peak is more than the memory of a chip has the status "oom", whatever its compiler says.
    """
    row: Row = {"status": report.status, "compile_seconds": round(report.seconds, 1)}
    if report.memory is None:
        return row | {"message": report.message[:300], "peak_bytes": report.needed_bytes}
    if report.memory.peak_bytes > topology.chip.hbm_bytes:
        row["status"] = "oom"
    estimate = step_time(report.hlo, topology, mesh)
    moved = ((c.kind, c.axes(mesh) or UNKNOWN_AXES, c.bytes * (c.trip_count or 1)) for c in report.collectives)
    return row | {
        "seconds": estimate.seconds,
        "compute_seconds": estimate.compute_seconds,
        "exposed_seconds": estimate.exposed_collective_seconds,
        "collective_seconds": estimate.collective_seconds,
        "unknown_loops": estimate.unknown_loops,
        "peak_bytes": report.memory.peak_bytes,
        "collectives": by_kind(moved),
    }
