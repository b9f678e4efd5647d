"""Arguments that lie otherwise than planned, told: of what JAX refused with words that name no argument."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, Sharding

from planner.errors import ArgumentError
from planner.pricing.candidates.specs import spec_text
from planner.pricing.mesh import mesh_text
from planner.program.tracing.traced import Leaf

MOST_NAMED = 3
"""Arguments, and devices, that are named."""


def check_layout(arguments: Sequence[Leaf], leaves: Sequence[Any], shardings: Sequence[NamedSharding]) -> None:
    """Nothing. Raises: ArgumentError where arrays are committed to other shardings than these, by name."""
    found = [
        f"{leaf.name} lies as {_sharding_text(value.sharding)}, and the plan takes it as {_sharding_text(sharding)}"
        for leaf, value, sharding in zip(arguments, leaves, shardings, strict=False)
        if _has_other_sharding(value, sharding)
    ]
    if found:
        more = f"; {len(found) - MOST_NAMED} more lie otherwise" if len(found) > MOST_NAMED else ""
        raise ArgumentError(
            f"argument {'; '.join(found[:MOST_NAMED])}{more}; plan.jit moves nothing: place arguments with "
            "plan.place(...), or call the plan itself, which does it at every call"
        )


def _has_other_sharding(value: Any, sharding: NamedSharding) -> bool:
    """Whether a value is an array that JAX would have to move, and may not."""
    if not isinstance(value, jax.Array) or isinstance(value, Tracer) or not value.committed:
        return False
    return not value.sharding.is_equivalent_to(sharding, value.ndim)


def _sharding_text(sharding: Sharding) -> str:
    """A sharding as a person says it: spec, mesh and devices."""
    ids = sorted(device.id for device in sharding.device_set)
    if isinstance(sharding, NamedSharding):
        mesh = sharding.mesh
        ids = [device.id for device in mesh.devices.flat] if isinstance(mesh, Mesh) else ids
        what = f"{spec_text(sharding.spec)} on the mesh {mesh_text(mesh.shape)} of"
    else:
        what = f"{type(sharding).__name__} on"
    if len(ids) == 1:
        return f"{what} the device {ids[0]}"
    return f"{what} the devices {', '.join(map(str, ids[:MOST_NAMED]))}{', ...' if len(ids) > MOST_NAMED else ''}"
