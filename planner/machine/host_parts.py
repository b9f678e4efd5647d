"""Host parts: arrays of which every process brings its own part along one dim, such as its examples of a batch.

The parts, one of each process that owns devices, are of one shape. Which rows of the whole a part is, the layout says:
those that the devices of its process hold, in their order. So no data move between processes; a layout serves if the
devices of different processes hold different rows, that is, if all axes that cross processes split this dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from planner.errors import ArgumentError, MeshError
from planner.machine.global_arrays import is_global, is_key
from planner.program.tracing.arguments import canonical_dtype


def crossing_axes(mesh: Mesh) -> tuple[str, ...]:
    """The axes of a mesh along which devices are of several processes."""
    owners = np.vectorize(lambda device: device.process_index, otypes=[np.int64])(mesh.devices)
    return tuple(name for axis, name in enumerate(mesh.axis_names) if (owners != owners.take([0], axis=axis)).any())


def laid_part(name: str, value: Any, sharding: NamedSharding, shape: Sequence[int], dim: int) -> jax.Array:
    """The global array of `shape` of which each process gives its part along `dim`, all at once; nothing is sent.

    Raises: ArgumentError where the devices of this process hold other rows than its own.
    """
    where = [
        index[dim] for index in sharding.addressable_devices_indices_map(tuple(shape)).values() if index is not None
    ]
    starts = sorted({rows.start or 0 for rows in where})
    extent = shape[dim] if where[0].stop is None else where[0].stop - (where[0].start or 0)
    here = value if is_key(value) else np.asarray(value, canonical_dtype(value))
    if len(starts) * extent != here.shape[dim]:
        raise ArgumentError(
            f"argument {name} is the part of this process, {here.shape[dim]} of {shape[dim]} along dim {dim}, but by the "
            f"plan its devices hold {len(starts) * extent} of them: the layout was made for other processes; plan again "
            "with process_local on these"
        )

    def rows(index: Any) -> Any:
        first = starts.index(index[dim].start or 0) * extent
        return here[(*index[:dim], slice(first, first + extent), *index[dim + 1 :])]

    return jax.make_array_from_callback(tuple(shape), sharding, rows)


def whole_of(name: str, value: Any, dim: int, devices: Sequence[jax.Device]) -> Any:
    """What the parts of the processes that own these devices make, process by process; of a shape the whole shape.

    Raises: ArgumentError, MeshError where the processes own unlike numbers of devices.
    """
    members = sorted({device.process_index for device in devices})
    if is_global(value) or len(members) == 1:
        return value
    shape = list(value.shape)
    shape[dim] *= len(members)
    if isinstance(value, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(tuple(shape), value.dtype, weak_type=value.weak_type)
    if len(devices) % len(members):
        raise MeshError(
            f"the {len(devices)} devices are of {len(members)} processes, which cannot bring equal parts of {name}; give "
            "as many devices of each"
        )
    ordered = sorted(devices, key=lambda device: (device.process_index, device.id))
    mesh = Mesh(np.array(ordered).reshape(len(members), -1), ("process", "device"))
    spec = PartitionSpec(*([None] * dim), "process")
    return laid_part(name, value, NamedSharding(mesh, spec), shape, dim)
