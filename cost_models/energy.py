"""The energy objective: joules per device, from flops, memory traffic, wire traffic and the time the chip is on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from cost_models.hardware import Chip
from cost_models.network import collectives
from cost_models.network.links import Link
from cost_models.protocol import Floats


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyObjective:
    """Joules: static power times seconds, plus the chip's joules per flop, per byte of memory and per byte of wire.

    The linear form of Choi et al. 2013, https://doi.org/10.1109/IPDPS.2013.77. Waiting costs static power, so a faster
    plan is often, but not always, the one of least energy.
    """

    chip: Chip
    name: str = "energy"
    unit: str = "joules"

    def compute(self, *, seconds: Floats, flops: Floats, bytes: Floats) -> Floats:
        """The joules of one op on one device, for each of several strategies."""
        chip = self.chip
        return seconds * chip.static_watts + flops * chip.joules_per_flop + bytes * chip.joules_per_hbm_byte

    def collective(self, kind: str, links: tuple[Link, ...], affine: tuple[float, float]) -> tuple[float, float]:
        """The joules of a collective that takes `affine` seconds: a constant, and joules per byte.

        Every byte that is sent is also read from and written to memory.
        """
        latency_s, seconds_per_byte = affine
        sent = collectives.traffic(kind, links)
        chip = self.chip
        moved = sent * (chip.joules_per_link_byte + 2 * chip.joules_per_hbm_byte)
        return latency_s * chip.static_watts, seconds_per_byte * chip.static_watts + moved
