"""Mesh factorizations, and what every collective costs along every set of axes of a mesh."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from cost_models import CostModel, Objective, Topology
from planner.compiler.collectives.lowering import all_reduced_bytes
from planner.compiler.emission.options import scatters_over_slices
from planner.compiler.model import CompilerModel
from planner.compiler.targets.table import CPU, compiler_of
from planner.errors import MeshError

Shape = Mapping[str, int]
ShapeKey = tuple[tuple[str, int], ...]
"""A shape as a value: two meshes are the same where their keys are equal, which the order of their axes is part of."""


def shape_key(shape: Shape) -> ShapeKey:
    """The shape as a value, by which tables know a mesh."""
    return tuple(shape.items())


def mesh_text(shape: Shape) -> str:
    """A mesh as a person writes it: "data=4,model=2"."""
    return ",".join(f"{name}={size}" for name, size in shape.items())


MAX_AXES = 6
"""Most axes larger than 1: where they lie is sought among all their orders, and they have a table of all their sets."""
AXIS_NAMES = ("x", "y", "z")
"""Of the axes of a searched mesh, unless a user names them."""
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")


Share = tuple[float, float, float]
"""What counts of a fixed price, of that of bytes, and of the fixed price of what is too large to be combined."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Mesh:
    """A logical mesh with the price of its collectives.

    `shape` has all its axes. Those of size 1 split nothing, so planning knows the others alone: `names[a]` and
    `sizes[a]` are those of axis a of locations, strategies and bit sets. `fixed[kind][mask]` and `per_byte[kind][mask]`
    are the value of one collective over the axes in the bit set `mask` and of each of its bytes (the larger of local
    operand and result), in the objective's unit; `fixed_seconds` and `seconds_per_byte` are the same in seconds.
    `all_reduced[kind][mask]` are the bytes up to which the compiler makes an all-reduce of it
    (`compiler.collectives.lowering`), inf where it always does: the tables have the price of that then. `on_chip_bytes`
    is the memory for arrays on each chip, and `kernel_seconds` the least that a kernel takes. `chip` is its name,
    `compiler` the model of its compiler. Matmuls take at least the flops of a device over `matmul_flops_per_s`. A mesh of
    one device may stand for several, at no more than what the parts of a program take on all of these: `pooled_devices`.
    `border_on_chip`: the operands and results of the body of an op are on the chip, if small. `host_per_byte` is the value
    of a byte that goes to the host or comes from it, `host_seconds_per_byte` its seconds. Sums are combined up to
    `combined_bytes`.
    """

    shape: Mapping[str, int]
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    fixed: Mapping[str, npt.NDArray[np.float64]]
    per_byte: Mapping[str, npt.NDArray[np.float64]]
    fixed_seconds: Mapping[str, npt.NDArray[np.float64]]
    seconds_per_byte: Mapping[str, npt.NDArray[np.float64]]
    all_reduced: Mapping[str, npt.NDArray[np.float64]]
    on_chip_bytes: float = 0.0
    border_on_chip: bool = False
    kernel_seconds: float = 0.0
    pooled_devices: int = 1
    chip: str = ""
    compiler: CompilerModel = CPU
    matmul_flops_per_s: float = math.inf
    attention_efficiency: float = 1.0
    matrix_lanes: int = 128
    half_rate_depths: Mapping[str, float] = field(default_factory=dict[str, float])
    host_seconds_per_byte: float = 0.0
    host_per_byte: float = 0.0
    combined_bytes: float = math.inf

    @property
    def num_devices(self) -> int:
        """The product of the axis sizes."""
        return math.prod(self.sizes)

    def alone(self, *, border_on_chip: bool) -> Mesh:
        """The mesh of one of the devices, which moves nothing."""
        tables = (self.fixed, self.per_byte, self.fixed_seconds, self.seconds_per_byte, self.all_reduced)
        fixed, per_byte, fixed_seconds, seconds_per_byte, all_reduced = (
            {kind: np.zeros(1) for kind in table} for table in tables
        )
        return replace(
            self,
            shape=dict.fromkeys(self.shape, 1),
            names=(),
            sizes=(),
            fixed=fixed,
            per_byte=per_byte,
            fixed_seconds=fixed_seconds,
            seconds_per_byte=seconds_per_byte,
            all_reduced=all_reduced,
            pooled_devices=1,
            border_on_chip=border_on_chip,
        )

    def mask_sizes(self) -> npt.NDArray[np.int64]:
        """The number of devices of the group of every bit set of axes."""
        return np.array(parts_of_masks(self.sizes))

    def axes(self, mask: int) -> tuple[str, ...]:
        """The names of the axes in a bit set."""
        return tuple(name for a, name in enumerate(self.names) if mask >> a & 1)

    def mask(self, axes: Collection[str]) -> int:
        """The bit set of these axes."""
        return sum(1 << a for a, name in enumerate(self.names) if name in axes)

    def locations(self, dim_of: Mapping[str, int]) -> tuple[int, ...]:
        """The row of locations in which these axes split these dims, and others nothing."""
        return tuple(dim_of.get(name, -1) for name in self.names)

    def runs_as(self, kind: str, mask: int, bytes: float) -> str:
        """What the compiler makes of a collective of so many bytes: its kind, or "all-reduce"."""
        return "all-reduce" if bytes <= self.all_reduced[kind][mask] else kind

    def values(
        self,
        kind: str,
        masks: npt.NDArray[np.int64],
        bytes: npt.NDArray[np.float64],
        share: Share,
    ) -> npt.NDArray[np.float64]:
        """The values of collectives as they are compiled, elementwise, of which a `share` counts."""
        small = bytes <= self.all_reduced[kind][masks]
        fixed, per_byte = (
            np.where(small, table["all-reduce"][masks], table[kind][masks]) for table in (self.fixed, self.per_byte)
        )
        return self.latency_share(share, bytes) * fixed + share[1] * per_byte * bytes

    def latency_share(self, share: Share, bytes: npt.NDArray[np.float64] | float) -> npt.NDArray[np.float64]:
        """What counts of a fixed price: of sums that are combined the more, the larger they are; shape as `bytes`."""
        together, _, alone = share
        return together + (alone - together) * np.minimum(np.asarray(bytes) / self.combined_bytes, 1.0)

    def collective_seconds(self, kind: str, mask: int, bytes: float) -> float:
        """The seconds of one run of a collective of so many bytes, as it is compiled."""
        kind = self.runs_as(kind, mask, bytes)
        return float(self.fixed_seconds[kind][mask] + self.seconds_per_byte[kind][mask] * bytes)


