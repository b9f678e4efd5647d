"""Compile targets: what a compiler must be told to build for a topology that is not here."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, Literal

from cost_models import CostModelError, Topology, parse_topology
from planner.errors import ArgumentError, MeshError
from planner.machine.aot_child import Place
from planner.machine.device_mesh import lay_out

GPU_CONFIGS = ("a100", "h100", "h200", "b200")
"""Chips whose target configuration lies in `gpu_configs`."""
_MEASURED = ("h100", "h200", "b200")
"""Chips of which XLA's compiler has measurements; for others it refuses to note what instructions take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileTarget:
    """What to compile for: `topology` and `options` as `jax.experimental.topologies.get_topology_desc` takes them.

    `places` are those of the devices in the order of the mesh, as `aot_child.place_of` tells them. `compiler_options`
    make the compiler note in its text what it thinks that instructions take, where it can. `capacity_bytes` is the memory
    of a device where the compiler does not say of its own accord that a program does not fit, else None.
    """

    platform: Literal["tpu", "cuda", "cpu"]
    topology: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    places: tuple[Place, ...] = ()
    compiler_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    capacity_bytes: float | None = None


def compile_target(
    name: str, sizes: Sequence[int], options: Mapping[str, Any] | None = None, places: Sequence[Place] | None = None
) -> CompileTarget:
    """What to compile a mesh of these sizes for on the topology of a name.

    Parameters: `name`, as `cost_models.parse_topology` takes it; for a GPU that is not in `GPU_CONFIGS`, the shape alone
    (`1x<nodes>x<GPUs per node>`) and its configuration among the options; `options`, what `get_topology_desc` shall take
    besides; `places`, where the devices of the mesh are, by default where a plan lays it.
    Raises: ArgumentError for an unknown name, a chip that no compiler is known to build for, or a mesh that does not fit.
    """
    if "target_config" in (options or {}) and re.fullmatch(r"\d+x\d+x\d+", name):
        shape = {"topology": name}
        return CompileTarget(
            platform="cuda", topology=name, options={**(options or {}), **shape}, places=tuple(places or ())
        )
    try:
        topology = parse_topology(name)
    except CostModelError as error:
        raise ArgumentError(str(error)) from error
    given = dict(options or {})
    match topology.chip.platform:
        case "tpu":
            return _tpu(topology, tuple(sizes), given, places)
        case "gpu":
            return _gpu(topology, tuple(sizes), given, places)
        case _:
            return CompileTarget(platform="cpu", topology=name, options=given)


def why_no_target(name: str) -> str:
    """Why nothing can be compiled for the topology of a name without its devices, or ""."""
    try:
        chip = parse_topology(name).chip
    except CostModelError:
        return f"the topology {name} is not one that compilers know: nothing can be compiled for it without its devices"
    if chip.platform == "gpu" and chip.name not in GPU_CONFIGS:
        return _no_config(chip.name)
    return "" if chip.platform != "cpu" else f"compiling for {name} without devices is not supported"


def _no_config(chip: str) -> str:
    return (
        f"no compiler for {chip} can be told what to build for without one at hand; plans are compiled without a GPU for "
        f"{', '.join(GPU_CONFIGS)}"
    )


@cache
def gpu_config(chip: str) -> str:
    """The `GpuTargetConfigProto` of a chip, as text. Raises: ArgumentError for a chip that has none."""
    if chip not in GPU_CONFIGS:
        raise ArgumentError(_no_config(chip))
    return (resources.files("planner.machine") / "gpu_configs" / f"{chip}.txtpb").read_text()


def _gpu(
    topology: Topology, sizes: tuple[int, ...], options: dict[str, Any], places: Sequence[Place] | None
) -> CompileTarget:
    chip = topology.chip
    options.setdefault("target_config", gpu_config(chip.name))
    nodes, gpus = topology.shape
    if places is None:
        every: list[None] = [None] * topology.num_devices
        places = [(int(i),) for i in _order(sizes, every, topology)]
    return CompileTarget(
        platform="cuda",
        topology=topology.name,
        options=options | {"topology": f"1x{nodes}x{gpus}"},
        places=tuple(places),
        compiler_options={"xla_gpu_collect_cost_model_stats": True} if chip.name in _MEASURED else {},
        capacity_bytes=chip.hbm_bytes,
    )


def _tpu(
    topology: Topology, sizes: tuple[int, ...], options: dict[str, Any], places: Sequence[Place] | None
) -> CompileTarget:
    name = topology.name.partition("*")[0]
    if name.endswith(":1x1"):
        options.setdefault("chips_per_host_bounds", [1, 1, 1])
    if topology.nodes > 1:
        options["num_slices"] = topology.nodes
    if places is None:
        known = topology.megacore() if options.get("chip_config_name") == "megacore" else topology
        cores = known.shape[-1] if known.kind[-1] != "torus" else 1
        chips = [extent for extent, kind in zip(known.shape, known.kind, strict=True) if kind == "torus"]
        every = list(itertools.product(*map(range, (known.nodes, *chips, *(1,) * (3 - len(chips)), cores))))
        places = [every[i] for i in _order(sizes, every, known)]
    return CompileTarget(platform="tpu", topology=name, options=options, places=tuple(places))


def _order(sizes: tuple[int, ...], places: Sequence[Place | None], topology: Topology) -> list[int]:
    """The devices of a mesh in its order, as their indices. Raises: ArgumentError."""
    try:
        return [int(i) for i in lay_out(sizes, places, topology).order.flat]
    except MeshError as error:
        raise ArgumentError(f"topology {topology.name}: {error}") from error
