"""Collectives of GPUs: how long one takes over a set of mesh axes, as latency plus bytes times seconds per byte.

Within a node they are measured: `NODE` has, by kind and group size, the latency and the seconds per byte that fit what
XLA's developers measured with NCCL on nodes of eight (64 KiB to 1 GiB; half of the measurements are within 15 % of the
fit, nine of ten within 50 %, those of collective-permutes within a factor of 2). NCCL's transfers reach 60 to 80 % of the
links, and small groups less than large ones.

Between nodes a ring passes through every node by as many network ports as the group has GPUs there. With n GPUs, g of them
in each node, B the bytes of the collective (as in `collectives`) and p the rate of a port,

    all-gather, reduce-scatter   (n-1)/g  (rtt + B/n / p)    and what is read from and written to memory
    all-reduce                   twice that
    all-to-all                   rtt + B (1 - g/n) / p
    collective-permute           rtt + B / p

each after the launch. That is XLA's own model of H100 clusters.

Sources: openxla/xla, xla/service/gpu/model/default_collective_perf_table.txtpb (measurements; keys sm_90 and sm_100_B200,
as of jaxlib 0.10.2) and sol_gpu_cost_model.cc (ring).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from cost_models.hardware import CHIPS, Chip
from cost_models.network.collectives import check_kind
from cost_models.network.links import Link, merged


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """A ring between nodes: `efficiency`, the share of a port's rate that is reached; the others in seconds and bytes.

    `chunk_s` is taken for every `chunk_bytes` of a message, `passes` how often memory is read or written per byte.
    """

    efficiency: float
    launch_s: float
    round_trip_s: float
    chunk_s: float
    chunk_bytes: float
    passes: float


Fits = Mapping[str, Mapping[int, tuple[float, float]]]
"""By kind and group size: latency in seconds, seconds per byte."""

_H100: Fits = {
    "all-gather": {2: (15.3e-6, 2.145e-12), 4: (18.6e-6, 2.597e-12), 8: (27.8e-6, 2.727e-12)},
    "all-reduce": {2: (16.7e-6, 4.703e-12), 4: (29.6e-6, 5.494e-12), 8: (40.8e-6, 4.903e-12)},
    "reduce-scatter": {2: (19.2e-6, 2.850e-12), 4: (23.4e-6, 2.838e-12), 8: (28.4e-6, 2.834e-12)},
    "all-to-all": {2: (32.0e-6, 1.919e-12), 4: (35.5e-6, 2.490e-12), 8: (34.0e-6, 2.760e-12)},
    "collective-permute": {2: (21.0e-6, 6.624e-12), 4: (23.1e-6, 5.472e-12), 8: (25.7e-6, 7.443e-12)},
}
_B200: Fits = {
    "all-gather": {2: (25.1e-6, 1.257e-12), 4: (31.9e-6, 1.458e-12), 8: (35.9e-6, 1.492e-12)},
    "all-reduce": {2: (31.2e-6, 2.386e-12), 4: (36.1e-6, 2.965e-12), 8: (55.9e-6, 3.137e-12)},
    "reduce-scatter": {2: (28.9e-6, 1.225e-12), 4: (33.4e-6, 1.414e-12), 8: (38.1e-6, 1.496e-12)},
    "all-to-all": {2: (37.4e-6, 1.623e-12), 4: (38.5e-6, 1.632e-12), 8: (40.2e-6, 1.626e-12)},
    "collective-permute": {2: (27.6e-6, 4.976e-12), 4: (33.8e-6, 3.645e-12), 8: (33.9e-6, 5.851e-12)},
}
NODE: Mapping[str, tuple[str, Fits]] = MappingProxyType(
    {"a100": ("h100", _H100), "h100": ("h100", _H100), "h200": ("h100", _H100), "b200": ("b200", _B200)}
)
"""By chip: the chip that was measured, and its fits; per byte they are in proportion to the link of that chip."""

_H100_RING = Ring(
    efficiency=0.8 / 1.025,
    launch_s=45e-6,
    round_trip_s=31e-6,
    chunk_s=6e-6,
    chunk_bytes=4 * 2**20,
    passes=2.75,
)
RING: Mapping[str, Ring] = MappingProxyType(
    {
        "a100": _H100_RING,
        "h100": _H100_RING,
        "h200": _H100_RING,
        "b200": Ring(
            efficiency=1 / 1.025,
            launch_s=45e-6,
            round_trip_s=21e-6,
            chunk_s=2e-6,
            chunk_bytes=4 * 2**20,
            passes=2.75,
        ),
    }
)
"""By chip; the constants of XLA's model, but for the share of a port's rate that H100s and their like reach. XLA counts on
half of it (`nic_speed_gbps`); published train steps on 2 to 16 nodes of H100s take what 0.8 of it gives
(`benchmarks.published`), less 2.5 % for headers."""


def is_measured(chip: Chip, links: tuple[Link, ...]) -> bool:
    """Whether the collectives of a chip over these links are priced here: known GPUs behind switches."""
    wired = all(segment.kind in ("switch", "network") for link in links for segment in link.dims)
    return chip.platform == "gpu" and chip.name in NODE and wired


@functools.lru_cache(maxsize=65536)
def affine(chip_name: str, hbm_bytes_per_s: float, kind: str, links: tuple[Link, ...]) -> tuple[float, float]:
    """The latency in seconds and the seconds per byte of a collective; both 0 for a group of one device.

    Raises: CostModelError for an unknown kind.
    """
    check_kind(kind)
    segments = merged(links)
    inside = [s for s in segments if s.kind == "switch"]
    across = [s for s in segments if s.kind == "network"]
    gpus, nodes = (math.prod(s.extent for s in part) for part in (inside, across))
    if gpus * nodes == 1:
        return 0.0, 0.0
    if nodes == 1:
        return _within(chip_name, kind, gpus, min(s.bytes_per_s for s in inside))
    return _between(RING[chip_name], kind, nodes, gpus, min(s.bytes_per_s for s in across), hbm_bytes_per_s)


def _within(chip_name: str, kind: str, gpus: int, link_bytes_per_s: float) -> tuple[float, float]:
    """A collective in a node: a broken line in log2 of the group size."""
    measured, fits = NODE[chip_name]
    sizes = sorted(fits[kind])
    places = [math.log2(size) for size in sizes]
    latency, per_byte = (
        float(np.interp(math.log2(gpus), places, [fits[kind][size][i] for size in sizes])) for i in (0, 1)
    )
    return latency, per_byte * CHIPS[measured].link_bytes_per_s / link_bytes_per_s


def _between(
    ring: Ring, kind: str, nodes: int, gpus: int, port_bytes_per_s: float, hbm_bytes_per_s: float
) -> tuple[float, float]:
    """A collective over so many nodes, and so many GPUs in each."""
    size = nodes * gpus
    # A message takes whole chunks: half a chunk too much on the mean.
    step = ring.round_trip_s + ring.chunk_s / 2
    per_byte = 1 / (ring.efficiency * port_bytes_per_s) + ring.chunk_s / ring.chunk_bytes
    memory = ring.passes / hbm_bytes_per_s
    if kind == "all-to-all":
        return ring.launch_s + step, (1 - gpus / size) * per_byte + memory
    if kind == "collective-permute":
        return ring.launch_s + step, per_byte + memory
    steps = (size - 1) / gpus * (2 if kind == "all-reduce" else 1)
    return ring.launch_s + steps * step, steps / size * per_byte + memory
