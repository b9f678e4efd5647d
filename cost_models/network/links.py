"""Links: the physical wires under one mesh axis, and the bandwidth that ring algorithms get out of them."""

from __future__ import annotations

import dataclasses
import itertools
import math
from dataclasses import dataclass
from typing import Literal

LinkKind = Literal["torus", "switch", "full", "network"]
"""torus: neighbours are wired, along a line or a ring; switch: everyone reaches everyone at the full rate of a device's
port; full: a wire of its own between every two devices; network: a slower switch that joins nodes or slices, to which
`mapping` gives the leading axes of a mesh."""
SWITCHED: tuple[LinkKind, ...] = ("switch", "network")
"""Kinds by which everyone reaches everyone at the full rate of a port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The part of one physical dim that a mesh axis runs along.

    `extent`: devices along it; `wrap`: it closes to a ring; `bytes_per_s`: one direction of one wire (torus), a
    device's port (switch), or the wire between two devices (full), already divided by `stride` on a torus, since that
    many interleaved groups share the wires; `latency_s`: one hop between neighbours of the group; `dim` and `stride`:
    which physical dim, and the distance between neighbours on it; `dim_extent`: devices along the whole dim;
    `torus_dims`: the dims of the topology that are a torus.
    """

    extent: int
    wrap: bool
    bytes_per_s: float
    latency_s: float
    kind: LinkKind
    dim: int = 0
    stride: int = 1
    dim_extent: int = 0
    torus_dims: int = 1

    @property
    def ring_bytes_per_s(self) -> float:
        """The bytes per second into the worst placed device, all its wires of this segment used.

        A ring feeds a device from both sides, a line its last device from one only.
        """
        if self.kind == "full":
            return self.bytes_per_s * max(self.extent - 1, 1)
        return 2 * self.bytes_per_s if self.kind == "torus" and self.wrap else self.bytes_per_s

    @property
    def hops(self) -> int:
        """The steps until the farthest device is reached: half a ring, a whole line, or recursive doubling."""
        if self.kind == "full":
            return min(self.extent - 1, 1)
        if self.kind in SWITCHED:
            return math.ceil(math.log2(self.extent))
        return self.extent // 2 if self.wrap else self.extent - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What connects the devices along one mesh axis: its size and its physical segments, slowest first.

    A mesh axis of size 1 has no segments.
    """

    size: int
    dims: tuple[Segment, ...]

    @property
    def bytes_per_s(self) -> float:
        """The effective rate of an all-gather along this axis: bytes received per device and second."""
        per_byte = gather_seconds_per_byte(routed("all-gather", self.dims))
        return math.inf if per_byte == 0 else (self.size - 1) / self.size / per_byte

    @property
    def latency_s(self) -> float:
        """The latency of the slowest hop."""
        return max((segment.latency_s for segment in self.dims), default=0.0)

    @property
    def hops(self) -> int:
        """The steps until the farthest device of the axis is reached."""
        return sum(segment.hops for segment in self.dims)


def merged(links: tuple[Link, ...]) -> tuple[Segment, ...]:
    """The segments of a product group of mesh axes; parts of one physical dim that fit together become one part.

    Axes of 2 and 8 that share a ring of 16 are together that ring.
    """
    by_dim: dict[int, list[Segment]] = {}
    for link in links:
        for segment in link.dims:
            if segment.extent > 1:
                by_dim.setdefault(segment.dim, []).append(segment)
    result: list[Segment] = []
    for dim in sorted(by_dim):
        parts = sorted(by_dim[dim], key=lambda s: s.stride)
        current = parts[0]
        for part in parts[1:]:
            if part.stride == current.stride * current.extent:
                current = dataclasses.replace(current, extent=current.extent * part.extent, wrap=part.wrap)
            else:
                result.append(current)
                current = part
        result.append(current)
    return tuple(result)


def routed(kind: str, segments: tuple[Segment, ...], *, scatters_use_all_dims: bool = False) -> tuple[Segment, ...]:
    """The segments as the TPU compiler uses them: where it takes one ring for several torus dims, that ring.

    Read off the emitters that libtpu 0.0.42 names in compiled programs for v5e, v6e and v5p slices: an all-reduce uses
    all dims at once ("ND" strategies) where its group spans whole dims, an all-gather where it is a whole slice of three
    dims, a reduce-scatter over a whole slice where `scatters_use_all_dims` (`Chip`); every other group becomes one ring
    through all its devices. Groups that interleave along one dim let their rings turn at different places of the other.
    """
    torus = tuple(s for s in segments if s.kind == "torus" and s.extent > 1)
    if len(torus) < 2:
        return segments
    whole_dims = all(s.extent == s.dim_extent for s in torus)
    whole_slice = whole_dims and len(torus) == torus[0].torus_dims
    if {
        "all-reduce": whole_dims,
        "reduce-scatter": whole_slice and scatters_use_all_dims,
        "all-gather": whole_slice and len(torus) >= 3,
    }[kind]:
        return segments
    ring = Segment(
        extent=math.prod(s.extent for s in torus),
        wrap=True,
        bytes_per_s=min(s.bytes_per_s * s.stride for s in torus) / min(s.stride for s in torus),
        latency_s=max(s.latency_s for s in torus),
        kind="torus",
        dim=torus[0].dim,
    )
    return (ring, *(s for s in segments if s not in torus))


def gather_seconds_per_byte(segments: tuple[Segment, ...]) -> float:
    """The seconds per byte of result of an all-gather over a group with these segments.

    Of B bytes of result, a block of the group that spans the whole of all dims but the set U lacks B (1 - 1/n_U), and
    takes it in over the wires of U of all its n / n_U devices:

        T >= B (n_U - 1) / (n sum over U of ring_bytes_per_s),  for every set U of dims.

    The tightest of these cuts is what pipelined multi-dim ring algorithms attain: with one dim it is the ring's
    B (n - 1) / (n w) (Chan et al. 2007, https://doi.org/10.1002/cpe.1206), with equal dims the bandwidths of all of
    them add up (jax-ml.github.io/scaling-book/sharding), and with a slow outer and a fast inner dim it is the
    hierarchical algorithm, bound by the outer one.
    """
    segments = tuple(s for s in segments if s.extent > 1)
    size = math.prod(s.extent for s in segments)
    switched = all(s.kind in SWITCHED for s in segments)
    worst = 0.0
    for count in range(1, len(segments) + 1):
        for chosen in itertools.combinations(segments, count):
            inside = math.prod(s.extent for s in chosen)
            wires = sum(s.ring_bytes_per_s for s in chosen)
            crossing = (size - 1) * inside / size if switched else inside - 1
            worst = max(worst, crossing / (size * wires))
    return worst
