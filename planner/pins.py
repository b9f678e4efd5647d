"""Pins: the user's own decisions, as patterns over names mapped to PartitionSpecs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from fnmatch import translate

import numpy as np
from jax.sharding import PartitionSpec

from planner.errors import PinError
from planner.graph import Graph

Pins = Mapping[str, PartitionSpec]


def match_pins(pins: Pins, graph: Graph) -> tuple[dict[int, PartitionSpec], dict[int, PartitionSpec]]:
    """(tensor id -> spec, output position -> spec) for all that the patterns name; a later pattern wins.

    A pattern is shell-style over the names of arguments, results and intermediates; `*` crosses "/".
    Raises: PinError for a pattern that matches nothing or a value that is no PartitionSpec.
    """
    tensors: dict[int, PartitionSpec] = {}
    outputs: dict[int, PartitionSpec] = {}
    for pattern, spec in pins.items():
        if not isinstance(spec, PartitionSpec):
            raise PinError(f"the pin {pattern!r} has the value {spec!r}; give a jax.sharding.PartitionSpec")
        matches = re.compile(translate(pattern)).match
        hit = False
        for tensor in graph.tensors:
            if tensor.kind != "constant" and matches(tensor.name.split("#")[0]):
                tensors[tensor.id] = spec
                hit = True
        for position, name in enumerate(graph.output_names):
            if matches(name):
                outputs[position] = spec
                hit = True
        if not hit:
            names = [graph.tensors[t].name for t in graph.inputs] + list(graph.output_names)
            close = get_close_matches(pattern, names, n=3, cutoff=0.3) or names[:3]
            raise PinError(f"the pin {pattern!r} matches no tensor; names look like {', '.join(map(repr, close))}")
    return tensors, outputs


def pinned_location(
    name: str, spec: PartitionSpec, shape: Sequence[int], mesh_shape: Mapping[str, int]
) -> tuple[int, ...]:
    """The row of locations of a pinned spec on a mesh.

    Raises: PinError for an unknown axis, too many dims, an axis used twice, an order of axes on one dim other than the
    mesh's, or a dim that does not divide evenly.
    """
    if len(spec) > len(shape):
        raise PinError(f"the pin on {name} has {len(spec)} entries, but its shape is {tuple(shape)}; give one per dim")
    axes = list(mesh_shape)
    location = [-1] * len(axes)
    for dim, entry in enumerate(spec):
        words = () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
        for word in words:
            if word not in mesh_shape:
                raise PinError(f"the pin on {name} names the axis {word!r}; the mesh has {', '.join(map(repr, axes))}")
            if location[axes.index(word)] >= 0:
                raise PinError(f"the pin on {name}, {spec}, uses the axis {word!r} twice; an axis splits one dim")
            location[axes.index(word)] = dim
        if list(words) != sorted(words, key=axes.index):
            raise PinError(f"the pin on {name}, {spec}, must list the axes of one dim in mesh order {tuple(axes)}")
        parts = int(np.prod([mesh_shape[word] for word in words], dtype=np.int64))
        if shape[dim] % parts:
            raise PinError(
                f"the pin on {name}, {spec}, splits dim {dim} of shape {tuple(shape)} into {parts} parts, "
                f"but {shape[dim]} is not divisible by {parts}; choose axes whose sizes divide it"
            )
        if parts == 1:
            for word in words:
                location[axes.index(word)] = -1
    return tuple(location)


def axes_named(pins: Pins) -> set[str]:
    """All axis names that pins mention."""
    named: set[str] = set()
    for spec in pins.values():
        for entry in spec:
            named.update(() if entry is None else (entry,) if isinstance(entry, str) else entry)
    return named