def parts_of_masks(sizes: Sequence[int]) -> list[int]:
    """The product of the sizes in every bit set of axes, by bit set."""
    found = [1]
    for size in sizes:
        found += [size * parts for parts in found]
    return found


def make_mesh(
    shape: Mapping[str, int],
    topology: Topology,
    model: CostModel,
    objective: Objective,
    compiler: CompilerModel | None = None,
) -> Mesh:
    """The mesh of this shape on a topology, priced, by default for the compiler of its chip.

    Raises: MeshError when the topology cannot hold it.
    """
    large = {name: size for name, size in shape.items() if size > 1}
    names, sizes = tuple(large), tuple(large.values())
    links = topology.links(sizes)
    if links is None:
        raise MeshError(
            f"the mesh {dict(shape)} does not fit the topology {topology.name} of {topology.num_devices} devices; "
            "its sizes must multiply to at most that and divide its physical dims"
        )
    parts, compiler = parts_of_masks(sizes), compiler or compiler_of(topology.chip)
    lowered = compiler.runs("reduce-scatter-decomposer")
    slice_scatters = compiler.runs("slice-scatters") and scatters_over_slices(topology)
    tables = [{kind: np.zeros(len(parts)) for kind in COLLECTIVES} for _ in range(5)]
    for kind in COLLECTIVES:
        for mask, group in enumerate(parts[1:], 1):
            all_reduced = 0.0
            if group > 1 and lowered:
                all_reduced = all_reduced_bytes(
                    kind, topology, group=group, devices=parts[-1], slice_scatters=slice_scatters
                )
            run = "all-reduce" if all_reduced == math.inf else kind
            wires = tuple(link for a, link in enumerate(links) if mask >> a & 1)
            affine = model.collective_affine(run, wires)
            value = objective.collective(run, wires, affine)
            for table, number in zip(tables, (*value, *affine, all_reduced), strict=True):
                table[kind][mask] = number
    host_seconds = 1 / topology.chip.host_link_bytes_per_s
    _, host_per_byte = objective.collective("collective-permute", (), (0.0, host_seconds))
    return Mesh(
        shape=dict(shape),
        names=names,
        sizes=sizes,
        fixed=tables[0],
        per_byte=tables[1],
        fixed_seconds=tables[2],
        seconds_per_byte=tables[3],
        all_reduced=tables[4],
        on_chip_bytes=topology.chip.on_chip_bytes if compiler.runs("memory-space-assignment") else 0.0,
        kernel_seconds=topology.chip.kernel_latency_s,
        chip=topology.chip.name,
        compiler=compiler,
        matmul_flops_per_s=topology.chip.peak("bfloat16", "matrix") * topology.chip.efficiency("bfloat16"),
        attention_efficiency=topology.chip.attention_efficiency,
        matrix_lanes=topology.chip.matrix_lanes,
        half_rate_depths=topology.chip.half_rate_depths,
        host_seconds_per_byte=host_seconds,
        host_per_byte=host_per_byte,
        combined_bytes=compiler.combined_bytes,
    )


