"""Mapping: which part of which physical dim each axis of a mesh runs along.

A mapping gives every axis one part per physical dim; the parts of an axis multiply to its size, the parts of a dim to
at most its extent. Where several axes share a dim, one of them runs along neighbours (stride 1) and the next one along
every so-many-th device, whose wires it shares with the groups in between. Among all mappings the best is

    1. the one that splits the fewest dims (as `jax.experimental.mesh_utils` maps axes to whole dims),
    2. then that with the least sum over axes of the seconds per byte of an all-gather, which gives large axes whole,
       wrapped, fast dims,
    3. then the one nearest to row-major order.

A mesh of exactly the physical shape maps one to one.

Where the outermost dim is a network between nodes or slices, its part is not searched: the leading axes of the mesh run
across it, as in the row-major order in which JAX numbers devices, and a mesh that fits inside of few nodes takes few. Which
axis crosses the network is then said by the order of the axes; the rest is mapped as above.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from cost_models.network.links import Link, LinkKind, Segment, gather_seconds_per_byte, routed


@dataclass(frozen=True, slots=True, kw_only=True)
class Dim:
    """One physical dim of a topology: its extent, whether it wraps around, and its wires (as in `Segment`)."""

    extent: int
    wrap: bool
    bytes_per_s: float
    latency_s: float
    kind: LinkKind


@functools.lru_cache(maxsize=4096)
def map_mesh(dims: tuple[Dim, ...], mesh_shape: tuple[int, ...]) -> tuple[Link, ...] | None:
    """The link of every mesh axis, or None where the mesh does not fit; an axis of size 1 has no wires."""
    links = _mapped(dims, tuple(size for size in mesh_shape if size > 1))
    if links is None:
        return None
    of_large = iter(links)
    return tuple(next(of_large) if size > 1 else Link(size=1, dims=()) for size in mesh_shape)


@functools.lru_cache(maxsize=4096)
def _mapped(dims: tuple[Dim, ...], mesh_shape: tuple[int, ...]) -> tuple[Link, ...] | None:
    """The link of every mesh axis, all of which are larger than 1, or None where the mesh does not fit."""
    if len(dims) > 1 and dims[0].kind == "network":
        return _map_network(dims, mesh_shape)
    several = [d for d, dim in enumerate(dims) if dim.extent > 1]
    if mesh_shape == tuple(dims[d].extent for d in several):
        identity = tuple(tuple(dims[d].extent if d == own else 1 for d in range(len(dims))) for own in several)
        return _links(
            dims, mesh_shape, identity, tuple((several.index(d),) if d in several else () for d in range(len(dims)))
        )
    candidates = list(_assignments(tuple(dim.extent for dim in dims), mesh_shape))
    if not candidates:
        return None
    fewest = min(_splits(dims, parts) for parts in candidates)
    best: tuple[float, int, tuple[Link, ...]] | None = None
    for parts in candidates:
        if _splits(dims, parts) > fewest:
            continue
        for orders in itertools.product(*(_orders(dim, d, parts) for d, dim in enumerate(dims))):
            links = _links(dims, mesh_shape, parts, orders)
            cost = sum(gather_seconds_per_byte(routed("all-gather", link.dims)) for link in links)
            disorder = _disorder(parts, orders)
            if best is None or (cost < best[0] * (1 - 1e-9)) or (cost <= best[0] * (1 + 1e-9) and disorder < best[1]):
                best = (cost, disorder, links)
    return None if best is None else best[2]


def device_order(dims: tuple[Dim, ...], mesh_shape: tuple[int, ...]) -> npt.NDArray[np.int64] | None:
    """For every position of the mesh the device there, as its index in the row-major order of the physical dims.

    Shape: `mesh_shape`. None where the mesh does not fit.
    """
    links = map_mesh(dims, mesh_shape)
    if links is None:
        return None
    strides = [math.prod(dim.extent for dim in dims[d + 1 :]) for d in range(len(dims))]
    order: npt.NDArray[np.int64] = np.zeros(mesh_shape, dtype=np.int64)
    for axis, link in enumerate(links):
        offsets: npt.NDArray[np.int64] = np.zeros(1, dtype=np.int64)
        for segment in sorted(link.dims, key=lambda s: s.dim):
            steps = np.arange(segment.extent, dtype=np.int64) * (segment.stride * strides[segment.dim])
            offsets = (offsets[:, None] + steps[None, :]).reshape(-1)
        shape = [1] * len(mesh_shape)
        shape[axis] = link.size
        order = order + offsets.reshape(shape)
    return order


def network_parts(extent: int, inside: int, mesh_shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The parts of the axes of a mesh that lie across a network of `extent` nodes of `inside` devices, fewest nodes first.

    The leading axes take what they can of the nodes.
    """
    needed = math.prod(mesh_shape)
    for nodes in range(1, extent + 1):
        if needed % nodes or needed > nodes * inside:
            continue
        left, parts = nodes, list[int]()
        for size in mesh_shape:
            parts.append(math.gcd(left, size))
            left //= parts[-1]
        if left == 1:
            yield tuple(parts)


