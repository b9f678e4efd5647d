"""A clock that asks a compiler: how long a microbenchmark takes by the schedule of a topology whose devices are not here.

Every benchmark is compiled to the end, so that the schedule has the compiler's own cycles; collectives take what the
analytic model says of the wires under them, for what they were compiled to: one kind may have become another.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from cost_models import Profile, Topology
from cost_models.calibrate import ON_ACCELERATORS, Body, Sizes, fitted, looped
from planner.compiler.targets.table import CLOCK_HZ
from planner.errors import ArgumentError, CompileError
from planner.verify.aot import AotReport, lower_request
from planner.verify.kept_reports import KeptReports, releases
from planner.verify.step_time import step_time


@final
@dataclass(frozen=True, kw_only=True)
class CompilerClock:
    """Compiles loops for a TPU topology; what is `kept` is not compiled again."""

    topology: Topology
    kept: KeptReports = field(default_factory=KeptReports)

    @property
    def count(self) -> int:
        """The number of devices."""
        return self.topology.num_devices

    def seconds(self, body: Body, shape: tuple[int, ...], dtype: str, *, group: int, repeats: int) -> float:
        """The seconds of one run; see `cost_models.calibrate.Clock`. Raises: CompileError where it does not compile."""
        sizes, names = (self.count // group, group), ("outer", "group")
        mesh, spec = AbstractMesh(sizes, names, axis_types=(AxisType.Auto,) * 2), PartitionSpec(names)
        whole = jax.ShapeDtypeStruct((self.count * shape[0], *shape[1:]), dtype, sharding=NamedSharding(mesh, spec))
        mesh_shape = dict(zip(names, sizes, strict=True))
        request = lower_request(
            looped(body, repeats, mesh, spec),
            (whole,),
            mesh_shape=mesh_shape,
            topology=self.topology.name,
            mode="full",
        )
        return self._scheduled(self.kept.compiled(request), mesh_shape) / repeats

    def _scheduled(self, report: AotReport, mesh_shape: dict[str, int]) -> float:
        if not report.ok:
            raise CompileError(
                f"a microbenchmark for {self.topology.name} did not compile ({report.status}: {report.message[:200]}); "
                "calibrate for another topology"
            )
        clock_hz = CLOCK_HZ[self.topology.chip.name]
        found = step_time(report.hlo, self.topology, mesh_shape, clock_hz=clock_hz)
        if not math.isfinite(found.seconds) or found.seconds <= 0:
            raise CompileError(f"the schedule of a microbenchmark for {self.topology.name} takes {found.seconds} s")
        return found.seconds


def compiler_profile(
    topology: Topology,
    *,
    sizes: Sizes = ON_ACCELERATORS,
    kept: KeptReports | None = None,
    progress: Callable[[str], None] | None = None,
) -> Profile:
    """The profile of a TPU topology by its compiler's schedules, with no device.

    It has the form of a measured one, and `Options(cost_model="measured", profile=...)` prices with it.
    Raises: ArgumentError for a topology of other than TPUs, or of several slices; CompileError.
    """
    if topology.chip.name not in CLOCK_HZ or topology.nodes > 1:
        raise ArgumentError(
            f"topology {topology.name}: only schedules of TPU slices tell cycles; give one of {', '.join(CLOCK_HZ)}, "
            "such as 'v5e:4x4'"
        )
    return fitted(
        CompilerClock(topology=topology, kept=kept or KeptReports()),
        sizes,
        machine=f"schedules of {', '.join(releases())}, no device",
        platform=topology.chip.platform,
        device_kind=topology.chip.name,
        topology=topology.name,
        progress=progress,
    )
