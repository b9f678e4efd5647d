"""The analytic cost model: the roofline of the chip and the algorithms of the collectives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from cost_models import collectives
from cost_models.hardware import Engine
from cost_models.links import Link
from cost_models.protocol import Floats
from cost_models.topology import Topology


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """Seconds from data sheets alone: max(flops / rate, bytes / bandwidth) per op (Williams, Waterman & Patterson 2009,
    https://doi.org/10.1145/1498765.1498785).

    The matrix unit's rate is the chip's peak for the dtype times its `matrix_efficiency`: TPU compilers estimate their
    own large matmuls at 70-90 % of peak, and cuBLAS reaches 70-80 % of Hopper's data sheet under its power limit.
    """

    topology: Topology
    name: str = "roofline"

    def compute_seconds(self, *, kind: str, engine: Engine, dtype: str, flops: Floats, bytes: Floats) -> Floats:
        """The seconds of one op on one device, for each of several strategies; see `CostModel`."""
        chip = self.topology.chip
        rate = chip.peak(dtype, engine)
        if engine == "matrix":
            rate *= chip.matrix_efficiency
        return np.maximum(flops / rate, bytes / chip.hbm_bytes_per_s)

    def collective_affine(self, kind: str, links: tuple[Link, ...]) -> tuple[float, float]:
        """The latency in seconds and the seconds per byte of a collective; see `CostModel`."""
        return collectives.affine(kind, links)
