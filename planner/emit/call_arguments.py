"""The arguments that a plan is called with, held against those that it was made for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from planner.errors import ArgumentError
from planner.machine.global_arrays import is_global
from planner.program.structure import structure_differences
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
