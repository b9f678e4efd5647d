"""Arrays drawn in characters: into which parts a spec cuts them, and which devices hold each; no data is needed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from planner.decision import Decision
from planner.errors import ArgumentError
from planner.pricing.candidates.pins import base_name, close_names, matcher
from planner.pricing.candidates.specs import spec_text
from planner.pricing.mesh import mesh_text
from planner.printing.parts import Part
from planner.printing.printed import Printed
from planner.program.spec_entries import axes_of_spec
from planner.report.rows import TableRow, rows_of
from planner.units import listed, quantity

T = TypeVar("T")

MOST_ARRAYS = 8
MOST_PARTS = 8
"""Parts of a dim that are drawn; between the first ones and the last stand dots."""
MOST_HOLDERS = 4
"""Devices that are listed of those that hold the same part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing(Printed):
    """Arrays, each with its cuts; arrays of one type and spec are one drawing. `left` more match.

    Devices are numbered as they stand in the mesh, its last axis the fastest.
    """

    mesh: Mapping[str, int]
    arrays: tuple[TableRow, ...]
    left: int

    def _parts(self) -> list[Part]:
        more = [f"and {self.left} more"] if self.left else []
        drawn = ["\n".join(_drawn(row, self.mesh)) for row in self.arrays]
        return [f"On the mesh {mesh_text(self.mesh)}, each part with the devices that hold it:", *drawn, *more]


def draw_arrays(decision: Decision, path: str | None) -> Drawing:
    """The drawing of the arguments and results of a name or pattern, or of the largest arguments.

    Raises: ArgumentError where there are none of that name.
    """
    arguments = list(zip(decision.arguments, decision.in_specs, strict=True))
    found = [*arguments, *zip(decision.results, decision.out_specs, strict=True)]
    if path is None:
        found = arguments
    else:
        matches = matcher(path)
        names = [leaf.name for leaf, _ in found]
        found = [pair for pair in found if matches(pair[0].name) or matches(base_name(pair[0].name))]
        if not found:
            raise ArgumentError(f"no argument or result is called {path!r}; names look like {close_names(path, names)}")
    rows = rows_of([leaf for leaf, _ in found], [spec for _, spec in found], decision.mesh_shape)
    if path is None:
        rows.sort(key=lambda row: -row.bytes)
    return Drawing(mesh=dict(decision.mesh_shape), arrays=tuple(rows[:MOST_ARRAYS]), left=len(rows[MOST_ARRAYS:]))


def _drawn(row: TableRow, mesh: Mapping[str, int]) -> list[str]:
    """The lines of a drawing."""
    axes = [tuple(axis for axis in entry if mesh[axis] > 1) for entry in axes_of_spec(row.spec, len(row.shape))]
    shown, hidden = _shown_dims(row.shape, axes)
    rows, columns = [None] * (2 - len(shown)) + shown
    holders = _holders(mesh, [() if dim is None else axes[dim] for dim in (rows, columns)], [axes[d] for d in hidden])
    also = f" with {listed(row.also, 4)}" if row.also else ""
    each = quantity(row.bytes / row.count, "B")
    title = f"\n{row.name}{also} {row.type}, {spec_text(row.spec)}: {each} on each device"
    lines = [title, *_grid(_shortened(holders))]
    cuts = [math.prod(mesh[axis] for axis in axes[dim]) for dim in hidden]
    lines += [f"dim {dim} is cut in {n} as well; this is its first part" for dim, n in zip(hidden, cuts, strict=True)]
    return lines


def _shown_dims(shape: Sequence[int], axes: Sequence[Sequence[str]]) -> tuple[list[int], list[int]]:
    """The two dims that are drawn, the last of those that are cut, else the longest; and the others that are cut."""
    order = sorted(range(len(shape)), key=lambda dim: (not axes[dim], -dim if axes[dim] else -shape[dim]))
    return sorted(order[:2]), sorted(dim for dim in order[2:] if axes[dim])


def _holders(
    mesh: Mapping[str, int], drawn: Sequence[Sequence[str]], hidden: Sequence[Sequence[str]]
) -> list[list[list[int]]]:
    """The devices that hold each part, by row and column, at the first part of the hidden dims."""
    names = list(mesh)
    by_dim = [*drawn, [axis for entry in hidden for axis in entry]]
    cutting = [axis for entry in by_dim for axis in entry]
    order = [names.index(axis) for axis in [*cutting, *(name for name in names if name not in cutting)]]
    sizes = [math.prod(mesh[axis] for axis in entry) for entry in by_dim]
    devices = np.arange(math.prod(mesh.values())).reshape(tuple(mesh.values()))
    return devices.transpose(order).reshape(*sizes, -1)[:, :, 0].tolist()


def _shortened(holders: Sequence[Sequence[Sequence[int]]]) -> list[list[str]]:
    """The texts of the cells, the middle of many rows or columns left out."""
    texts = [_ends([_listed(devices) for devices in row], "...") for row in holders]
    return _ends(texts, ["..."] * len(texts[0]))


def _ends(items: list[T], gap: T) -> list[T]:
    return items if len(items) <= MOST_PARTS else [*items[: MOST_PARTS - 2], gap, items[-1]]


def _listed(devices: Sequence[int]) -> str:
    shown = ",".join(map(str, devices[:MOST_HOLDERS]))
    return shown if len(devices) <= MOST_HOLDERS else f"{shown},... {len(devices)} in all"


def _grid(cells: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table whose cells are of one width."""
    width = 2 + max(len(cell) for row in cells for cell in row)
    rule = "─" * width
    columns = len(cells[0])
    between = f"├{'┼'.join([rule] * columns)}┤"
    lines = [f"┌{'┬'.join([rule] * columns)}┐"]
    for i, row in enumerate(cells):
        lines += [between] if i else []
        lines.append(f"│{'│'.join(cell.center(width) for cell in row)}│")
    return [*lines, f"└{'┴'.join([rule] * columns)}┘"]
