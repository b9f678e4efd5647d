"""The topology that devices at hand are: their chip by their kind, their shape by processes or coordinates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax

from cost_models import CHIPS, CostModelError, Topology, parse_topology
from planner.errors import MeshError
from planner.machine.aot_child import Place, place_of
from planner.machine.device_mesh import TORUS_DIMS, extents_of

DEVICE_KINDS = {
    "TPU v4": "v4",
    "TPU v5 lite": "v5e",
    "TPU v5e": "v5e",
    "TPU v5": "v5p",
    "TPU v5p": "v5p",
    "TPU v6 lite": "v6e",
    "TPU v6e": "v6e",
    "TPU7x": "tpu7x",
    "NVIDIA A100": "a100",
    "NVIDIA H100": "h100",
    "NVIDIA H200": "h200",
    "NVIDIA B200": "b200",
    "AMD Instinct MI300X": "mi300x",
}
"""Prefixes of `jax.Device.device_kind`, longest match first, and the chips they are."""
FLAT = ("v5e", "v6e")
"""Chips wired along two of their three coordinates."""


def named(topology: str) -> Topology:
    """The topology of a name. Raises: MeshError for an unknown one."""
    try:
        return parse_topology(topology)
    except CostModelError as error:
        raise MeshError(str(error)) from error


def topology_of(devices: Sequence[jax.Device]) -> tuple[Topology, tuple[str, ...]]:
    """The topology of these devices, and what it assumes of them. Raises: MeshError for devices of unknown kind."""
    first = devices[0]
    if first.platform == "cpu":
        return named(f"cpu:{len(devices)}"), ()
    chip = _chip(first)
    if first.platform == "gpu":
        nodes = len({device.process_index for device in devices})
        per_node, rest = divmod(len(devices), nodes)
        shape = f"{nodes}x{per_node}" if nodes > 1 and not rest else str(len(devices))
        return named(f"{chip}:{shape}"), ()
    places = _places(devices)
    slices = {place[0] for place in places}
    every = _places(first.client.devices())
    of_slice = {number: [place for place in places if place[0] == number] for number in slices}
    first_slice = min(slices)
    if len({frozenset(place[1:] for place in own) for own in of_slice.values()}) > 1:
        counts = ", ".join(str(len(own)) for own in of_slice.values())
        raise MeshError(
            f"the {len(devices)} devices lie in {len(slices)} slices, not at the same places in each ({counts} of each); "
            "give the same part of every slice, or a topology=cost_models.Topology.custom(...) whose first dim, of kind "
            "'network', are the slices"
        )
    one, notes = _of_places(chip, of_slice[first_slice], [place for place in every if place[0] == first_slice])
    return one.slices(len(slices)), notes


def topology_around(devices: Sequence[jax.Device]) -> tuple[str, dict[str, Any]]:
    """The name of all that devices are part of, slices or nodes, and what `get_topology_desc` takes besides.

    Raises: MeshError for devices of unknown kind, or TPUs without coordinates.
    """
    if devices[0].platform == "gpu":
        return topology_of(devices[0].client.devices())[0].name, {}
    every = _places(devices[0].client.devices())
    chip, (slices, *chips, cores) = _chip(devices[0]), extents_of(every)
    options: dict[str, Any] = {}
    if cores == 1 and CHIPS[chip].core_link_bytes_per_s:
        options["chip_config_name"] = "megacore"
    shape = "x".join(map(str, chips[:2] if chip in FLAT else chips))
    return f"{chip}:{shape}" + (f"*{slices}" if slices > 1 else ""), options


def _chip(device: jax.Device) -> str:
    matches = [prefix for prefix in DEVICE_KINDS if device.device_kind.startswith(prefix)]
    if not matches:
        raise MeshError(
            f"devices of kind {device.device_kind!r} are not in the hardware table; name a topology for their costs "
            f"(known chips: {', '.join(sorted(set(DEVICE_KINDS.values())))})"
        )
    return DEVICE_KINDS[max(matches, key=len)]


def _of_places(chip: str, places: Sequence[Place], every: Sequence[Place]) -> tuple[Topology, tuple[str, ...]]:
    """The topology of devices at these places among all those of their slice, and what it assumes of them."""
    dims = TORUS_DIMS[:2] if chip in FLAT else TORUS_DIMS
    full = extents_of(every)
    whole = named(f"{chip}:{'x'.join(str(full[d]) for d in dims)}")
    if full[-1] == 1:
        whole = whole.megacore()
    if len(places) == len(every) == whole.num_devices:
        return whole, ()
    extents = extents_of(places)
    if math.prod(extents) == len(places):
        return _part(whole, tuple(extents[d] for d in (*dims, -1))[: len(whole.shape)]), ()
    line = Topology.custom(
        name=f"{len(places)} of {whole.name}",
        shape=(len(places),),
        link_bytes_per_s=whole.link_bytes_per_s[:1],
        link_latency_s=whole.link_latency_s[:1],
        kind=("torus",),
        chip=whole.chip,
    )
    note = (
        f"the {len(places)} devices of {whole.name} fill no block: links are priced as those of a line of "
        f"{len(places)}; the devices of a whole block mostly do better"
    )
    return line, (note,)


def _part(whole: Topology, shape: tuple[int, ...]) -> Topology:
    """A block of a slice: a dim wraps around where the slice's does and the block has all of it."""
    wrap = tuple(w and n == all_ for w, n, all_ in zip(whole.wrap, shape, whole.shape, strict=True))
    chips = "x".join(str(n) for n, kind in zip(shape, whole.kind, strict=True) if kind == "torus")
    part = replace(whole, name=f"{whole.name.partition(':')[0]}:{chips}", shape=shape, wrap=wrap)
    try:
        if parse_topology(part.name) == part:
            return part
    except CostModelError:
        pass  # of a kind that is not sold as a slice of its own
    return replace(part, name=f"{'x'.join(map(str, shape))} of {whole.name}")


def _places(devices: Sequence[jax.Device]) -> list[Place]:
    places = [place_of(device) for device in devices]
    if any(place is None for place in places):
        raise MeshError(
            f"devices of kind {devices[0].device_kind!r} do not tell their coordinates; name a topology for their costs"
        )
    return [place for place in places if place is not None]