def factorizations(topology: Topology, *, max_axes: int = 3, names: Sequence[str] = AXIS_NAMES) -> list[dict[str, int]]:
    """All meshes of up to `max_axes` axes (sizes descending) for every device count that divides the topology's.

    All devices first, then fewer; within one count, fewer axes first. Only meshes the topology can hold. The order of
    the axes is no choice of its own, as an axis may split any dim and `Topology.links` gives each the best wires; only
    across a network between nodes or slices it says which axes lie there.
    """
    found: list[dict[str, int]] = []
    total = topology.num_devices
    for devices in sorted((d for d in range(1, total + 1) if total % d == 0), reverse=True):
        for axes in range(1, max_axes + 1):
            for sizes in _factors(devices, axes):
                for order in _orders(sizes, topology):
                    found.append(dict(zip(names, order, strict=False)))
    return found


def _orders(sizes: tuple[int, ...], topology: Topology) -> list[tuple[int, ...]]:
    """The orders of axes that a topology can hold, of those whose axes cross its network alike the first."""
    if topology.nodes == 1:
        return [sizes] if topology.links(sizes) is not None else []
    found: dict[tuple[tuple[int, int], ...], tuple[int, ...]] = {}
    for order in dict.fromkeys(itertools.permutations(sizes)):
        links = topology.links(order)
        if links is None:
            continue
        across = [math.prod(s.extent for s in link.dims if s.kind == "network") for link in links]
        found.setdefault(tuple(sorted(zip(order, across, strict=True))), order)
    return list(found.values())


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
    large = [name for name, size in shape.items() if size > 1]
    if len(large) > MAX_AXES:
        raise MeshError(
            f"the mesh {dict(shape)} has {len(large)} axes larger than 1, but at most {MAX_AXES} are planned; make one "
            "axis of those that always split the same"
        )
    product = math.prod(map(int, shape.values()))
    if product > devices:
        raise MeshError(
            f"the mesh {dict(shape)} needs {product} devices, but there are {devices}; "
            "make its sizes multiply to at most that"
        )
    return {name: int(size) for name, size in shape.items()}
