"""Mesh factorizations, and what every collective costs along every set of axes of a mesh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cost_models import CostModel, Objective, Topology
from planner.errors import MeshError

Shape = Mapping[str, int]


def mesh_words(shape: Shape) -> str:
    """A mesh as a person writes it: "data=4,model=2"."""
    return ",".join(f"{name}={size}" for name, size in shape.items())


AXIS_NAMES = ("x", "y", "z")
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")


@dataclass(frozen=True, kw_only=True, eq=False)
class Mesh:
    """A logical mesh with the price of its collectives.

    `sizes[a]` is the size of axis a. `fixed[kind][mask]` and `per_byte[kind][mask]` are the value of one collective over
    the axes in the bit set `mask` and of each of its bytes (the larger of local operand and result), in the objective's
    unit; `fixed_seconds` and `seconds_per_byte` are the same in seconds.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    fixed: Mapping[str, npt.NDArray[np.float64]]
    per_byte: Mapping[str, npt.NDArray[np.float64]]
    fixed_seconds: Mapping[str, npt.NDArray[np.float64]]
    seconds_per_byte: Mapping[str, npt.NDArray[np.float64]]

    @property
    def shape(self) -> dict[str, int]:
        """Axis name to size."""
        return dict(zip(self.names, self.sizes, strict=True))

    @property
    def num_devices(self) -> int:
        """The product of the axis sizes."""
        return int(np.prod(self.sizes, dtype=np.int64))

    def mask_sizes(self) -> npt.NDArray[np.int64]:
        """The number of devices of the group of every bit set of axes."""
        return np.array(parts_of_masks(self.sizes))

    def axes(self, mask: int) -> tuple[str, ...]:
        """The names of the axes in a bit set."""
        return tuple(name for a, name in enumerate(self.names) if mask >> a & 1)


def parts_of_masks(sizes: Sequence[int]) -> list[int]:
    """The product of the sizes in every bit set of axes, by bit set."""
    found = [1]
    for size in sizes:
        found += [size * parts for parts in found]
    return found


def make_mesh(shape: Mapping[str, int], topology: Topology, model: CostModel, objective: Objective) -> Mesh:
    """The mesh of this shape on a topology, priced. Raises: MeshError when the topology cannot hold it."""
    names, sizes = tuple(shape), tuple(shape.values())
    links = topology.links(sizes)
    if links is None:
        raise MeshError(
            f"the mesh {dict(shape)} does not fit the topology {topology.name} of {topology.num_devices} devices; "
            "its sizes must multiply to at most that and divide its physical dims"
        )
    count = 1 << len(sizes)
    tables = [{kind: np.zeros(count) for kind in COLLECTIVES} for _ in range(4)]
    for kind in COLLECTIVES:
        # XLA's CPU backend does the work of a reduce-scatter with an all-reduce.
        run = "all-reduce" if kind == "reduce-scatter" and topology.chip.platform == "cpu" else kind
        for mask in range(1, count):
            group = tuple(link for a, link in enumerate(links) if mask >> a & 1)
            affine = model.collective_affine(run, group)
            value = objective.collective(run, group, affine)
            for table, number in zip(tables, (*value, *affine), strict=True):
                table[kind][mask] = number
    return Mesh(
        names=names,
        sizes=sizes,
        fixed=tables[0],
        per_byte=tables[1],
        fixed_seconds=tables[2],
        seconds_per_byte=tables[3],
    )


def factorizations(topology: Topology, *, max_axes: int = 3) -> list[dict[str, int]]:
    """All meshes of up to `max_axes` axes (sizes descending) for every device count that divides the topology's.

    All devices first, then fewer; within one count, fewer axes first. Only meshes the topology can hold. The order of
    the axes is no choice of its own: an axis may split any dim, and `Topology.links` gives each the best wires.
    """
    found: list[dict[str, int]] = []
    total = topology.num_devices
    for devices in sorted((d for d in range(1, total + 1) if total % d == 0), reverse=True):
        for axes in range(1, max_axes + 1):
            for sizes in _factors(devices, axes):
                if topology.links(sizes) is not None:
                    found.append(dict(zip(AXIS_NAMES, sizes, strict=False)))
    return found


def _factors(product: int, count: int, most: int | None = None) -> list[tuple[int, ...]]:
    """Descending tuples of `count` integers above 1 with this product; (1,) stands for one device."""
    if product == 1:
        return [(1,)] if count == 1 and most is None else []
    if count == 1:
        return [(product,)] if most is None or product <= most else []
    return [
        (first, *rest)
        for first in range(min(product, most or product), 1, -1)
        if product % first == 0
        for rest in _factors(product // first, count - 1, first)
    ]


def check_mesh(shape: Mapping[str, int], devices: int) -> dict[str, int]:
    """The mesh a user fixed, validated against the number of devices. Raises: MeshError."""
    if not isinstance(shape, Mapping) or not shape:
        raise MeshError(f"mesh must map axis names to sizes, got {shape!r}; write e.g. {{'data': 4, 'model': 2}}")
    for name, size in shape.items():
        whole = isinstance(size, (int, np.integer)) and not isinstance(size, bool)
        if not isinstance(name, str) or not whole or size < 1:
            raise MeshError(
                f"mesh axis {name!r} has size {size!r}; give strings as names and positive integers as sizes"
            )
    product = int(np.prod(list(shape.values()), dtype=np.int64))
    if product > devices:
        raise MeshError(
            f"the mesh {dict(shape)} needs {product} devices, but there are {devices}; "
            "make its sizes multiply to at most that"
        )
    return {name: int(size) for name, size in shape.items()}
