"""The measured cost model: the figures of a profile of this machine instead of a data sheet."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import final

import numpy as np

from cost_models.errors import CostModelError
from cost_models.hardware import Engine
from cost_models.network import collectives
from cost_models.network.links import Link
from cost_models.profile import Fit, Profile
from cost_models.protocol import Floats
from cost_models.roofline import Roofline
from cost_models.topology import Topology, parse_topology


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Seconds from a profile: a latency per op, then the roofline of the measured rates; collectives by interpolation.

    A dtype that was not measured takes the float32 rate times the ratio of the chip's data-sheet peaks. A group size
    between two measured ones is interpolated in log2 of the size. Where the group's links differ from those that were
    measured, the seconds per byte change as the analytic model says. A larger group than any measured is extrapolated, or
    takes what the largest took, changed as the analytic model says, if the profile names the topology that was measured.
    """

    profile: Profile
    topology: Topology
    name: str = "measured"

    def __post_init__(self) -> None:
        if self.profile.platform != self.topology.chip.platform:
            raise CostModelError(
                f"the profile is of {self.profile.platform} devices, the topology {self.topology.name!r} of"
                f" {self.topology.chip.platform}; give the topology of the machine that was measured"
            )

    def compute_seconds(
        self, *, kind: str, engine: Engine, dtype: str, flops: Floats, bytes: Floats, pieces: Floats | float = 1.0
    ) -> Floats:
        """The seconds of one op on one device, for each of several strategies; see `CostModel`."""
        passes = self.profile.elementwise
        fit = self._matmul(dtype) if engine == "matrix" else self.profile.vector
        latency_s = fit.latency_s if engine == "matrix" else passes.latency_s
        return latency_s + np.maximum(flops * fit.seconds_per_unit, bytes * passes.seconds_per_unit)

    def collective_affine(self, kind: str, links: tuple[Link, ...]) -> tuple[float, float]:
        """The latency in seconds and the seconds per byte of a collective; see `CostModel`."""
        collectives.check_kind(kind)
        size = math.prod(link.size for link in links)
        if size == 1:
            return 0.0, 0.0
        reached = min(size, self.profile.num_devices) if self.profile.topology else size
        latency_s, seconds_per_byte = _interpolated(self.profile, kind, reached)
        reference = self._measured_links(reached)
        if reference is not None:
            now = Roofline(topology=self.topology).collective_affine(kind, links)
            then = Roofline(topology=self._measured).collective_affine(kind, reference)
            latency_s *= now[0] / then[0] if reached < size else 1.0
            seconds_per_byte *= now[1] / then[1]
        return latency_s, seconds_per_byte

    def _matmul(self, dtype: str) -> Fit:
        fits = {row.dtype: row.fit for row in self.profile.matmuls}
        if dtype in fits:
            return fits[dtype]
        if "float32" not in fits:
            raise CostModelError(
                f"the profile has matmuls of {', '.join(fits) or 'no dtype'}, not of {dtype} or float32; run"
                " `python -m planner calibrate` again"
            )
        chip, base = self.topology.chip, fits["float32"]
        ratio = chip.peak("float32") / chip.peak(dtype)
        return Fit(latency_s=base.latency_s, seconds_per_unit=base.seconds_per_unit * ratio, residual=base.residual)

    def _measured_links(self, size: int) -> tuple[Link, ...] | None:
        """The links of the groups that calibration used: the last axis of a mesh (devices / size, size)."""
        devices = self._measured.num_devices
        if devices % size:
            return None
        links = self._measured.links((devices // size, size))
        return None if links is None else links[1:]

    @property
    def _measured(self) -> Topology:
        """The topology that was measured; this one, where the profile names none."""
        return parse_topology(self.profile.topology) if self.profile.topology else self.topology


@functools.lru_cache(maxsize=65536)
def _interpolated(profile: Profile, kind: str, size: int) -> tuple[float, float]:
    """Latency and seconds per byte at a group size, a broken line in log2 of the size; at least the nearest figure."""
    rows = sorted((row for row in profile.collectives if row.kind == kind), key=lambda row: row.group_size)
    if not rows:
        raise CostModelError(f"the profile has no {kind}; run `python -m planner calibrate` with two or more devices")
    sizes = [math.log2(row.group_size) for row in rows]
    at = math.log2(size)
    values: list[float] = []
    for figures in ([row.fit.latency_s for row in rows], [row.fit.seconds_per_unit for row in rows]):
        value = float(np.interp(at, sizes, figures))
        if at > sizes[-1] and len(rows) > 1:
            slope = (figures[-1] - figures[-2]) / (sizes[-1] - sizes[-2])
            value += max(slope, 0.0) * (at - sizes[-1])
        values.append(value)
    return values[0], values[1]
