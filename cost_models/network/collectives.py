"""Collectives: how long one takes over a set of mesh axes, as latency plus bytes times seconds per byte.

`bytes` is always the larger of the local operand and the local result: the operand of an all-reduce, reduce-scatter,
all-to-all and collective-permute, the result of an all-gather. With n devices, w the bytes per second that ring
algorithms bring into a device (`links`), and l a hop:

    all-gather          bytes (n-1)/n / w    hops: half a ring, a line, log2 n of a switch
    reduce-scatter      the same, backwards
    all-reduce          both, one after the other (bandwidth optimal: Patarasu & Yuan 2009)
    all-to-all          bytes n/8 / link     on a ring, n/4 on a line, (n-1)/n on a switch: what crosses the middle
    collective-permute  bytes / link         a shift to the neighbour

On a torus of several dims `links.routed` says which of these use all dims at once and which one ring.

References: Thakur, Rabenseifner & Gropp 2005, https://doi.org/10.1177/1094342005051521; Patarasu & Yuan 2009,
https://doi.org/10.1016/j.jpdc.2008.09.002; https://jax-ml.github.io/scaling-book/sharding (TPU rings) and
https://jax-ml.github.io/scaling-book/gpus (nodes of GPUs).
"""

from __future__ import annotations

import functools
import math
from typing import Literal, get_args

from cost_models.errors import CostModelError
from cost_models.network.links import SWITCHED, Link, Segment, gather_seconds_per_byte, merged, routed

CollectiveKind = Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"]
COLLECTIVE_KINDS: tuple[CollectiveKind, ...] = get_args(CollectiveKind)


def seconds(kind: str, bytes: float, links: tuple[Link, ...]) -> float:
    """The seconds of one collective of `bytes` over the product group of the axes that `links` stand for.

    Raises: CostModelError for an unknown kind.
    """
    latency_s, seconds_per_byte = affine(kind, links)
    return latency_s + bytes * seconds_per_byte


@functools.lru_cache(maxsize=65536)
def affine(kind: str, links: tuple[Link, ...], *, scatters_use_all_dims: bool = False) -> tuple[float, float]:
    """The latency in seconds and the seconds per byte of a collective; both 0 for a group of one device.

    `scatters_use_all_dims` as of `Chip`.
    Raises: CostModelError for an unknown kind.
    """
    check_kind(kind)
    segments = merged(links)
    if kind == "collective-permute":
        latency = sum(s.latency_s * _shift_hops(s) for s in segments)
        return latency, max((1 / s.bytes_per_s for s in segments), default=0.0)
    if kind == "all-to-all":
        latency = sum(s.latency_s * s.hops for s in segments)
        return latency, max((_bisection_seconds_per_byte(s) for s in segments), default=0.0)
    segments = routed(kind, segments, scatters_use_all_dims=scatters_use_all_dims)
    latency = sum(s.latency_s * s.hops for s in segments)
    passes = 2 if kind == "all-reduce" else 1
    return passes * latency, passes * gather_seconds_per_byte(segments)


@functools.lru_cache(maxsize=65536)
def traffic(kind: str, links: tuple[Link, ...]) -> float:
    """The bytes that each device sends over wires, hops counted, per byte of the collective: what costs energy.

    Raises: CostModelError for an unknown kind.
    """
    check_kind(kind)
    segments = merged(links)
    size = math.prod(s.extent for s in segments)
    if size == 1:
        return 0.0
    if kind == "collective-permute":
        return 1.0
    if kind == "all-to-all":
        return sum(_mean_hops(s) for s in segments)
    return (2 if kind == "all-reduce" else 1) * (size - 1) / size


def check_kind(kind: str) -> None:
    """Nothing, for a known kind of collective.

    Raises: CostModelError for an unknown one.
    """
    if kind not in COLLECTIVE_KINDS:
        raise CostModelError(f"unknown collective {kind!r}; use one of {', '.join(COLLECTIVE_KINDS)}")


def _bisection_seconds_per_byte(segment: Segment) -> float:
    """The seconds per byte of local operand until all that must cross the middle of a segment has crossed it.

    Of n devices with B bytes each, floor(n/2) ceil(n/2) B/n bytes go from one half to the other: over one wire of a
    line, two of a ring.
    """
    n = segment.extent
    if segment.kind == "full":
        return 1 / n / segment.bytes_per_s
    if segment.kind in SWITCHED:
        return (n - 1) / n / segment.bytes_per_s
    wires = 2 if segment.wrap else 1
    return (n * n // 4) / n / (wires * segment.bytes_per_s)


def _mean_hops(segment: Segment) -> float:
    """The mean distance between two positions of a segment, a position and itself included."""
    n = segment.extent
    if segment.kind != "torus":
        return (n - 1) / n
    return segment.stride * ((n * n // 4) / n if segment.wrap else (n * n - 1) / (3 * n))


def _shift_hops(segment: Segment) -> int:
    """The hops of the longest message of a cyclic shift by one: on a line, the last device's goes all the way back."""
    return segment.extent - 1 if segment.kind == "torus" and not segment.wrap else 1