def _map_network(dims: tuple[Dim, ...], mesh_shape: tuple[int, ...]) -> tuple[Link, ...] | None:
    """The link of every mesh axis where the first dim is a network."""
    network, inner = dims[0], dims[1:]
    for parts in network_parts(network.extent, math.prod(dim.extent for dim in inner), mesh_shape):
        links = map_mesh(inner, tuple(size // part for size, part in zip(mesh_shape, parts, strict=True)))
        if links is None:
            continue
        found: list[Link] = []
        stride = math.prod(parts)
        for size, part, link in zip(mesh_shape, parts, links, strict=True):
            stride //= part
            across = Segment(
                extent=part,
                wrap=False,
                bytes_per_s=network.bytes_per_s,
                latency_s=network.latency_s,
                kind=network.kind,
                stride=stride,
                dim_extent=network.extent,
                torus_dims=max((s.torus_dims for s in link.dims), default=0),
            )
            inside = tuple(replace(s, dim=s.dim + 1) for s in link.dims)
            found.append(Link(size=size, dims=(across, *inside) if part > 1 else inside))
        return tuple(found)
    return None


Parts = tuple[tuple[int, ...], ...]
"""`parts[axis][dim]`: how much of the axis runs along the dim."""


def _assignments(extents: tuple[int, ...], mesh_shape: tuple[int, ...]) -> Iterator[Parts]:
    """All ways to give every axis one part per dim, within the extents."""
    if not mesh_shape:
        yield ()
        return
    for parts in _factorizations(mesh_shape[0], extents):
        left = tuple(extent // part for extent, part in zip(extents, parts, strict=True))
        if math.prod(left) < math.prod(mesh_shape[1:]):
            continue
        for rest in _assignments(left, mesh_shape[1:]):
            yield (parts, *rest)


def _factorizations(size: int, limits: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """All ways to write `size` as an ordered product with one factor per limit, none above its limit."""
    if not limits:
        if size == 1:
            yield ()
        return
    for factor in range(1, min(size, limits[0]) + 1):
        if size % factor == 0:
            for rest in _factorizations(size // factor, limits[1:]):
                yield (factor, *rest)


def _sharing(d: int, parts: Parts) -> tuple[int, ...]:
    return tuple(axis for axis, of_axis in enumerate(parts) if of_axis[d] > 1)


def _splits(dims: tuple[Dim, ...], parts: Parts) -> int:
    return sum(max(len(_sharing(d, parts)) - 1, 0) for d in range(len(dims)))


def _orders(dim: Dim, d: int, parts: Parts) -> list[tuple[int, ...]]:
    """The orders, outermost first, in which the axes of a dim may share it; they matter on a torus only."""
    sharing = _sharing(d, parts)
    return list(itertools.permutations(sharing)) if dim.kind == "torus" else [sharing]


def _disorder(parts: Parts, orders: tuple[tuple[int, ...], ...]) -> int:
    """How many pairs of axes stand in another order than row-major order would put them."""
    sequence = [axis for order in orders for axis in order]
    return sum(a > b for a, b in itertools.combinations(sequence, 2))


def _links(
    dims: tuple[Dim, ...], mesh_shape: tuple[int, ...], parts: Parts, orders: tuple[tuple[int, ...], ...]
) -> tuple[Link, ...]:
    of_axis: list[list[Segment]] = [[] for _ in mesh_shape]
    torus_dims = sum(dim.kind == "torus" and dim.extent > 1 for dim in dims)
    for d, (dim, order) in enumerate(zip(dims, orders, strict=True)):
        stride = 1
        for axis in reversed(order):
            extent = parts[axis][d]
            if extent == 1:
                continue
            shared = stride if dim.kind == "torus" else 1
            of_axis[axis].append(
                Segment(
                    extent=extent,
                    wrap=dim.wrap and extent * stride == dim.extent,
                    bytes_per_s=dim.bytes_per_s / shared,
                    latency_s=dim.latency_s * shared,
                    kind=dim.kind,
                    dim=d,
                    stride=stride,
                    dim_extent=dim.extent,
                    torus_dims=torus_dims,
                )
            )
            stride *= extent
    return tuple(
        Link(size=size, dims=tuple(sorted(segments, key=lambda s: (s.bytes_per_s, s.dim))))
        for size, segments in zip(mesh_shape, of_axis, strict=True)
    )
