"""Global arrays: values laid on the devices of several processes, and brought back from them.

A value that a process holds itself (numpy, an array on its own devices) must be the same on all processes; each lays the
parts that are its own, and nothing is sent. What differs by process, such as each one's part of a batch, comes as a global
array (`jax.make_array_from_process_local_data`). Without several processes all of this is `jax.device_put`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from operator import methodcaller
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from planner.errors import ArgumentError
from planner.machine.processes import Processes, text_of
from planner.program.tracing.arguments import canonical_dtype

GATHERED_BYTES = 2.0**28
"""Most bytes of global arrays that are brought together on every device for a check."""


def placed(names: Sequence[str], values: Sequence[Any], shardings: Sequence[NamedSharding]) -> list[Any]:
    """The values on their devices. Raises: ArgumentError where one lies on devices of other processes that differ."""
    if all(sharding.is_fully_addressable for sharding in shardings) and not any(map(is_global, values)):
        return jax.device_put(list(values), list(shardings))
    return list(map(_placed, names, values, shardings))


def _placed(name: str, value: Any, sharding: NamedSharding) -> Any:
    if not is_global(value):
        here = value if is_key(value) else np.asarray(value, canonical_dtype(value))
        return jax.make_array_from_callback(here.shape, sharding, lambda index: here[index])
    if value.sharding.device_set != sharding.device_set:
        raise ArgumentError(
            f"argument {name} lies on the devices {_ids(value.sharding.device_set)}, some of them of other processes, "
            f"and the plan is for {_ids(sharding.device_set)}; give an array on the devices of the plan, or a value "
            "that every process holds"
        )
    return jax.device_put(value, sharding)


def consume(values: Sequence[Any]) -> bool:
    """Whether all values are gone, as a call consumes what is donated to it; arrays that are still there are freed."""
    there = [value for value in values if not is_deleted_array(value)]
    for value in there:
        if isinstance(value, jax.Array):
            value.delete()
    return not there


def is_deleted_array(value: Any) -> bool:
    """Whether a value is an array that was donated or deleted."""
    return hasattr(value, "is_deleted") and not isinstance(value, Tracer) and value.is_deleted()


_IS_DELETED = methodcaller("is_deleted")


def any_deleted(values: Sequence[Any]) -> bool:
    """Whether any of some values is an array that was donated or deleted; quick where all are arrays."""
    try:
        return True in map(_IS_DELETED, values)
    except (AttributeError, TypeError):
        return any(map(is_deleted_array, values))


def why_deleted(names: Sequence[str], values: Sequence[Any]) -> str:
    """That one of some values, by name, was donated; "" where all are there."""
    deleted = (name for name, value in zip(names, values, strict=False) if is_deleted_array(value))
    return next((f"argument {name} was donated to an earlier call and is gone" for name in deleted), "")


def is_global(value: Any) -> bool:
    """Whether a value lies on devices of other processes too."""
    return isinstance(value, jax.Array) and not value.is_fully_addressable


def is_key(value: Any) -> bool:
    """Whether a value is an array of random keys."""
    return jax.dtypes.issubdtype(getattr(value, "dtype", np.dtype(np.float32)), jax.dtypes.prng_key)


def host(value: Any) -> Any:
    """A value with no sharding: numpy, or an uncommitted key array."""
    if is_key(value):
        return jax.random.wrap_key_data(
            jax.numpy.asarray(np.asarray(jax.random.key_data(value))), impl=jax.random.key_impl(value)
        )
    return np.asarray(value) if hasattr(value, "dtype") else value


def parts(value: Any) -> list[tuple[Any, Any]]:
    """What this process holds of a value: (where in it, its content with no sharding)."""
    if not is_global(value):
        return [(..., host(value))]
    # JAX may tell an array of keys by the dims of its bits.
    return [(shard.index[: value.ndim], host(shard.data)) for shard in value.addressable_shards]


def whole(values: Sequence[Any], mesh: Mesh | AbstractMesh) -> list[Any]:
    """The values with no sharding; those on several processes are gathered over `mesh`, which all must do together."""
    everywhere = NamedSharding(mesh, PartitionSpec())
    return [host(jax.device_put(value, everywhere) if is_global(value) else value) for value in values]


def in_common(
    names: Sequence[str], values: tuple[Any, ...] | str, mesh: Mesh | AbstractMesh, processes: Processes
) -> tuple[Any, ...] | str:
    """The values, where all processes have the same and can gather them, else why not; or the reason that was given.

    All processes must ask this together, and get the same kind of answer.
    """

    def mine() -> str | list[str]:
        why = values if isinstance(values, str) else _why_not_gathered(names, values, mesh)
        return why or ([] if processes.alone else list(map(_identity, values)))

    answers = processes.gathered(mine, first=True)
    for member, answer in zip(processes.members, answers, strict=True):
        if isinstance(answer, str):
            return answer if all(other == answer for other in answers) else f"on process {member}: {answer}"
    if processes.alone:
        return values
    for name, *found in zip(names, *answers, strict=True):
        if len(set(found)) > 1:
            return f"argument {name} is not the same on {text_of(processes.members)}; give one value, or a global array"
    return values


def _why_not_gathered(names: Sequence[str], values: Sequence[Any], mesh: Mesh | AbstractMesh) -> str | None:
    total, devices = 0, set[jax.Device]() if isinstance(mesh, AbstractMesh) else set(mesh.devices.flat)
    for name, value in zip(names, values, strict=True):
        if not is_global(value):
            continue
        if value.sharding.device_set != devices:
            return f"argument {name} lies on other devices than the plan's, some of them of other processes"
        total += value.size * value.dtype.itemsize
    if total > GATHERED_BYTES:
        return (
            f"the arguments lie on several processes and hold {total:.3g} bytes, and no more than {GATHERED_BYTES:.3g} "
            "are gathered for a check; give values that every process holds"
        )
    return None


def _identity(value: Any) -> str:
    """Words that are the same for two values that are: of a global array where it lies, else its content's digest."""
    if is_global(value):
        return f"on the devices {_ids(value.sharding.device_set)}"
    content = host(jax.random.key_data(value)) if is_key(value) else host(value)
    return hashlib.sha256(np.ascontiguousarray(content).tobytes()).hexdigest()[:16]


def _ids(devices: Collection[jax.Device]) -> str:
    return ", ".join(str(device.id) for device in sorted(devices, key=lambda device: device.id))
