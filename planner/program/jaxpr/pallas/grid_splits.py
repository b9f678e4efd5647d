"""By which axes of its grid a kernel may be split: those along which it does the same to every part of its arrays.

A part is a run of steps along one axis. It may be computed alone, on smaller arrays, where

1. what the kernel computes of the blocks that it reads does not depend on which part it is;
2. the blocks of a part fill a part of some dim of an array, the same for every block mapping and lookup of that array, or
   are the same for all parts: `stride` steps on, the block is the one `step` blocks on;
3. some result has a dim of that kind; of one that has none, what the last part leaves counts;
4. nothing is handed on from part to part in memory of the kernel's own or in such results: its author declares the axis
   parallel, it comes from `vmap`, or every part writes all of it before it reads any.

The body of a kernel is not changed: constants that it has of the whole grid stay those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from planner.program.jaxpr.pallas.grid_reading import BlockAccess, GridReading, Touch


@dataclass(frozen=True, slots=True, kw_only=True)
class GridSplit:
    """An axis of a grid that may be split into up to `parts` parts, each of a multiple of `stride` steps.

    `dims` has, by array (scalars, operands, results), the dim of which the parts lie one behind the other.
    """

    axis: int
    parts: int
    stride: int
    dims: Mapping[int, int]


def grid_splits(
    reading: GridReading, shapes: Sequence[tuple[int, ...]], aliases: Sequence[tuple[int, int]]
) -> tuple[GridSplit, ...]:
    """The axes by which a kernel may be split.

    Parameters: `shapes`, those of its arrays; `aliases`, pairs of arrays that share memory.
    """
    found: list[GridSplit] = []
    for axis, extent in enumerate(reading.grid):
        period = reading.periods.get(axis, 1)
        for stride in (n for n in range(period, extent, period) if extent % n == 0):
            dims = _dims(reading, axis, stride, shapes)
            if dims is None:
                continue
            split = GridSplit(axis=axis, parts=extent // stride, stride=stride, dims=dims)
            if _is_apart(reading, split) and all(dims.get(a) == dims.get(b) for a, b in aliases):
                found.append(split)
                break
    return tuple(found)


def _dims(reading: GridReading, axis: int, stride: int, shapes: Sequence[tuple[int, ...]]) -> dict[int, int] | None:
    """By array the dim that an axis splits; None where it splits none of a result, or not every part alike."""
    found: dict[int, int | None] = {}
    for access in reading.accesses:
        dims = [_steps(access, dim, axis, stride, shapes[access.array]) for dim in range(len(access.numbers))]
        if None in dims:
            return None
        moving = [dim for dim, step in enumerate(dims) if step]
        if len(moving) > 1:
            return None
        here = moving[0] if moving else None
        if found.setdefault(access.array, here) != here:
            return None
    split = {array: dim for array, dim in found.items() if dim is not None}
    return split if any(array >= reading.operands for array in split) else None


def _steps(access: BlockAccess, dim: int, axis: int, stride: int, shape: tuple[int, ...]) -> int | None:
    """How many blocks of a dim one part of `stride` steps takes; 0 where all parts read the same, None where neither."""
    numbers = access.numbers[dim]
    if numbers is None or numbers.shape[axis] == 1:
        return 0  # what follows from data is the same for a part alone
    along = np.moveaxis(numbers, axis, 0)
    apart = along[stride:] - along[:-stride]
    step = int(apart.flat[0])
    if (apart != step).any() or step < 0:
        return None
    if step == 0:
        return 0
    block = access.blocks[dim]
    width, size = (block, 1) if access.elements[dim] else (1, block)
    first = along[:stride]
    inside = first.min() >= 0 and first.max() + width <= step
    return step if inside and step * size * (len(along) // stride) == shape[dim] else None


def _is_apart(reading: GridReading, split: GridSplit) -> bool:
    """Whether parts hand nothing on to one another in what stays from step to step."""
    results = {access.array for access in reading.accesses if access.fetched and access.array >= reading.operands}
    kept = {*reading.scratch, *(results - set(split.dims))}
    if not kept or split.axis in reading.parallel:
        return True
    begin = _Begin(reading.grid, split)
    return all(begin.wrote_first(reading.touches, number) != "read" for number in kept)


class _Begin:
    """The steps with which parts begin, for whatever the axes outside of theirs."""

    def __init__(self, grid: tuple[int, ...], split: GridSplit) -> None:
        self.at = tuple(
            slice(None) if axis < split.axis else slice(None, None, split.stride) if axis == split.axis else slice(1)
            for axis in range(len(grid))
        )

    def wrote_first(self, touches: Sequence[Touch], number: int) -> Literal["read", "wrote", "neither"]:
        """What a step with which a part begins does first to a variable: reads it, or writes all of it."""
        for touch in touches:
            if touch.bodies:
                found = [self.wrote_first(body, number) for body in self._taken(touch)]
                if "read" in found:
                    return "read"
                if found and all(each == "wrote" for each in found) and not touch.is_loop:
                    return "wrote"
            elif touch.number == number:
                return "wrote" if touch.whole else "read"
        return "neither"

    def _taken(self, touch: Touch) -> Sequence[tuple[Touch, ...]]:
        """The bodies that such a step may come to."""
        if touch.taken is None:
            return touch.bodies
        begins = tuple(
            place if extent > 1 else slice(None) for place, extent in zip(self.at, touch.taken.shape, strict=True)
        )
        chosen = {min(max(int(number), 0), len(touch.bodies) - 1) for number in np.unique(touch.taken[begins])}
        return [touch.bodies[number] for number in sorted(chosen)]
