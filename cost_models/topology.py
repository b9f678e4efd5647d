"""Topologies: how many devices there are and what wires connect them, under names such as "v5e:4x4" and "h100:4x8".

A name is a chip and a physical shape:

    v5e:4x4, v6e:16x16          chips along x and y, one JAX device each; a dim wraps around where it has all 16 chips
    v5p:4x4x4                   chips along x, y, z, one JAX device each; all dims wrap where all are multiples of 4
    v4:2x2x1, tpu7x:4x4x4       the same, but two JAX devices (TensorCores) per chip: 8 and 128 devices; a last physical
                                dim of 2 joins them, and each has half of the chip's links
    h100:8, h100:4x8            GPUs of one node; nodes x GPUs per node (nodes of 8; more GPUs than a node fill nodes)
    v5e:16x16*4                 4 slices, joined by the data-centre network
    cpu:8                       virtual devices of one host

The figures come from `hardware.CHIPS`. Wraparound: Google's pages on v4, v5p, v5e and v6e slices, and
https://jax-ml.github.io/scaling-book/tpus.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cost_models.errors import CostModelError
from cost_models.hardware import CHIPS, PCIE_BYTES_PER_S, Chip
from cost_models.network.links import Link, LinkKind
from cost_models.network.mapping import Dim, device_order, map_mesh

_TORUS_2D_EXTENT = 16
_HOST_CHIPS = (2, 2)
"""Chips of one host along the first dims of a torus: a tray of 4, one machine of Cloud TPU each
(jax-ml.github.io/scaling-book/tpus), and one process of libtpu 0.0.42 on all chips of the table."""
_ONE_HOST: dict[str, tuple[int, ...]] = {"v5e": (2, 4), "v6e": (2, 4)}
"""Slices of more chips that are one machine all the same: ct5lp-hightpu-8t, ct6e-standard-8t
(https://docs.cloud.google.com/tpu/docs/v5e, .../v6e)."""
PER_DOUBLING = 0.038
"""What a step takes more for each doubling of the slices, beside what they exchange: fitted to published train steps on 1
to 32 slices of v5e and 1 to 2 of v4 and v5p, by `benchmarks.published`."""
_LARGEST: dict[str, tuple[int, ...]] = {
    "v4": (12, 16, 16),
    "v5e": (16, 16),
    "v5p": (16, 16, 24),
    "v6e": (16, 16),
    "tpu7x": (16, 16, 36),
}
EXAMPLES = (
    "v4:2x2x1, v5e:4x4, v5p:4x4x4, v6e:16x16, v5e:16x16*4 (slices), tpu7x:2x2x1, a100:8, h100:4x8, h200:8, b200:8, "
    "mi300x:8, cpu:8"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Devices in a physical shape, all of one chip, and the wires along every physical dim.

    Every tuple has one entry per physical dim; `wrap`, `kind`, `link_bytes_per_s` and `link_latency_s` are those of
    `links.Segment`.
    """

    name: str
    chip: Chip
    shape: tuple[int, ...]
    wrap: tuple[bool, ...]
    kind: tuple[LinkKind, ...]
    link_bytes_per_s: tuple[float, ...]
    link_latency_s: tuple[float, ...]

    @property
    def num_devices(self) -> int:
        """The number of JAX devices."""
        return math.prod(self.shape)

    @property
    def nodes(self) -> int:
        """How many nodes or slices a network joins; 1 where there is none."""
        return self.shape[0] if self.kind[0] == "network" else 1

    @property
    def slowdown(self) -> float:
        """How much longer computing takes on several slices of a torus, which wait for the slowest of them."""
        return 1 + PER_DOUBLING * math.log2(self.nodes) if "torus" in self.kind else 1.0

    @property
    def hosts(self) -> npt.NDArray[np.int64]:
        """The host of every device, numbered from 0; shape: `shape`.

        A host has the devices of a node or of a switch, on a torus a tray of 2 x 2 chips, or a line of 4.
        """
        torus = [extent for extent, kind in zip(self.shape, self.kind, strict=True) if kind == "torus"]
        chips = list(_HOST_CHIPS if len(torus) > 1 else (math.prod(_HOST_CHIPS),))
        if tuple(sorted(torus)) == _ONE_HOST.get(self.chip.name):
            chips = torus.copy()
        found = np.zeros(self.shape, np.int64)
        for d, (extent, kind) in enumerate(zip(self.shape, self.kind, strict=True)):
            size = 1 if kind == "network" else extent
            if kind == "torus":
                size = chips.pop(0) if chips else 1
            along = np.arange(extent) // size
            found = found * (int(along[-1]) + 1) + along.reshape(-1, *(1,) * (len(self.shape) - d - 1))
        return found

    def links(self, mesh_shape: Sequence[int]) -> tuple[Link, ...] | None:
        """The link of every axis of a mesh, or None where the mesh does not fit; `mapping` says how it is chosen.

        A mesh of fewer devices than there are uses a block of them.
        """
        return map_mesh(self._dims(), tuple(mesh_shape))

    def order(self, mesh_shape: Sequence[int]) -> npt.NDArray[np.int64] | None:
        """The device of every position of a mesh, as an index in the row-major order of `shape`, where `links` has it.

        Shape: `mesh_shape`. None where the mesh does not fit.
        """
        return device_order(self._dims(), tuple(mesh_shape))

    def slices(self, count: int) -> Topology:
        """So many of it, joined by the data-centre network; itself for one."""
        if count == 1:
            return self
        return dataclasses.replace(
            self,
            name=f"{self.name}*{count}",
            shape=(count, *self.shape),
            wrap=(False, *self.wrap),
            kind=("network", *self.kind),
            link_bytes_per_s=(self.chip.network_bytes_per_s, *self.link_bytes_per_s),
            link_latency_s=(self.chip.network_latency_s, *self.link_latency_s),
        )

    def multiplied(self, times: int) -> Topology:
        """So many times as large along its first physical dim: that many more nodes or slices, or a longer slice."""
        shape = (times * self.shape[0], *self.shape[1:])
        return dataclasses.replace(self, name=f"{times} times {self.name}", shape=shape)

    def megacore(self) -> Topology:
        """The same chips with one JAX device each, whose two cores work as one; itself where a chip is one device."""
        chip = self.chip
        if not chip.core_link_bytes_per_s:
            return self
        whole = dataclasses.replace(
            chip,
            name=f"{chip.name} megacore",
            peak_flops_per_s={dtype: 2 * rate for dtype, rate in chip.peak_flops_per_s.items()},
            vector_flops_per_s=2 * chip.vector_flops_per_s,
            hbm_bytes=2 * chip.hbm_bytes,
            hbm_bytes_per_s=2 * chip.hbm_bytes_per_s,
            core_link_bytes_per_s=0.0,
            network_bytes_per_s=2 * chip.network_bytes_per_s,
            host_link_bytes_per_s=2 * chip.host_link_bytes_per_s,
            host_memory_bytes=2 * chip.host_memory_bytes,
            static_watts=2 * chip.static_watts,
            source=f"both cores together; {chip.source}",
        )
        return dataclasses.replace(
            self,
            name=f"{self.name} megacore",
            chip=whole,
            shape=self.shape[:-1],
            wrap=self.wrap[:-1],
            kind=self.kind[:-1],
            link_bytes_per_s=tuple(
                chip.link_bytes_per_s if kind == "torus" else 2 * rate
                for kind, rate in zip(self.kind[:-1], self.link_bytes_per_s[:-1], strict=True)
            ),
            link_latency_s=self.link_latency_s[:-1],
        )

    def _dims(self) -> tuple[Dim, ...]:
        rows = zip(self.shape, self.wrap, self.link_bytes_per_s, self.link_latency_s, self.kind, strict=True)
        return tuple(Dim(extent=e, wrap=w, bytes_per_s=b, latency_s=s, kind=k) for e, w, b, s, k in rows)

    @staticmethod
    def custom(
        *,
        name: str,
        shape: Sequence[int],
        link_bytes_per_s: Sequence[float],
        link_latency_s: Sequence[float] | None = None,
        kind: Sequence[LinkKind] | None = None,
        wrap: Sequence[bool] | None = None,
        chip: Chip | None = None,
        flops_per_s: float | None = None,
        hbm_bytes: float | None = None,
        hbm_bytes_per_s: float | None = None,
    ) -> Topology:
        """A topology of your own: `shape` physical dims, each with its bandwidth in bytes/s per direction and latency.

        Parameters: `kind` defaults to "switch" for every dim (the first may be a "network", which the leading axes of a
        mesh cross), `wrap` to False, `link_latency_s` to 0. The chip is
        either `chip`, or made of `flops_per_s` (all dtypes, both units), `hbm_bytes` and `hbm_bytes_per_s`; a figure
        beside `chip` replaces that of the chip.
        Raises: CostModelError when the lengths differ, a size or rate is not positive, or a figure of the chip lacks.
        """
        count = len(shape)
        latencies = tuple(link_latency_s) if link_latency_s is not None else (0.0,) * count
        kinds: tuple[LinkKind, ...] = tuple(kind) if kind is not None else ("switch",) * count
        wraps = tuple(wrap) if wrap is not None else (False,) * count
        for label, values in (
            ("link_bytes_per_s", link_bytes_per_s),
            ("link_latency_s", latencies),
            ("kind", kinds),
            ("wrap", wraps),
        ):
            if len(values) != count:
                raise CostModelError(
                    f"{label} has {len(values)} entries for the {count} dims of shape {tuple(shape)}; give one per dim"
                )
        if not shape or any(size < 1 for size in shape):
            raise CostModelError(f"the shape of a topology needs sizes of 1 or more, got {tuple(shape)}")
        if any(rate <= 0 for rate in link_bytes_per_s) or any(latency < 0 for latency in latencies):
            raise CostModelError(
                f"links need positive bytes per second and latencies of 0 or more, got {tuple(link_bytes_per_s)} and"
                f" {latencies}"
            )
        return Topology(
            name=name,
            chip=_custom_chip(name, chip, flops_per_s, hbm_bytes, hbm_bytes_per_s),
            shape=tuple(shape),
            wrap=wraps,
            kind=kinds,
            link_bytes_per_s=tuple(float(rate) for rate in link_bytes_per_s),
            link_latency_s=tuple(float(latency) for latency in latencies),
        )


def parse_topology(name: str) -> Topology:
    """The topology that a name such as "v5e:4x4" stands for; the module says what names there are.

    Raises: CostModelError for an unknown chip, a malformed shape, or one that the chip is not built in.
    """
    chip_name, _, shape_text = name.strip().lower().partition(":")
    shape_text, times, count_text = shape_text.partition("*")
    counted = not times or re.fullmatch(r"[1-9]\d{0,8}", count_text)
    if chip_name not in CHIPS or not re.fullmatch(r"[1-9]\d{0,8}(x[1-9]\d{0,8})*", shape_text) or not counted:
        raise CostModelError(
            f"unknown topology {name[:80]!r}; a name is CHIP:SHAPE with a chip of {', '.join(CHIPS)}, for example "
            f"{EXAMPLES}"
        )
    chip = CHIPS[chip_name]
    shape = tuple(int(size) for size in shape_text.split("x"))
    if chip.platform == "tpu":
        return _tpu(name.strip().partition("*")[0], chip, shape).slices(int(count_text or 1))
    if times:
        raise CostModelError(f"only TPUs come in slices, got {name!r}; write nodes x GPUs per node, as in h100:4x8")
    if chip.platform == "gpu":
        return _gpu(name, chip, shape)
    if len(shape) != 1:
        raise CostModelError(f"a cpu topology has one number, its devices, got {name!r}; write cpu:{math.prod(shape)}")
    return Topology(
        name=name,
        chip=chip,
        shape=shape,
        wrap=(False,),
        kind=("switch",),
        link_bytes_per_s=(chip.link_bytes_per_s,),
        link_latency_s=(chip.link_latency_s,),
    )


def _tpu(name: str, chip: Chip, shape: tuple[int, ...]) -> Topology:
    largest = _LARGEST[chip.name]
    fits = all(a <= b for a, b in zip(sorted(shape), sorted(largest), strict=False))
    if len(shape) != len(largest) or not fits:
        raise CostModelError(
            f"a {chip.name} slice has {len(largest)} dims and at most {'x'.join(map(str, largest))} chips, got "
            f"{name!r}; give such a shape"
        )
    if len(shape) == 2:
        wrap = tuple(size == _TORUS_2D_EXTENT for size in shape)
    else:
        wrap = (all(size % 4 == 0 for size in shape),) * 3
    rates = (chip.link_bytes_per_s,) * len(shape)
    kinds = _kinds("torus", len(shape))
    if chip.core_link_bytes_per_s:
        shape, wrap, kinds = (*shape, 2), (*wrap, False), kinds + _kinds("switch", 1)
        rates = (*(rate / 2 for rate in rates), chip.core_link_bytes_per_s)
    return Topology(
        name=name,
        chip=chip,
        shape=shape,
        wrap=wrap,
        kind=kinds,
        link_bytes_per_s=rates,
        link_latency_s=(chip.link_latency_s,) * len(shape),
    )


def _kinds(kind: LinkKind, count: int) -> tuple[LinkKind, ...]:
    return (kind,) * count


def _gpu(name: str, chip: Chip, shape: tuple[int, ...]) -> Topology:
    if len(shape) == 1:
        count = shape[0]
        shape = (1, count) if count <= chip.node_size else (count // chip.node_size, chip.node_size)
        if math.prod(shape) != count:
            raise CostModelError(
                f"{name!r} does not fill nodes of {chip.node_size}; give a multiple, or nodes x GPUs per node"
            )
    if len(shape) != 2 or shape[1] > chip.node_size:
        raise CostModelError(
            f"a {chip.name} topology is GPUs or nodes x GPUs with at most {chip.node_size} GPUs per node, got {name!r};"
            f" for example {chip.name}:8 or {chip.name}:4x8"
        )
    wired = chip.name == "mi300x"
    rate = chip.link_bytes_per_s / (chip.node_size - 1) if wired else chip.link_bytes_per_s
    return Topology(
        name=name,
        chip=chip,
        shape=shape,
        wrap=(False, False),
        kind=("network", "full" if wired else "switch"),
        link_bytes_per_s=(chip.network_bytes_per_s, rate),
        link_latency_s=(chip.network_latency_s, chip.link_latency_s),
    )


def _custom_chip(
    name: str,
    chip: Chip | None,
    flops_per_s: float | None,
    hbm_bytes: float | None,
    hbm_bytes_per_s: float | None,
) -> Chip:
    given = {"flops_per_s": flops_per_s, "hbm_bytes": hbm_bytes, "hbm_bytes_per_s": hbm_bytes_per_s}
    missing = [label for label, value in given.items() if value is None]
    if chip is None and missing:
        raise CostModelError(
            f"the custom topology {name!r} lacks {', '.join(missing)}; give them, or chip=cost_models.CHIPS[...]"
        )
    if any(value is not None and value <= 0 for value in given.values()):
        raise CostModelError(f"the figures of a custom chip must be positive, got {given}")
    changed = chip or dataclasses.replace(
        CHIPS["cpu"],
        name=name,
        host_link_bytes_per_s=PCIE_BYTES_PER_S,
        joules_per_flop=0.0,
        joules_per_hbm_byte=0.0,
        joules_per_link_byte=0.0,
        static_watts=0.0,
    )
    if chip is None or any(value is not None for value in given.values()):
        changed = dataclasses.replace(changed, source=f"given by the user of the topology {name!r}")
    if flops_per_s is not None:
        changed = dataclasses.replace(
            changed, peak_flops_per_s={}, vector_flops_per_s=flops_per_s, matrix_efficiency=1.0, efficiencies={}
        )
    if hbm_bytes is not None:
        changed = dataclasses.replace(changed, hbm_bytes=int(hbm_bytes))
    if hbm_bytes_per_s is not None:
        changed = dataclasses.replace(changed, hbm_bytes_per_s=hbm_bytes_per_s)
    return changed
