"""Kinds of mesh axes: those that types name (Explicit), and the mesh with such axes that is set around a call."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh

NO_MESH = AbstractMesh((), ())
NO_DEVICES = Mesh(np.empty((), dtype=object), ())
"""The mesh of devices that is set where a caller has set none."""


def explicit_axes(mesh: Any) -> list[str]:
    """The axes of a mesh, of devices or abstract, that types name."""
    return [axis for axis, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind == AxisType.Explicit]


def with_auto_axes(mesh: Any) -> Any:
    """The same mesh, of devices or abstract, with Auto axes in the place of Explicit ones."""
    kinds = tuple(AxisType.Auto if kind == AxisType.Explicit else kind for kind in mesh.axis_types)
    if isinstance(mesh, AbstractMesh):
        return mesh.update_axis_types(dict(zip(mesh.axis_names, kinds, strict=True)))
    return Mesh(mesh.devices, mesh.axis_names, axis_types=kinds)


def explicit_mesh() -> Mesh | AbstractMesh | None:
    """The mesh that is set around the caller where it has Explicit axes, with its devices if it has any."""
    abstract = jax.sharding.get_abstract_mesh()
    if not explicit_axes(abstract):
        return None
    try:
        mesh = jax.sharding.get_mesh()
    except ValueError:  # JAX does not tell it inside of a trace
        return abstract
    return mesh if mesh.abstract_mesh == abstract else abstract
