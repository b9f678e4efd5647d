"""The analytic cost model: the roofline of the chip and the algorithms of the collectives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from cost_models.hardware import Engine
from cost_models.network import collectives, gpu_collectives
from cost_models.network.links import Link
from cost_models.protocol import Floats
from cost_models.topology import Topology


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """Seconds from a table of chips: max(flops / rate, bytes / bandwidth) per op (Williams, Waterman & Patterson 2009,
    https://doi.org/10.1145/1498765.1498785).

    The matrix unit's rate is the chip's peak for the dtype times its `matrix_efficiency`, after its `matrix_latency_s` for
    each of the largest products that were measured (`pieces`). What a TPU's tiles leave unfilled is counted as work.
    """

    topology: Topology
    name: str = "roofline"

    def compute_seconds(
        self, *, kind: str, engine: Engine, dtype: str, flops: Floats, bytes: Floats, pieces: Floats | float = 1.0
    ) -> Floats:
        """The seconds of one op on one device, for each of several strategies; see `CostModel`."""
        chip = self.topology.chip
        busy = flops / chip.peak(dtype, engine)
        if engine == "matrix":
            busy = pieces * chip.matrix_latency_s + busy / chip.efficiency(dtype)
        return self.topology.slowdown * np.maximum(busy, bytes / chip.memory_bytes_per_s)

    def collective_affine(self, kind: str, links: tuple[Link, ...]) -> tuple[float, float]:
        """The latency in seconds and the seconds per byte of a collective; see `CostModel`."""
        chip = self.topology.chip
        if gpu_collectives.is_measured(chip, links):
            return gpu_collectives.affine(chip.name, chip.hbm_bytes_per_s, kind, links)
        latency_s, per_byte = collectives.affine(kind, links, scatters_use_all_dims=chip.scatters_use_all_dims)
        return latency_s, per_byte / (chip.all_reduce_efficiency if kind == "all-reduce" else 1.0)
