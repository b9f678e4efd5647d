"""Coordinates of the page's drawings: arrays cut by their specs, memory over time, the op graph, the meshes tried."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from planner.decision import Decision, Tried
from planner.explain.recipe import Recipes
from planner.program.spec_entries import axes_of_spec, parts_over
from planner.report.program_report import Fold, MemoryOverTime, StageFlow
from planner.report.rows import TableRow

# ---------------------------------------------------------------- an array

SIDE, LEAST, DEPTH = 96.0, 22.0, 5.0
"""The longest and the shortest side of a drawn array, and the shift of each of its layers from the one before."""
MOST_LAYERS = 6
MOST_CUTS = 64
"""Lines that a dim is cut by in a drawing; more would be a grey field."""


class Mark(NamedTuple):
    """A rectangle, or a line from (x, y) to (x + width, y + height); a ruler has the name of its axis."""

    style: str
    x: float
    y: float
    width: float
    height: float
    axis: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayDrawing:
    """An array as its spec cuts it: `axes` and `parts` of every dim, and the marks of its two or three longest.

    `copies` is the number of devices that hold the same part.
    """

    axes: Sequence[Sequence[str]]
    parts: int
    copies: int
    width: float
    height: float
    marks: Sequence[Mark]

    @property
    def description(self) -> str:
        """The drawing in words: "dim 0 cut by data, dim 1 whole; 4 parts, each on 2 devices"."""
        if not self.axes:
            return "a scalar"
        dims = [f"dim {d} {'cut by ' + ' and '.join(axes) if axes else 'whole'}" for d, axes in enumerate(self.axes)]
        return f"{', '.join(dims)}; {self.parts} parts, each on {self.copies} devices"


def draw_array(row: TableRow, mesh: Mapping[str, int]) -> ArrayDrawing:
    """The drawing of an array: the dims that matter, cut as its spec says, with the part of one device."""
    axes = [[axis for axis in entry if mesh[axis] > 1] for entry in axes_of_spec(row.spec, len(row.shape))]
    parts = [parts_over(entry, mesh) for entry in axes]
    shown = _shown_dims(row.shape, parts)
    layers, rows, columns = [None] * (3 - len(shown)) + shown
    cuts = {None: 1, **{d: parts[d] for d in shown}}
    high, wide = _sides([None if d is None else row.shape[d] for d in (rows, columns)])
    depth = 1 if layers is None else min(cuts[layers], MOST_LAYERS) if cuts[layers] > 1 else 2
    shift = DEPTH * (depth - 1)
    left, top = 12.0, 12.0 + shift
    # In the order in which they are painted: the hindmost layer first, the outline of the foremost over its cuts.
    marks = [Mark("whole", left + i * DEPTH, top - i * DEPTH, wide, high) for i in range(depth - 1, 0, -1)]
    marks.append(Mark("mine", left, top, wide / cuts[columns], high / cuts[rows]))
    marks += [Mark("cut", left + wide * i / cuts[columns], top, 0, high) for i in _cut_at(cuts[columns])]
    marks += [Mark("cut", left, top + high * i / cuts[rows], wide, 0) for i in _cut_at(cuts[rows])]
    marks.append(Mark("whole", left, top, wide, high))
    rulers = (
        (columns, left, top + high + 5, wide, 0.0),
        (rows, left - 5, top, 0.0, high),
        (layers, left + wide + 4, top + 3, shift or DEPTH, -(shift or DEPTH)),
    )
    for dim, x, y, width, height in rulers:
        if dim is not None:
            marks += _ruler(axes[dim], x, y, width, height)
    return ArrayDrawing(
        axes=axes,
        parts=math.prod(parts),
        copies=math.prod(mesh.values()) // math.prod(parts),
        width=left + wide + shift + 14,
        height=top + high + 14,
        marks=marks,
    )


def _shown_dims(shape: Sequence[int], parts: Sequence[int]) -> list[int]:
    """The dims that are drawn, in order: those that are cut and the longest, two, or three where so many are cut."""
    order = sorted(range(len(shape)), key=lambda d: (-(parts[d] > 1), -shape[d], d))
    cut = sum(part > 1 for part in parts)
    return sorted(order[: min(max(cut, 2), 3)])


def _sides(extents: Sequence[int | None]) -> list[float]:
    """The lengths drawn for two extents; they grow with the logarithm: 1,000 times as long is drawn 3 times as long."""
    largest = max([1, *(extent for extent in extents if extent is not None)])

    def length(extent: int) -> float:
        return 1.0 if largest == 1 else max(0.2, (1 + math.log10(max(extent, 1))) / (1 + math.log10(largest)))

    return [LEAST if extent is None else max(LEAST, SIDE * length(extent)) for extent in extents]


def _cut_at(parts: int) -> range:
    step = max(1, -(-parts // MOST_CUTS))
    return range(step, parts, step)


def _ruler(axes: Sequence[str], x: float, y: float, width: float, height: float) -> list[Mark]:
    """A line along a dim, an equal piece of it for each axis that cuts it."""
    share = 1 / len(axes) if axes else 0.0
    return [
        Mark("ruler", x + i * share * width, y + i * share * height, share * width, share * height, axis)
        for i, axis in enumerate(axes)
    ]


# ---------------------------------------------------------------- memory

WIDE, HIGH = 1000.0, 100.0
"""The size of the memory plot in its own units; it is stretched to the page."""


class MemoryDrawing(NamedTuple):
    """The outline of memory over time as an SVG path, and where its peak and its limit lie, in percent of the plot.

    `limit_y` is None where the limit is too far above the peak to be drawn.
    """

    outline: str
    peak_x: float
    peak_y: float
    limit_y: float | None


def draw_memory(memory: MemoryOverTime, limit: float) -> MemoryDrawing:
    """The drawing of memory over time below its limit, both in bytes per device."""
    near = limit < 2.2 * memory.peak_bytes
    top = 1.04 * (max(limit, memory.peak_bytes) if near else memory.peak_bytes)

    def y(size: float) -> float:
        return HIGH * (1 - size / top)

    points = [(WIDE * (step + 0.5) / memory.steps, y(size)) for step, size in memory.points]
    points = [(0.0, points[0][1]), *points, (WIDE, points[-1][1])]
    outline = "M" + " L".join(f"{a:.2f} {b:.3f}" for a, b in points)
    peak_x = 100 * (memory.peak_step + 0.5) / memory.steps
    return MemoryDrawing(outline, peak_x, y(memory.peak_bytes), y(limit) if near else None)


# ---------------------------------------------------------------- recipes

FAR = 3.0
"""Bars of recipes that take more than so many times what the plan takes are drawn as long as the longest other one."""


def longest_bar(recipes: Recipes) -> float:
    """The seconds, hidden ones included, that the longest bar stands for."""
    all_of = [recipes.predicted, *(one.predicted for one in recipes.others if one.predicted is not None)]
    most = FAR * recipes.predicted.seconds
    return max(p.seconds + p.hidden_seconds for p in all_of if p.seconds <= most)


# ---------------------------------------------------------------- the op graph

REACH = 100.0
"""How far the longest arc reaches to the right."""


class Arc(NamedTuple):
    """A flow as an SVG path between the rows of its stages, the wider the longer its collectives take."""

    path: str
    width: float
    flow: StageFlow


def draw_arcs(fold: Fold) -> tuple[int, list[Arc]]:
    """The rows of a folded op graph, a stage or the heading of a region each, and the arcs, in units of rows."""
    middles: list[float] = []
    rows = 0
    for i, stage in enumerate(fold.stages):
        rows += 2 if i == 0 or stage.region != fold.stages[i - 1].region else 1
        middles.append(rows - 0.5)
    slowest = max((flow.seconds for flow in fold.flows), default=0.0)

    def arc(flow: StageFlow) -> Arc:
        a, b = middles[flow.source], middles[flow.target]
        reach = REACH * min(1.0, 0.12 + 0.88 * math.sqrt(abs(b - a) / rows))
        path = f"M0 {a:g} C{reach:.1f} {a:g} {reach:.1f} {b:g} 0 {b:g}"
        if a == b:
            path = f"M0 {a - 0.2:g} C14 {a - 0.3:g} 14 {a + 0.3:g} 0 {a + 0.2:g}"
        width = 1 + (5 * math.sqrt(flow.seconds / slowest) if flow.collective and slowest else 0)
        return Arc(path, width, flow)

    # The slowest is painted last, over the others.
    return rows, [arc(flow) for flow in sorted(fold.flows, key=lambda flow: flow.seconds)]


# ---------------------------------------------------------------- the meshes tried

NEAR = 1.3
"""Meshes are drawn whose bound is at most so many times the value of the plan."""
MOST_MESHES = 16


class MeshRow(NamedTuple):
    """A mesh of the search: the places of its bound and of the value of its best plan on the track, in percent of it."""

    tried: Tried
    chosen: bool
    bound: float
    value: float | None


def draw_meshes(decision: Decision) -> tuple[list[MeshRow], list[float]]:
    """The meshes that come near the plan, best bound first, and the bounds of the others on which something fits."""
    limit, mine = NEAR * decision.certificate.value, dict(decision.mesh_shape)
    bounded = sorted((one.bound, i, one) for i, one in enumerate(decision.tried) if one.bound is not None)
    shown = [row for i, row in enumerate(bounded) if row[0] <= limit and (i < MOST_MESHES or dict(row[2].mesh) == mine)]
    values = [bound for bound, _, _ in shown] + [one.value for _, _, one in shown if one.value is not None]
    low, high = min(values, default=0.0), max(values, default=1.0)

    def at(value: float) -> float:
        return 3 + 94 * (value - low) / ((high - low) or 1.0)

    rows = [
        MeshRow(one, dict(one.mesh) == mine, at(bound), None if one.value is None else at(one.value))
        for bound, _, one in shown
    ]
    return rows, [row[0] for row in bounded if row not in shown]
