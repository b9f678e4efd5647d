"""PartitionSpecs of a kind of plan on a mesh, for leaves and activations by path and shape."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jax.sharding import PartitionSpec

from benchmarks.hand_plans.families import Family, Roles
from benchmarks.hand_plans.kinds import Axes, Kind

SMALL_ELEMENTS = 2**18
"""Weights of fewer elements are not worth storing in parts. The figure of the tutorial most people start from:
https://uvadlc-notebooks.readthedocs.io/en/latest/tutorial_notebooks/scaling/JAX/data_parallel_fsdp.html."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A kind of plan for programs of a family on a mesh; dims that an axis does not divide stay whole."""

    kind: Kind
    family: Family
    mesh: Mapping[str, int]

    def weight(self, path: str, shape: Sequence[int], *, stored: bool) -> PartitionSpec:
        """The spec of a weight, or of an optimizer's state for it: as it is `stored`, or as it is computed with."""
        roles = _find(path, self.family.weights)
        dims = self._split(shape, roles if len(roles) <= len(shape) else ())
        if stored and math.prod(shape) >= SMALL_ELEMENTS:
            self._store(dims, shape)
        return _spec(dims)

    def data(self, path: str, shape: Sequence[int]) -> PartitionSpec:
        """The spec of what a call is given: by its roles, else the batch in front."""
        roles = _find(path, self.family.data)
        return _spec(self._split(shape, roles if roles else ("batch", *"." * (len(shape) - 1))[: len(shape)]))

    def activation(self, name: str, shape: Sequence[int]) -> PartitionSpec | None:
        """The spec of a named activation; None where nothing is known of it."""
        roles = _find(name, self.family.activations)
        return _spec(self._split(shape, roles)) if roles else None

    def _split(self, shape: Sequence[int], roles: Sequence[str]) -> list[Axes]:
        """The axes of every dim; the roles are those of the last dims, and an axis splits the first that asks for it.

        Of fewer dims than roles (an activation within `vmap`) the last have theirs.
        """
        roles = roles[max(0, len(roles) - len(shape)) :]
        dims: list[Axes] = [()] * (len(shape) - len(roles))
        taken: set[str] = set()
        for extent, role in zip(shape[len(dims) :], roles, strict=True):
            axes = tuple(axis for axis in self.kind.rules.get(role, ()) if axis in self.mesh and axis not in taken)
            while axes and extent % math.prod(self.mesh[axis] for axis in axes):
                axes = axes[:-1]
            taken.update(axes)
            dims.append(axes)
        return dims

    def _store(self, dims: list[Axes], shape: Sequence[int]) -> None:
        """Splits the largest dim that nothing splits by the axes over which weights are stored in parts."""
        taken = {axis for axes in dims for axis in axes}
        axes = tuple(axis for axis in self.kind.stored if axis in self.mesh and axis not in taken)
        parts = math.prod(self.mesh[axis] for axis in axes)
        free = [n for n, extent in enumerate(shape) if not dims[n] and extent % parts == 0]
        if axes and free:
            dims[max(free, key=lambda n: shape[n])] = axes


def _find(path: str, table: Roles) -> tuple[str, ...]:
    for pattern, roles in table.items():
        if f"/{path}".endswith(f"/{pattern}"):
            return tuple(roles.split())
    return ()


def _spec(dims: Sequence[Axes]) -> PartitionSpec:
    entries = [None if not axes else axes[0] if len(axes) == 1 else axes for axes in dims]
    while entries and entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries)
