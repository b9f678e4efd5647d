"""Targets: the topology a plan is priced for, and the devices it is emitted for, if there are any."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh

from cost_models import CostModelError, Topology, parse_topology
from planner.errors import MeshError

KINDS = {
    "TPU v4": "v4",
    "TPU v5 lite": "v5e",
    "TPU v5e": "v5e",
    "TPU v5": "v5p",
    "TPU v5p": "v5p",
    "TPU v6 lite": "v6e",
    "TPU v6e": "v6e",
    "TPU7x": "tpu7x",
    "NVIDIA A100": "a100",
    "NVIDIA H100": "h100",
    "NVIDIA H200": "h200",
    "NVIDIA B200": "b200",
    "AMD Instinct MI300X": "mi300x",
}
"""Prefixes of `jax.Device.device_kind`, longest match first, and the chips they are."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """`devices` is None for a plan from a topology alone."""

    topology: Topology
    devices: tuple[jax.Device, ...] | None

    @property
    def count(self) -> int:
        """How many devices a plan may use."""
        if self.devices is None:
            return self.topology.num_devices
        return min(self.topology.num_devices, len(self.devices))

    @property
    def platform(self) -> str:
        """The platform whose compiler builds the program: "cpu", "gpu" or "tpu"."""
        return self.devices[0].platform if self.devices else self.topology.chip.platform

    def jax_mesh(self, shape: Mapping[str, int]) -> Mesh | AbstractMesh:
        """The mesh to emit for: of devices, or abstract where there are none. All axes are Auto."""
        sizes, names = tuple(shape.values()), tuple(shape)
        kinds = (AxisType.Auto,) * len(names)
        if self.devices is None:
            return AbstractMesh(sizes, names, axis_types=kinds)
        needed = math.prod(sizes)
        if needed == len(self.devices) and self.devices[0].platform == "tpu":
            return Mesh(mesh_utils.create_device_mesh(sizes, self.devices), names, axis_types=kinds)
        order = self.topology.order(sizes) if self.topology.num_devices == len(self.devices) else None
        indices = np.arange(needed).reshape(sizes) if order is None else order
        devices = np.empty(sizes, dtype=object)
        for position, index in np.ndenumerate(indices):
            devices[position] = self.devices[int(index)]
        return Mesh(devices, names, axis_types=kinds)


def resolve(devices: Sequence[jax.Device] | None, topology: str | Topology | None) -> Target:
    """The target of a plan. With neither devices nor topology: all of `jax.devices()`.

    Raises: MeshError for an unknown topology or devices of unknown kind.
    """
    if isinstance(topology, str):
        topology = named(topology)
    if topology is not None and not isinstance(topology, Topology):
        raise MeshError(f"topology is {topology!r}; give a name such as 'v5e:4x4' or a cost_models.Topology")
    if devices is None and topology is not None:
        return Target(topology=topology, devices=None)
    chosen = check_devices(jax.devices() if devices is None else devices)
    if topology is not None and topology.num_devices > len(chosen):
        raise MeshError(
            f"the topology {topology.name} has {topology.num_devices} devices, but only {len(chosen)} are given to "
            "emit for; give as many (virtual CPU devices will do) or leave devices out"
        )
    return Target(topology=topology or _topology_of(chosen), devices=chosen)


def named(topology: str) -> Topology:
    """The topology of a name. Raises: MeshError for an unknown one."""
    try:
        return parse_topology(topology)
    except CostModelError as error:
        raise MeshError(str(error)) from error


def check_devices(devices: object) -> tuple[jax.Device, ...]:
    """The devices a user gave, validated. Raises: MeshError."""
    chosen = tuple(devices) if isinstance(devices, (Sequence, np.ndarray)) else ()
    if not chosen or not all(isinstance(device, jax.Device) for device in chosen):
        raise MeshError(f"devices is {devices!r}; give a non-empty sequence of jax.Device")
    if len(set(chosen)) < len(chosen):
        twice = next(device for i, device in enumerate(chosen) if device in chosen[:i])
        raise MeshError(f"devices holds {twice} more than once; give every device once")
    if len({device.platform for device in chosen}) > 1:
        raise MeshError(f"devices holds several platforms, {devices!r}; give devices of one kind")
    return chosen


def _topology_of(devices: Sequence[jax.Device]) -> Topology:
    first = devices[0]
    if first.platform == "cpu":
        return named(f"cpu:{len(devices)}")
    matches = [prefix for prefix in KINDS if first.device_kind.startswith(prefix)]
    if not matches:
        raise MeshError(
            f"devices of kind {first.device_kind!r} are not in the hardware table; name a topology for their costs "
            f"(known chips: {', '.join(sorted(set(KINDS.values())))})"
        )
    chip = KINDS[max(matches, key=len)]
    if first.platform == "gpu":
        nodes = len({device.process_index for device in devices})
        per_node, rest = divmod(len(devices), nodes)
        shape = f"{nodes}x{per_node}" if nodes > 1 and not rest else str(len(devices))
        return named(f"{chip}:{shape}")
    coordinates = np.array([device.coords for device in devices])
    extents = [int(e) for e in coordinates.max(axis=0) - coordinates.min(axis=0) + 1]
    while len(extents) > 2 and extents[-1] == 1 and chip in ("v5e", "v6e"):
        extents.pop()
    found = named(f"{chip}:{'x'.join(map(str, extents))}")
    if found.num_devices != len(devices):
        raise MeshError(
            f"the {len(devices)} devices do not fill the block {found.name} that they lie in; give all devices of a "
            "block, or name a topology for their costs"
        )
    return found
