"""Device meshes: which device stands at which position of a mesh, decided in one place for plans and for compilers.

Links are priced where `Topology.links` puts the axes of a mesh, so `lay_out` puts the devices there:

    1. on a block of the shape of the topology, wherever the devices have one; a mesh of fewer devices takes the part of
       it that was priced. Price and place agree then.
    2. On devices that have no such block (a host is missing, or the topology is another one): on the most compact block
       of just as many devices as the mesh has.
    3. Where there is none either: along the line that winds through their coordinates.

Coordinates decide, whatever the order of the list and whatever physical axis a mesh axis must share. Devices without
coordinates (GPUs, virtual CPU devices) are taken by process and id, the topology's last dim fastest.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cost_models import Topology
from planner.errors import MeshError
from planner.machine.aot_child import Place, place_of

TORUS_DIMS = (1, 2, 3)
"""The entries of a `Place` along which neighbours are wired."""
_KINDS: tuple[Any, ...] = ("network", "torus", "torus", "torus", "switch")
_RANKS = (1.0, 10.0, 10.0, 10.0, 100.0)
"""How the wires along the entries of a `Place` compare: enough to give large axes the better ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOrder:
    """`order[position]`: the device at a position of the mesh, as its index; `note`: what its prices leave out, or ""."""

    order: npt.NDArray[np.int64]
    note: str = ""


def in_order(devices: Iterable[Any]) -> tuple[Any, ...]:
    """The devices by slice, coordinates and core where they have them, else by process and id."""
    return tuple(sorted(devices, key=lambda device: (place_of(device) or (), device.process_index, device.id)))


def lay_out(sizes: Sequence[int], places: Sequence[Place | None], topology: Topology) -> DeviceOrder:
    """Where the positions of a mesh lie among devices at these places (None: no coordinates), given in order.

    Raises: MeshError where the mesh needs more devices than there are.
    """
    needed = math.prod(sizes)
    if needed > len(places):
        raise MeshError(
            f"a mesh of {'x'.join(map(str, sizes))} needs {needed} devices, but there are {len(places)}; "
            "make its sizes multiply to at most that"
        )
    known = [place for place in places if place is not None]
    if len(known) < len(places):
        return DeviceOrder(order=_along(sizes, np.arange(len(places)), topology))
    grid = _grid(known)
    block, order = _block_of(topology, grid), topology.order(sizes)
    if block is not None and order is not None:
        return DeviceOrder(order=block.reshape(-1)[order])
    why = f"the {len(places)} devices hold no block of the shape {_extents_text(topology.shape)} that links are priced for"
    block = _compact_block(needed, grid)
    own = None if block is None else _own_order(sizes, block.shape, topology)
    if block is None or own is None:
        note = f"{why}, nor one of {needed} devices: the mesh lies along a line through their coordinates"
        return DeviceOrder(order=_along(sizes, winding(known), topology), note=note)
    note = f"{why}: the mesh lies on a block of {_extents_text(block.shape)} of them" if needed > 1 else ""
    return DeviceOrder(order=block.reshape(-1)[own], note=note)


def extents_of(places: Iterable[Place]) -> tuple[int, ...]:
    """The extents of the smallest block that holds these places."""
    array = np.array(list(places))
    return tuple(int(extent) for extent in array.max(axis=0) - array.min(axis=0) + 1)


def winding(places: Sequence[Place]) -> npt.NDArray[np.int64]:
    """The indices of the places along a line that turns at the end of every row, so that neighbours on it are near."""

    def key(i: int) -> tuple[int, ...]:
        part, x, y, z, core = places[i]
        return part, x, y * (-1) ** x, z * (-1) ** (x + y), core

    return np.array(sorted(range(len(places)), key=key), dtype=np.int64)


def _own_order(sizes: Sequence[int], extents: tuple[int, ...], topology: Topology) -> npt.NDArray[np.int64] | None:
    """The positions of a mesh on a block with the extents of a `Place`, by its own wires."""
    own = Topology.custom(name="block", shape=extents, link_bytes_per_s=_RANKS, kind=_KINDS, chip=topology.chip)
    return own.order(sizes)


def _along(sizes: Sequence[int], line: npt.NDArray[np.int64], topology: Topology) -> npt.NDArray[np.int64]:
    """The devices of a line in the topology's order where there are enough of them, else in their own."""
    order = topology.order(sizes)
    if order is None or int(order.max()) >= len(line):
        order = np.arange(math.prod(sizes)).reshape(tuple(sizes))
    return line[order]


def _grid(places: Sequence[Place]) -> npt.NDArray[np.int64]:
    """The index of the device at every place of the smallest block that holds them, -1 where there is none."""
    grid = np.full(extents_of(places), -1, dtype=np.int64)
    origin = np.array(places).min(axis=0)
    grid[tuple((np.array(places) - origin).T)] = np.arange(len(places))
    return grid


def _window(grid: npt.NDArray[np.int64], extents: Sequence[int]) -> npt.NDArray[np.int64] | None:
    """The first full block of these extents, or None where every one has a gap."""
    starts = [range(have - want + 1) for have, want in zip(grid.shape, extents, strict=True)]
    for start in itertools.product(*starts):
        window = grid[tuple(slice(a, a + n) for a, n in zip(start, extents, strict=True))]
        if (window >= 0).all():
            return window
    return None


def _block_of(topology: Topology, grid: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
    """Devices in the shape of a topology, or None where they hold no such block.

    Its dims run along the coordinates in order where that is possible, its torus dims along those of the torus.
    """
    dims = [d for d, extent in enumerate(topology.shape) if extent > 1]

    def strangeness(chosen: tuple[int, ...]) -> int:
        return sum((topology.kind[d] == "torus") != (c in TORUS_DIMS) for d, c in zip(dims, chosen, strict=True))

    for chosen in sorted(itertools.permutations(range(grid.ndim), len(dims)), key=lambda c: (strangeness(c), c)):
        extents = [1] * grid.ndim
        for d, c in zip(dims, chosen, strict=True):
            extents[c] = topology.shape[d]
        block = _window(grid, extents)
        if block is not None:
            rest = [c for c in range(grid.ndim) if c not in chosen]
            return block.transpose(*chosen, *rest).reshape(topology.shape)
    return None


def _compact_block(count: int, grid: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
    """A full block of so many devices: of the fewest slices, of whole chips, and of the shortest sides there is."""

    def length(extents: tuple[int, ...]) -> tuple[object, ...]:
        return extents[0], -extents[-1], sum(extents), extents

    for extents in sorted(_shapes(count, grid.shape), key=length):
        block = _window(grid, extents)
        if block is not None:
            return block
    return None


def _shapes(count: int, limits: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """All extents within the limits that multiply to a count."""
    if not limits:
        if count == 1:
            yield ()
        return
    for extent in range(1, min(count, limits[0]) + 1):
        if count % extent == 0:
            for rest in _shapes(count // extent, limits[1:]):
                yield (extent, *rest)


def _extents_text(extents: Sequence[int]) -> str:
    return "x".join(str(extent) for extent in extents if extent > 1) or "1"
