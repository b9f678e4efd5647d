"""Targets: the topology a plan is priced for, and the devices it is emitted for, if there are any."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import jax
import numpy as np
import numpy.typing as npt
from jax.sharding import AbstractMesh, AxisType, Mesh

from cost_models import Topology
from planner.compiler.targets.table import compiler_of
from planner.errors import MeshError
from planner.machine.aot_child import place_of
from planner.machine.device_mesh import DeviceOrder, in_order, lay_out
from planner.machine.device_topology import named, topology_of
from planner.machine.host_parts import crossing_axes
from planner.machine.processes import Processes, processes_of, text_of

AS_GIVEN = "the mesh lies on its devices as it was given, and its links are priced as the planner would lay it"
"""What a plan says of a given mesh that lies otherwise."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """`devices` is None for a plan from a topology alone; `notes` say what the topology assumes of them.

    They are a set: their order is that of `device_mesh.in_order`, whatever that of the list they came in. Where the order
    matters, the program names its mesh itself, or the user gives a `mesh` of them: plans of its shape lie as it does.
    """

    topology: Topology
    devices: tuple[jax.Device, ...] | None
    notes: tuple[str, ...] = ()
    mesh: Mesh | None = None

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

    @property
    def on_host(self) -> bool:
        """Whether the devices are virtual ones of a CPU, which share its cores."""
        return self.platform == "cpu"

    @property
    def carries_stacks(self) -> bool:
        """Whether loops are to update donated stacks in their carry, which the topology decides, not the devices."""
        return compiler_of(self.topology.chip).runs("stacks-in-carry")

    @property
    def why_not_run(self) -> str:
        """Why nothing can be run on the target, or ""."""
        if self.devices is None:
            return f"the topology {self.topology.name} has no devices here"
        if self.devices[0].client.runtime_type == "compile_only_runtime":
            return f"its devices, {len(self.devices)} x {self.devices[0].device_kind}, are there to compile for only"
        return ""

    @property
    def processes(self) -> Processes:
        """The processes that own the devices. Raises: MeshError where this one is none of them."""
        return processes_of(self.devices)

    def shared_by_all(self, meshes: Sequence[Mapping[str, int]]) -> tuple[list[Mapping[str, int]], tuple[str, ...]]:
        """The meshes that lie on devices of every process, as all must take part, and a note on the others.

        Raises: MeshError where there is none.
        """
        without = [self._left_out(mesh) for mesh in meshes]
        kept = [mesh for mesh, members in zip(meshes, without, strict=True) if not members]
        if len(kept) == len(meshes):
            return kept, ()
        if not kept:
            raise MeshError(
                f"the mesh {dict(meshes[0])} would leave {text_of(without[0])} without devices, unable to take part; "
                "give a mesh of more devices, or devices=[...] with as many of every process as the mesh needs, or "
                "devices=jax.local_devices() for a plan of each process's own"
            )
        sizes = sorted({math.prod(mesh.values()) for mesh in meshes} - {math.prod(mesh.values()) for mesh in kept})
        left = sorted({member for members in without for member in members})
        counts = ", ".join(map(str, sizes))
        return kept, (f"meshes of {counts} devices were not searched: they would leave {text_of(left)} without any",)

    def _left_out(self, shape: Mapping[str, int]) -> tuple[int, ...]:
        """The processes that own none of the devices of a mesh."""
        if self.processes.alone:
            return ()
        mesh = self.jax_mesh(shape)
        used = set[int]() if isinstance(mesh, AbstractMesh) else {device.process_index for device in mesh.devices.flat}
        return tuple(member for member in self.processes.members if member not in used)

    def jax_mesh(self, shape: Mapping[str, int]) -> Mesh | AbstractMesh:
        """The mesh to emit for: of devices, or abstract where there are none. All axes are Auto."""
        if self.mesh is not None and tuple(shape.items()) == tuple(self.mesh.shape.items()):
            return self.mesh
        sizes, names = tuple(shape.values()), tuple(shape)
        kinds = (AxisType.Auto,) * len(names)
        if self.devices is None:
            return AbstractMesh(sizes, names, axis_types=kinds)
        devices = np.empty(sizes, dtype=object)
        for position, index in np.ndenumerate(self._layout(sizes).order):
            devices[position] = self.devices[int(index)]
        return Mesh(devices, names, axis_types=kinds)

    def crossing(self, shape: Mapping[str, int]) -> tuple[str, ...]:
        """The axes of a mesh that cross processes."""
        mesh = None if self.processes.alone else self.jax_mesh(shape)
        return crossing_axes(mesh) if isinstance(mesh, Mesh) else ()

    def hosts(self, shape: Mapping[str, int], topology: Topology) -> npt.NDArray[np.int64]:
        """The host of the device at every position of a mesh, numbered; shape: that of the mesh.

        Where the devices belong to several processes a process stands for its host; else it is as `topology` has it, which
        holds the mesh.
        """
        mesh = None if topology is not self.topology or self.processes.alone else self.jax_mesh(shape)
        if isinstance(mesh, Mesh):
            return np.vectorize(lambda device: device.process_index, otypes=[np.int64])(mesh.devices)
        order = topology.order(tuple(shape.values()))
        return np.zeros(tuple(shape.values()), np.int64) if order is None else topology.hosts.reshape(-1)[order]

    def notes_for(self, shape: Mapping[str, int]) -> tuple[str, ...]:
        """What a plan on this mesh should say of its devices."""
        if self.devices is None:
            return self.notes
        layout = self._layout(tuple(shape.values()))
        note = layout.note
        if self.mesh is not None:
            has_places = self.topology.nodes > 1 or any(map(place_of, self.devices))
            priced = [self.devices[int(index)] for index in layout.order.flat]
            note = AS_GIVEN if has_places and priced != list(self.mesh.devices.flat) else ""
        return (*self.notes, note) if note else self.notes

    def _layout(self, sizes: tuple[int, ...]) -> DeviceOrder:
        return lay_out(sizes, [place_of(device) for device in self.devices or ()], self.topology)


def resolve(devices: Sequence[jax.Device] | None, topology: str | Topology | None, mesh: Mesh | None = None) -> Target:
    """The target of a plan: these devices, those of a mesh, or with no topology either all of `jax.devices()`.

    Raises: MeshError for an unknown topology, devices of unknown kind, or others than the mesh's.
    """
    topology = checked_topology(topology)
    if mesh is not None:
        of_mesh = check_devices(mesh.devices.reshape(-1))
        if devices is not None and set(check_devices(devices)) != set(of_mesh):
            raise MeshError(
                f"devices={devices!r:.200} are not those of mesh={mesh!r}; leave devices out: the mesh says which they are"
            )
        return replace(resolve(of_mesh, topology), mesh=_automatic(mesh))
    if devices is None and topology is not None:
        return Target(topology=topology, devices=None)
    chosen = check_devices(jax.devices() if devices is None else devices)
    if topology is not None and topology.num_devices > len(chosen):
        raise MeshError(
            f"the topology {topology.name} has {topology.num_devices} devices, but only {len(chosen)} are given to "
            "emit for; give as many (virtual CPU devices will do) or leave devices out"
        )
    if topology is not None:
        return Target(topology=topology, devices=chosen)
    found, notes = topology_of(chosen)
    return Target(topology=found, devices=chosen, notes=notes)


def checked_topology(topology: str | Topology | None) -> Topology | None:
    """The topology a user gave or named. Raises: MeshError for one that is none."""
    if isinstance(topology, str):
        return named(topology)
    if topology is not None and not isinstance(topology, Topology):
        raise MeshError(f"topology is {topology!r}; give a name such as 'v5e:4x4' or a cost_models.Topology")
    return topology


def _automatic(mesh: Mesh) -> Mesh:
    """The same mesh with Auto axes: a plan lays constraints, and types say nothing of placement."""
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))


def check_devices(devices: object) -> tuple[jax.Device, ...]:
    """The devices a user gave, validated and in order. Raises: MeshError."""
    chosen = tuple(devices) if isinstance(devices, (Sequence, np.ndarray)) else ()
    if not chosen or not all(isinstance(device, jax.Device) for device in chosen):
        raise MeshError(f"devices is {devices!r}; give a non-empty sequence of jax.Device")
    if len(set(chosen)) < len(chosen):
        twice = next(device for i, device in enumerate(chosen) if device in chosen[:i])
        raise MeshError(f"devices holds {twice} more than once; give every device once")
    if len({device.platform for device in chosen}) > 1:
        raise MeshError(f"devices holds several platforms, {devices!r}; give devices of one kind")
    return in_order(chosen)
