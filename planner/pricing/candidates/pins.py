"""Pins: the user's own decisions, as patterns over names mapped to PartitionSpecs."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import translate
from typing import Any

from jax.sharding import PartitionSpec

from planner.errors import PinError
from planner.program.graph import Graph
from planner.program.spec_entries import axes_of_entry, parts_over

Pins = Mapping[str, PartitionSpec]

WILD = frozenset("*?[")
"""Letters that make a name a pattern."""
_NUMBER = re.compile(r"(#\d+)+$")


def check_pins(pins: Any) -> dict[str, PartitionSpec]:
    """The pins a user gave, validated as far as they can be without a program. Raises: PinError."""
    if pins is None:
        return {}
    if not isinstance(pins, Mapping):
        raise PinError(f"pins is {pins!r}; give a mapping from name patterns to jax.sharding.PartitionSpec")
    for pattern, spec in pins.items():
        if not isinstance(pattern, str):
            raise PinError(f"the pin {pattern!r} is no name; its key is a pattern such as 'params/*/kernel'")
        if not isinstance(spec, PartitionSpec):
            raise PinError(f"the pin {pattern!r} has the value {spec!r}; give a jax.sharding.PartitionSpec")
        for entry in spec:
            entry_axes = () if entry is None else entry if isinstance(entry, tuple) else (entry,)
            if not all(isinstance(word, str) for word in entry_axes):
                raise PinError(
                    f"the pin {pattern!r} has the entry {entry!r}; an entry is None, an axis or several axes"
                )
    return dict(pins)


def match_pins(pins: Pins, graph: Graph) -> tuple[dict[int, PartitionSpec], dict[int, PartitionSpec]]:
    """(tensor id -> spec, output position -> spec) for all that the patterns name; a later pattern wins.

    A pattern is shell-style over the names of arguments, results and intermediates; `*` crosses "/".
    Raises: PinError for a pattern that matches nothing.
    """
    tensors: dict[int, PartitionSpec] = {}
    outputs: dict[int, PartitionSpec] = {}
    ids: dict[str, list[int]] = {}
    positions: dict[str, list[int]] = {}
    for tensor in graph.tensors if pins else ():
        if tensor.kind != "constant":
            for name in dict.fromkeys((base_name(tensor.name), tensor.name)):
                ids.setdefault(name, []).append(tensor.id)
    for position, name in enumerate(graph.output_names):
        positions.setdefault(name, []).append(position)
    for pattern, spec in pins.items():
        hits, places = _named(pattern, ids), _named(pattern, positions)
        if not hits and not places:
            near = close_names(pattern, [*map(base_name, ids), *positions])
            raise PinError(f"the pin {pattern!r} matches no tensor; names look like {near}")
        tensors.update(dict.fromkeys(hits, spec))
        outputs.update(dict.fromkeys(places, spec))
    return tensors, outputs


def _named(pattern: str, known: Mapping[str, Sequence[int]]) -> list[int]:
    """What the names that are a pattern, or match it, stand for."""
    if not WILD & set(pattern):
        return list(known.get(pattern, ()))
    matches = matcher(pattern)
    return [number for name, numbers in known.items() if matches(name) for number in numbers]


def matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a name is the pattern itself or matches it, shell-style."""
    match = re.compile(translate(pattern)).match
    return lambda name: name == pattern or match(name) is not None


def base_name(name: str) -> str:
    """A tensor's name without the number that tells apart several of one name."""
    return _NUMBER.sub("", name)


def close_names(wanted: str, names: Iterable[str], *, count: int = 3) -> str:
    """The names closest to what was asked for, quoted, for a message."""
    known = list(dict.fromkeys(names))
    close = get_close_matches(wanted, known, n=count, cutoff=0.3) or known[:count]
    return ", ".join(map(repr, close)) or "nothing: the program has no arrays"


def pinned_dims(name: str, spec: PartitionSpec, shape: Sequence[int], mesh_shape: Mapping[str, int]) -> dict[str, int]:
    """The dim that every axis of a pinned spec splits.

    Raises: PinError for an unknown axis, too many dims, an axis used twice, an order of axes on one dim other than the
    mesh's, or a dim that does not divide evenly.
    """
    if len(spec) > len(shape):
        raise PinError(
            f"the pin on {name}, {spec}, has {len(spec)} entries, but its shape is {tuple(shape)}; give one per dim"
        )
    axes = list(mesh_shape)
    dim_of: dict[str, int] = {}
    for dim, entry in enumerate(spec):
        entry_axes = axes_of_entry(entry)
        for word in entry_axes:
            if word not in mesh_shape:
                known = ", ".join(map(repr, axes))
                raise PinError(f"the pin on {name}, {spec}, names the axis {word!r}; use the mesh's axes, {known}")
            if word in dim_of or entry_axes.count(word) > 1:
                raise PinError(f"the pin on {name}, {spec}, uses the axis {word!r} twice; let an axis split one dim")
        dim_of |= dict.fromkeys(entry_axes, dim)
        if list(entry_axes) != sorted(entry_axes, key=axes.index):
            raise PinError(f"the pin on {name}, {spec}, must list the axes of one dim in mesh order {tuple(axes)}")
        parts = parts_over(entry_axes, mesh_shape)
        if shape[dim] % parts:
            raise PinError(
                f"the pin on {name}, {spec}, splits dim {dim} of shape {tuple(shape)} into {parts} parts, "
                f"but {shape[dim]} is not divisible by {parts}; choose axes whose sizes divide it"
            )
    return dim_of


def axes_named(pins: Pins) -> set[str]:
    """All axis names that pins mention."""
    named: set[str] = set()
    for spec in pins.values():
        for entry in spec:
            named.update(axes_of_entry(entry))
    return named


def exactly(name: str) -> str:
    """The pattern that is this name and no other."""
    return glob.escape(name)
