"""The arguments that a plan is called with, held against those that it was made for.

Where a pytree is otherwise, it is named what is missing, what is more, and what is another object.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from planner.errors import ArgumentError
from planner.machine.global_arrays import is_global
from planner.program.tracing.arguments import canonical_dtype
from planner.program.tracing.traced import Leaf, Program


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one process brings of an array: one of `count` parts of equal size along `dim`."""

    dim: int
    count: int

    def shape(self, whole: Sequence[int]) -> tuple[int, ...]:
        """The shape of a part of an array of this shape."""
        return (*whole[: self.dim], whole[self.dim] // self.count, *whole[self.dim + 1 :])


def ordered(program: Program, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
    """The arguments of a call in the order of the program's. Raises: ArgumentError where some are missing or too many."""
    if not kwargs and not program.keywords:
        return args
    positional = program.num_args - len(program.keywords)
    by_keyword = program.parameters[len(args) :]
    missing = [repr(name) for name in by_keyword if name not in kwargs]
    unknown = [repr(name) for name in kwargs if name not in by_keyword]
    if len(args) > positional or missing or unknown:
        problems = [
            f"{len(args)} are given by position" if len(args) > positional else "",
            f"{', '.join(missing)} not given" if missing else "",
            f"{', '.join(unknown)} given, and not planned for or given twice" if unknown else "",
        ]
        of_keywords = f" and the keywords {', '.join(program.keywords)}" if program.keywords else ""
        raise ArgumentError(
            f"{program.function_name} was planned for {positional} arguments by position{of_keywords}: "
            f"{'; '.join(filter(None, problems))}; give the arguments that were planned for, or plan for these"
        )
    return (*args, *(kwargs[name] for name in by_keyword))


def checked_leaves(
    program: Program,
    static_args: Mapping[int, Any],
    args: Sequence[Any],
    name: str,
    parts: Mapping[int, Part] = MappingProxyType({}),
) -> list[Any]:
    """The leaves of the dynamic arguments. Raises: ArgumentError where they are not what was planned for.

    `static_args` are the planned values of static arguments by position, `name` is that of the function. Of the leaves at
    the positions of `parts` a process brings its own, or the whole as a global array.
    """
    if len(args) != program.num_args:
        raise ArgumentError(f"{name} was planned for {program.num_args} arguments, got {len(args)}; give all of them")
    for i, planned in static_args.items():
        if not is_planned(planned, args[i]):
            raise ArgumentError(
                f"static argument {i} was planned as {planned!r}, got {args[i]!r}; make a plan for each value"
            )
    leaves, tree = jax.tree.flatten(tuple(args[i] for i in program.dynamic_argnums))
    if tree != program.in_tree:
        raise ArgumentError(
            f"{name} was planned for other arguments: {_structure_difference(program, args)}; make a plan for these"
        )
    planned = program.arguments[: len(leaves)]
    if not parts:
        return list(map(as_planned, planned, leaves))
    return [
        as_planned(leaf, value, parts.get(position))
        for position, (leaf, value) in enumerate(zip(planned, leaves, strict=True))
    ]


def is_planned(planned: Any, value: Any) -> bool:
    """Whether the value of a static argument is the planned one."""
    return value is planned or bool(value == planned)


def _structure_difference(program: Program, args: Sequence[Any]) -> str:
    """How the structure of arguments differs from the planned one."""
    trees = zip(program.dynamic_argnums, program.in_tree.children(), strict=True)
    differences = (structure_differences(tree, args[i], program.parameters[i]) for i, tree in trees)
    return "; ".join(text for text in differences if text)


def is_part(value: Any, part: Part | None) -> bool:
    """Whether a value is what this process brings of an array: it is no global one, and none that JAX traces."""
    return part is not None and not isinstance(value, Tracer) and not is_global(value)


def as_planned(leaf: Leaf, value: Any, part: Part | None = None) -> Any:
    """An argument, checked against what was planned for, of which there may be parts. Raises: ArgumentError."""
    if isinstance(value, (bool, int, float, complex)):
        # The kind of a Python scalar may vary as long as the planned type holds it: 2 where 2.0 was planned.
        if leaf.weak and leaf.aval.shape == () and np.can_cast(np.min_scalar_type(value), leaf.aval.dtype):
            return np.asarray(value, leaf.aval.dtype)
        value = np.asarray(value, jax.typeof(value).dtype)
    if not (hasattr(value, "shape") and hasattr(value, "dtype")):
        raise ArgumentError(
            f"argument {leaf.name} was planned as {leaf.aval.dtype}{list(leaf.aval.shape)}, got {value!r} of type "
            f"{type(value).__name__}; give an array"
        )
    shape, dtype = tuple(value.shape), str(canonical_dtype(value))
    if part is not None and is_part(value, part):
        wanted = part.shape(leaf.aval.shape)
        if shape != wanted or dtype != leaf.aval.dtype:
            raise ArgumentError(
                f"argument {leaf.name} was planned as the part of this process, one of {part.count} of "
                f"{leaf.aval.dtype}{list(leaf.aval.shape)} along dim {part.dim}: give {leaf.aval.dtype}{list(wanted)}, or "
                f"the whole as a global array; got {dtype}{list(shape)}"
            )
        return value
    if shape != leaf.aval.shape or dtype != leaf.aval.dtype:
        raise ArgumentError(
            f"argument {leaf.name} was planned as {leaf.aval.dtype}{list(leaf.aval.shape)}, got {dtype}{list(shape)}; "
            f"make a plan for these shapes{_of_part(leaf.aval.shape, shape)}"
        )
    return value


def _of_part(planned: Sequence[int], given: Sequence[int]) -> str:
    """What else to do where a value is a part of the planned one along one dim, as the last batch of a data set is."""
    if len(planned) != len(given):
        return ""
    dims = [dim for dim, extents in enumerate(zip(planned, given, strict=True)) if extents[0] != extents[1]]
    if len(dims) != 1 or given[dims[0]] > planned[dims[0]]:
        return ""
    return (
        f" as well, or, if it is the last part of a batch, drop it or pad dim {dims[0]} from {given[dims[0]]} to "
        f"{planned[dims[0]]} and leave out of the result what comes of the padding"
    )


MOST_NAMED = 3
"""Differences that are named; the others are counted."""


def structure_differences(planned: Any, value: Any, name: str) -> str:
    """How the structure of a pytree differs from the planned one (a treedef); `name` is what the pytree is called."""
    found = list(_differences(planned, value, name))
    more = len(found) - MOST_NAMED
    return "; ".join(found[:MOST_NAMED]) + (f"; and {more} more differences" if more > 0 else "")


def _differences(planned: Any, value: Any, name: str) -> Iterator[str]:
    given = jax.tree.structure(value)
    if given == planned:
        return
    before, now = planned.node_data(), given.node_data()
    if before is None or now is None or before[0] is not now[0]:
        got = f"the function {_name_of(value)}" if now is None and callable(value) else _kind(now)
        yield f"{name} was planned as {_kind(before)}, got {got}"
        return
    children = dict(_children(value))
    if before[0] is dict:
        yield from (f"{name}: key {key!r} is missing" for key in before[1] if key not in now[1])
        yield from (f"{name}: key {key!r} was not planned" for key in now[1] if key not in before[1])
        pairs = [(str(key), tree) for key, tree in zip(before[1], planned.children(), strict=True) if key in now[1]]
    else:
        yield from _of_static(before[0], before[1], now[1], name)
        if len(planned.children()) != len(children):
            yield f"{name} was planned with {len(planned.children())} items, got {len(children)}"
            return
        pairs = list(zip(children, planned.children(), strict=True))
    for key, tree in pairs:
        yield from _differences(tree, children[key], f"{name}/{key}")


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    for path, child in jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda inner: inner is not value)[0]:
        yield jax.tree_util.keystr(path, simple=True, separator="/"), child


def _of_static(kind: type, planned: Any, given: Any, name: str) -> Iterator[str]:
    """What differs in the part of a node that is not among its children."""
    if planned == given:
        return
    values = (planned, given)
    if not all(isinstance(value, tuple) for value in values) or len(planned) != len(given):
        yield f"{name} ({kind.__name__}) differs in what is no array of it: planned as {planned!r}, got {given!r}"
        return
    names = _static_fields(kind)
    for place, (before, now) in enumerate(zip(planned, given, strict=True)):
        if before != now:
            field = f"{name}.{names[place]}" if len(names) == len(planned) else f"{name}: static value {place}"
            change = f"planned as {before!r}, got {now!r}" if _short(before, now) else "another object than was planned"
            yield f"{field} is {change}; use the same object, or one that is equal"


def _static_fields(kind: type) -> Sequence[str]:
    """The names of the fields of a dataclass that are no children, as Flax and Equinox mark them."""
    if not dataclasses.is_dataclass(kind):
        return ()
    static = [f.name for f in dataclasses.fields(kind) if not f.metadata.get("pytree_node", True)]
    return static or [f.name for f in dataclasses.fields(kind) if f.metadata.get("static", False)]


def _short(*values: Any) -> bool:
    return all(isinstance(value, (bool, int, float, str)) for value in values)


def _name_of(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _kind(node: tuple[type, Any] | None) -> str:
    if node is None:
        return "an array"
    kind, keys = node
    if kind is type(None):
        return "None"
    return f"a dict with the keys {', '.join(map(repr, keys))}" if kind is dict else f"a {kind.__name__}"
