"""What moves between two plans on different machines: the bytes that every device receives, by the links they come over.

What is left of a machine is a block of it, from its first corner on: the device at a place in the smaller topology is the
one at the same place in the larger. Devices beyond are lost, with what they held. Each array is cut into boxes of indices,
one per device. Of its new box a device

    keeps       what is in its own old box,
    receives    what is in the old box of another device that is left: over the chip network where one is in its slice or
                node, else over the data-centre network,
    loads       what no device that is left has held, from its host, which has it from a checkpoint.

The seconds over a kind of link are those of the device that receives most over it, at the rate of a device's port, and on
a torus of one wire: a bound from below, as wires are shared and latencies are left out.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh, PartitionSpec

from cost_models import Topology
from planner.machine.target import Target
from planner.pricing.mesh import Shape
from planner.program.graph import Aval
from planner.program.spec_entries import axes_of_spec, parts_over

CHIPS, NETWORK, HOST = "chip network", "data-centre network", "host"
LINKS = (CHIPS, NETWORK, HOST)
"""What bytes come over, by position in `_received`."""
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What goes over one kind of link: bytes on all devices together, those of the device with most, and its seconds."""

    bytes: float
    bytes_per_device: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """What it takes to bring a state of `state_bytes` from one plan to another, `by_link`; `kept_bytes` stay in place."""

    state_bytes: float
    kept_bytes: float
    by_link: Mapping[str, Moved]

    @property
    def bytes(self) -> float:
        """All that devices receive."""
        return sum(moved.bytes for moved in self.by_link.values())

    @property
    def bytes_per_device(self) -> float:
        """The most that a device receives, link by link."""
        return sum(moved.bytes_per_device for moved in self.by_link.values())

    @property
    def seconds(self) -> float:
        """One kind of link after the other."""
        return sum(moved.seconds for moved in self.by_link.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Laid:
    """Arrays on the mesh of a target, by their specs."""

    target: Target
    shape: Shape
    specs: Sequence[PartitionSpec]

    @property
    def devices(self) -> Integers:
        """The device of every position of the mesh, as an index in the row-major order of the topology; shape: (n,)."""
        mesh, devices = self.target.jax_mesh(self.shape), self.target.devices
        if isinstance(mesh, Mesh) and devices is not None:
            places = {device: place for place, device in enumerate(devices)}
            return np.array([places[device] for device in mesh.devices.flat], np.int64)
        order = self.target.topology.order(tuple(self.shape.values()))
        return np.arange(math.prod(self.shape.values())) if order is None else order.reshape(-1)


def survivors(before: Topology, after: Topology) -> Integers:
    """For every device of `after` the one of `before` that it is, -1 for a new one; all are new where chips differ."""
    rank = max(len(before.shape), len(after.shape))
    old, new = ((1,) * (rank - len(topology.shape)) + topology.shape for topology in (before, after))
    places = np.indices(new).reshape(rank, -1)
    there = (places < np.array(old)[:, None]).all(axis=0) & (before.chip == after.chip)
    return np.where(there, np.ravel_multi_index(tuple(places), old, mode="clip"), -1)


def move(before: Laid, after: Laid, avals: Sequence[Aval]) -> Move:
    """What it takes to bring arrays of these types from one layout to the other."""
    topology = after.target.topology
    old_devices, new_devices = before.devices, after.devices
    was = survivors(before.target.topology, topology)
    # By old device: the slice or node in which it is now, -1 where it is lost.
    size = topology.num_devices // topology.nodes
    now = np.full(before.target.topology.num_devices, -1, np.int64)
    now[was[was >= 0]] = np.flatnonzero(was >= 0) // size
    place_of = np.full(before.target.topology.num_devices, -1, np.int64)
    place_of[old_devices] = np.arange(len(old_devices))
    own = np.where(was[new_devices] >= 0, place_of[was[new_devices]], -1)
    received = np.zeros((len(LINKS), len(new_devices)))
    kept = 0.0
    counted: defaultdict[tuple[tuple[int, ...], PartitionSpec, PartitionSpec], float] = defaultdict(float)
    for aval, old, new in zip(avals, before.specs, after.specs, strict=True):
        counted[aval.shape or (1,), old, new] += aval.itemsize  # a scalar is one element
    for (shape, old, new), itemsize in counted.items():
        if math.prod(shape):
            stay, come = _received(
                _boxes(shape, old, before.shape),
                now[old_devices],
                _boxes(shape, new, after.shape),
                new_devices // size,
                own,
            )
            kept += float(stay.sum()) * itemsize
            received += come * itemsize
    rates = _rates(topology)
    by_link = {
        link: Moved(
            bytes=float(row.sum()),
            bytes_per_device=float(row.max()),
            seconds=float(row.max()) / rate if row.any() else 0.0,
        )
        for link, row, rate in zip(LINKS, received, rates, strict=True)
    }
    return Move(state_bytes=float(sum(aval.bytes for aval in avals)), kept_bytes=kept, by_link=by_link)


def _boxes(shape: Sequence[int], spec: PartitionSpec, mesh: Shape) -> Integers:
    """Where the parts of an array begin and end at every position of a mesh; shape: (2, positions, rank)."""
    names, sizes = list(mesh), tuple(mesh.values())
    places = np.indices(sizes).reshape(len(sizes), -1) if sizes else np.zeros((0, 1), np.int64)
    found = np.zeros((2, places.shape[1], len(shape)), np.int64)
    for dim, axes in enumerate(axes_of_spec(spec, len(shape))):
        part = np.zeros(places.shape[1], np.int64)
        for axis in axes:
            part = part * mesh[axis] + places[names.index(axis)]
        extent = shape[dim] // parts_over(axes, mesh)
        found[:, :, dim] = part * extent, (part + 1) * extent
    return found


def _received(old: Integers, now: Integers, new: Integers, group: Integers, own: Integers) -> tuple[Integers, Integers]:
    """The elements that every new position keeps, and those that it receives over each of `LINKS`.

    `old` and `new` are boxes; `now` is the group of every old position, -1 where it is lost, `group` that of every new one,
    and `own` the old position that a new one was, or -1. Shapes of the results: (positions,), (links, positions).
    """
    cells, cell_of = np.unique(np.concatenate([old[0], old[1]], axis=1), axis=0, return_inverse=True)
    cell_of, rank = cell_of.reshape(-1), old.shape[2]
    begin, end = cells[:, :rank], cells[:, rank:]
    left = now >= 0
    held = np.zeros((len(cells), int(max(now.max(), group.max())) + 1), bool)
    held[cell_of[left], now[left]] = True
    common = np.ones((new.shape[1], len(cells)), np.int64)
    for dim in range(rank):
        last = np.minimum(new[1, :, None, dim], end[None, :, dim])
        common *= np.maximum(last - np.maximum(new[0, :, None, dim], begin[None, :, dim]), 0)
    mine = (own[:, None] >= 0) & (cell_of[own][:, None] == np.arange(len(cells)))
    near = held[:, group].T & ~mine
    far = held.any(axis=1, keepdims=True).T & ~near & ~mine
    stay, chips, network = ((common * which).sum(axis=1) for which in (mine, near, far))
    whole = np.prod(new[1] - new[0], axis=1)
    return stay, np.stack([chips, network, whole - stay - chips - network])


def _rates(topology: Topology) -> tuple[float, float, float]:
    """The bytes per second into a device over each of `LINKS`."""
    wires = [rate for rate, kind in zip(topology.link_bytes_per_s, topology.kind, strict=True) if kind != "network"]
    chip = topology.chip
    network = topology.link_bytes_per_s[0] if topology.kind[0] == "network" else chip.network_bytes_per_s
    return max(wires, default=network), network, chip.host_link_bytes_per_s
