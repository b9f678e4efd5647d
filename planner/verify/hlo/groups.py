"""Which devices a collective joins: its replica groups, and the mesh axes that they stand for."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import combinations, pairwise
from math import prod
from typing import Any

import numpy as np

from planner.errors import ArgumentError
from planner.verify.hlo.text import Instruction

ReplicaGroups = tuple[tuple[int, ...], ...]
"""ReplicaGroups of partition ids that communicate; for a permute, its (source, target) pairs."""


def groups_of(instruction: Instruction, num_devices: int) -> ReplicaGroups:
    """The groups of partitions of a collective instruction, from any of XLA's syntaxes, for one replica.

    Known are `{{0,1},{2,3}}`, `{}` (all), `[2,4]<=[4,2]T(1,0)` (iota) and `mesh['a'=4,'b'=2] {'a'}` (named axes).
    Raises: ArgumentError for another syntax.
    """
    attributes = instruction.attributes
    pairs = re.search(r"source_target_pairs=(\{\{.*?\}\}|\{\})", attributes)
    if pairs:
        return () if pairs[1] == "{}" else _groups(pairs[1], num_devices)
    match = re.search(
        r"replica_groups=(\{\{.*?\}\}|\{\}|\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?"
        r"|mesh\[[^\]]*\](?:, device_ids=\([^{]*\))? *\{[^}]*\})",
        attributes,
    )
    if match is None:
        if "replica_groups=" in attributes:
            start = attributes.index("replica_groups=")
            raise ArgumentError(f"unknown syntax of replica groups, got {attributes[start : start + 80]!r}; report it")
        return (tuple(range(num_devices)),)
    groups = _groups(match[1], num_devices)
    base = instruction.opcode.removesuffix("-start").removesuffix("-done")
    over_partitions = base in ("all-to-all", "ragged-all-to-all", "collective-permute", "collective-broadcast")
    channel = instruction.attribute("channel_id") is not None
    if channel and not over_partitions and "use_global_device_ids=true" not in attributes and groups:
        # ReplicaGroups then name replicas, of which there is one: every partition takes part.
        return (tuple(range(num_devices)),)
    return groups


@lru_cache(maxsize=1024)
def _groups(text: str, num_devices: int) -> ReplicaGroups:
    if text == "{}":
        return (tuple(range(num_devices)),)
    if text.startswith("{"):
        return tuple(tuple(map(int, group.split(","))) for group in re.findall(r"\{([\d,]+)\}", text))
    if text.startswith("["):
        shape, _, source = text.partition("<=")
        return _rows(_iota(source).reshape(_ints(shape)))
    match = re.match(r"mesh\[([^\]]*)\](?:, device_ids=\((.*)\))? *\{([^}]*)\}", text)
    if match is None:
        raise ArgumentError(f"unknown syntax of replica groups, got {text[:80]!r}; report it")
    sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", match[1])}
    devices = np.arange(num_devices)
    if match[2]:
        devices = _iota(match[2]) if match[2].startswith("[") else np.array(_ints(match[2]))
    wanted = [
        (name, int(before or 1), int(size or sizes[name]))
        for name, before, size in re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", match[3])
    ]
    # Each mesh axis is cut where a wanted part of it begins and ends.
    dims: list[int] = []
    chosen: dict[tuple[str, int], int] = {}
    for name, size in sizes.items():
        cuts = sorted({1, size, *(c for n, b, s in wanted if n == name for c in (b, b * s))})
        for low, high in pairwise(cuts):
            chosen[(name, low)] = len(dims)
            dims.append(high // low)
    last = [
        position
        for name, before, size in wanted
        for (axis, low), position in chosen.items()
        if axis == name and before <= low < before * size
    ]
    first = [d for d in range(len(dims)) if d not in last]
    return _rows(devices.reshape(dims).transpose(first + last).reshape(-1, prod(dims[d] for d in last)))


def _ints(text: str) -> list[int]:
    return [int(word) for word in re.findall(r"\d+", text)]


def _iota(text: str) -> np.ndarray[Any, Any]:
    dims, _, order = text.partition("T")
    array = np.arange(prod(_ints(dims))).reshape(_ints(dims))
    return (array.transpose(_ints(order)) if order else array).reshape(-1)


def _rows(array: np.ndarray[Any, Any]) -> ReplicaGroups:
    return tuple(tuple(map(int, row)) for row in array.tolist())


@lru_cache(maxsize=1024)
def axes_of(groups: ReplicaGroups, mesh_shape: tuple[int, ...], axis_names: tuple[str, ...]) -> tuple[str, ...] | None:
    """The mesh axes whose devices the groups bring together, in mesh order; None when it is no set of axes.

    Partition ids number the mesh in row-major order. Axes of size 1 are never part of the answer. The order of devices
    inside a group is ignored.
    """
    found = frozenset(map(frozenset, groups))
    size = len(groups[0]) if groups else 1
    axes = [a for a, extent in enumerate(mesh_shape) if extent > 1]
    devices = np.arange(prod(mesh_shape)).reshape(mesh_shape)
    for count in range(len(axes) + 1):
        for subset in combinations(axes, count):
            if prod(mesh_shape[a] for a in subset) != size:
                continue
            order = [a for a in range(len(mesh_shape)) if a not in subset] + list(subset)
            if frozenset(map(frozenset, devices.transpose(order).reshape(-1, size).tolist())) == found:
                return tuple(axis_names[a] for a in subset)
    return None


@lru_cache(maxsize=1024)
def permute_axes(pairs: ReplicaGroups, mesh_shape: tuple[int, ...], axis_names: tuple[str, ...]) -> tuple[str, ...]:
    """The mesh axes along which some (source, target) pair differs, in mesh order."""
    if not pairs:
        return ()
    source, target = (np.stack(np.unravel_index([p[side] for p in pairs], mesh_shape)) for side in (0, 1))
    return tuple(name for name, moved in zip(axis_names, (source != target).any(axis=1), strict=True) if moved)


def chain_length(pairs: ReplicaGroups) -> int:
    following = {source: target for source, target in pairs if source != target}
    longest, seen = 1, set[int]()
    starts = [s for s in following if s not in set(following.values())] + list(following)
    for start in starts:
        length, device = 1, start
        while device in following and device not in seen:
            seen.add(device)
            device = following[device]
            length += device != start
        longest = max(longest, length)
    return longest
