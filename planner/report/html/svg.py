"""Sections drawn in SVG: memory over the step, and every array split over the mesh."""

from __future__ import annotations

import math
from collections.abc import Sequence

from planner.decision import Decision
from planner.program.spec_entries import parts_over
from planner.report.html.charts import axes_words, colour
from planner.report.html.markup import Markup, el, join, percent
from planner.report.html.page_data import MemoryOverStep, PageData, Placed
from planner.units import quantity

WIDE, HIGH = 1000.0, 100.0
"""The size of the memory plot in its own units; it is stretched to the page."""
MOST_ARRAYS = 36
MOST_CUTS = 64
"""Lines that a dim is cut by in a drawing; more would be a grey field."""
SIDE, LEAST, DEPTH = 96.0, 22.0, 5.0
"""The longest and the shortest side of a drawn array, and how far one of its layers lies behind another."""


# ---------------------------------------------------------------- memory


def memory_section(data: PageData) -> Markup:
    """Bytes alive over the step, and the arrays that make the fullest point."""
    heading = el("h2", None, "Memory over the step")
    if data.memory is None:
        return el(
            "section",
            {"id": "memory"},
            heading,
            el(
                "p",
                {"class": "absent"},
                "Not in the plan's file: it is worked out of the program, which is not beside it.",
            ),
        )
    memory, decision = data.memory, data.decision
    limit = decision.request.memory_limit
    peak = quantity(memory.peak_bytes, "B")
    lead = f"What is alive on a device while the ops run in order. Fullest at {memory.where}: {peak}."
    differs = abs(memory.peak_bytes - decision.predicted.peak_bytes) > 1e-6 * memory.peak_bytes
    note = (
        f"The compiler computes some of it again, and is predicted to need {quantity(decision.predicted.peak_bytes, 'B')}."
        if differs
        else None
    )
    return el(
        "section",
        {"id": "memory"},
        heading,
        el("p", None, lead),
        el("div", {"class": "two"}, _plot(memory, limit), _held(memory)),
        el("p", {"class": "faint"}, note) if note else None,
    )


def _plot(memory: MemoryOverStep, limit: float) -> Markup:
    near = limit < 2.2 * memory.peak_bytes
    top = 1.04 * (max(limit, memory.peak_bytes) if near else memory.peak_bytes)

    def x(step: int) -> float:
        return WIDE * (step + 0.5) / memory.steps

    def y(size: float) -> float:
        return HIGH * (1 - size / top)

    points = [(x(step), y(size)) for step, size in memory.points]
    line = " ".join(
        f"{'L' if i else 'M'}{a:.2f} {b:.3f}"
        for i, (a, b) in enumerate([(0.0, points[0][1]), *points, (WIDE, points[-1][1])])
    )
    peak = x(memory.peak_step), y(memory.peak_bytes)
    side = "right" if peak[0] > WIDE / 2 else "left"
    offset = 100 - peak[0] / WIDE * 100 if side == "right" else peak[0] / WIDE * 100
    drawn = el(
        "svg",
        {
            "viewBox": f"0 0 {WIDE:g} {HIGH:g}",
            "preserveAspectRatio": "none",
            "role": "img",
            "aria-label": "memory over the step",
        },
        el("path", {"class": "area", "d": f"{line} L{WIDE:g} {HIGH:g} L0 {HIGH:g} Z"}),
        el("path", {"class": "edge", "d": line}),
        el("line", {"class": "base", "x1": 0, "x2": WIDE, "y1": HIGH, "y2": HIGH}),
        el("line", {"class": "limit", "x1": 0, "x2": WIDE, "y1": f"{y(limit):.3f}", "y2": f"{y(limit):.3f}"})
        if near
        else None,
    )
    frame = el(
        "div",
        {"style": "position:relative"},
        drawn,
        el("i", {"class": "dot", "style": f"left:{peak[0] / WIDE * 100:.2f}%;top:{peak[1]:.2f}%"}),
        el(
            "span",
            {"class": "note", "style": f"{side}:calc({offset:.2f}% + .7rem);top:calc({peak[1]:.2f}% - 1.5rem)"},
            quantity(memory.peak_bytes, "B"),
        ),
        el(
            "span",
            {"class": "note", "style": f"right:0;top:calc({y(limit):.2f}% - 1.35rem)"},
            f"limit {quantity(limit, 'B')}",
        )
        if near and side != "right"
        else el(
            "span",
            {"class": "note", "style": f"left:0;top:calc({y(limit):.2f}% - 1.35rem)"},
            f"limit {quantity(limit, 'B')}",
        )
        if near
        else None,
    )
    below = el(
        "div",
        {"class": "quiet", "style": "display:flex;justify-content:space-between;font-size:.82rem"},
        el("span", None, "start of the call"),
        el("span", None, f"{memory.steps} points of the schedule"),
        el("span", None, "end"),
    )
    return el("div", None, el("div", {"class": "plot"}, frame), below)


def _held(memory: MemoryOverStep) -> Markup:
    most = max((one.bytes for one in memory.held), default=1.0)
    cells: list[Markup] = []
    for one in memory.held:
        cells += [
            el("div", {"class": "name code", "title": one.name}, one.name),
            el(
                "div", {"class": "track"}, el("i", {"class": "c-compute", "style": f"width:{percent(one.bytes, most)}"})
            ),
            el("div", {"class": "num"}, quantity(one.bytes, "B")),
        ]
    more = (
        el("p", {"class": "faint"}, f"and {memory.held_more} smaller, {quantity(memory.held_more_bytes, 'B')} together")
        if memory.held_more
        else None
    )
    heading = el(
        "div", {"class": "quiet", "style": "font-size:.86rem;margin-bottom:.4rem"}, "What makes the fullest point"
    )
    return el(
        "div",
        None,
        heading,
        el("div", {"class": "bars", "style": "grid-template-columns:minmax(0,1fr) 5rem auto"}, *cells),
        more,
    )


# ---------------------------------------------------------------- arrays


def arrays_section(data: PageData) -> Markup:
    """Every array with the cuts of its spec, and what one device holds of it."""
    mesh = tuple(data.decision.mesh_shape)
    legend = join(
        *(
            el("span", {"class": "key"}, el("span", {"class": f"axis a{colour(axis, mesh)}"}, axis), f"{size} devices")
            for axis, size in data.decision.mesh_shape.items()
        )
    )
    lead = (
        "Each array with the cuts of its spec: the blue part is what one device holds, a coloured ruler says which axes "
        "cut the dim beside it. What an axis does not cut is held by all devices along it. Arrays that are alike are one "
        "drawing."
    )
    parts: list[Markup] = []
    for what, placed in (("arguments", data.arguments), ("results that are not returned as taken", data.results)):
        if placed:
            cards = [_card(one, data.decision) for one in placed[:MOST_ARRAYS]]
            rest = placed[MOST_ARRAYS:]
            count, size = sum(one.count for one in rest), quantity(sum(one.bytes for one in rest), "B")
            parts.append(
                el("p", {"class": "quiet", "style": "margin:1rem 0 .5rem"}, f"{what}: {sum(p.count for p in placed)}")
            )
            parts.append(el("div", {"class": "arrays"}, *cards))
            parts.append(el("p", {"class": "faint"}, f"and {count} smaller, {size} on a device") if rest else join())
    return el(
        "section",
        {"id": "arrays"},
        el("h2", None, "Every array on the mesh"),
        el("p", None, lead),
        el("div", {"class": "keys"}, legend),
        *parts,
    )


def _card(one: Placed, decision: Decision) -> Markup:
    mesh = decision.mesh_shape
    parts = [parts_over(axes, mesh) for axes in one.axes]
    whole = math.prod(mesh.values()) // math.prod(parts)
    held = f"{quantity(one.bytes, 'B')} on a device"
    each = f"{held} for {one.count} of them" if one.count > 1 else held
    copies = "" if whole == 1 else f", {whole} copies" if math.prod(parts) > 1 else ", whole on every device"
    also = f" with {', '.join(one.also)}" if one.also else ""
    spec: list[Markup | str] = []
    for i, axes in enumerate(one.axes):
        spec += [", "] if i else []
        spec.append(axes_words(axes, tuple(mesh)) if axes else "–")
    return el(
        "div",
        {"class": "array"},
        draw(one.shape, one.axes, parts, tuple(mesh)),
        el("div", {"class": "name code"}, one.name, el("span", {"class": "faint"}, also) if also else None),
        el("div", {"class": "type code"}, one.type, " (", *spec, ")" if one.axes else "scalar)"),
        el("div", {"class": "held"}, f"{each}{copies}"),
    )


def draw(shape: Sequence[int], axes: Sequence[Sequence[str]], parts: Sequence[int], mesh: Sequence[str]) -> Markup:
    """The drawing of an array: the two or three dims that matter, cut as its spec says, with the part of one device."""
    shown = _shown(shape, parts)
    rows, columns, layers = (shown[-2:] if len(shown) > 1 else [None, *shown])[0], shown[-1] if shown else None, None
    if len(shown) > 2:
        layers = shown[0]
    extents = [shape[d] if d is not None else 1 for d in (rows, columns)]
    largest = max(*extents, 1)
    # Sides grow with the logarithm of extents: a thousand times as long is drawn about three times as long.
    high, wide = (
        LEAST if d is None else max(LEAST, SIDE * _length(e, largest))
        for d, e in zip((rows, columns), extents, strict=True)
    )
    depth = min(parts[layers], 6) if layers is not None and parts[layers] > 1 else 2 if layers is not None else 1
    shift = DEPTH * (depth - 1)
    left, top = 12.0, 12.0 + shift
    items: list[Markup] = []
    for layer in range(depth - 1, 0, -1):
        items.append(_box("whole", left + layer * DEPTH, top - layer * DEPTH, wide, high))
    cuts = {d: parts[d] if d is not None else 1 for d in (rows, columns)}
    items.append(_box("mine", left, top, wide / cuts[columns], high / cuts[rows]))
    items += [_cut(left + wide * i / cuts[columns], top, 0, high) for i in _cut_at(cuts[columns])]
    items += [_cut(left, top + high * i / cuts[rows], wide, 0) for i in _cut_at(cuts[rows])]
    items.append(_box("whole", left, top, wide, high))
    if columns is not None:
        items += _ruler(axes[columns], mesh, left, top + high + 5, wide, 0)
    if rows is not None:
        items += _ruler(axes[rows], mesh, left - 5, top, 0, high)
    if layers is not None:
        items += _ruler(axes[layers], mesh, left + wide + 4, top + 3, shift or DEPTH, -(shift or DEPTH))
    full = left + wide + shift + 14, top + high + 14
    return el(
        "svg",
        {"viewBox": f"0 0 {full[0]:.1f} {full[1]:.1f}", "role": "img", "aria-label": "how the array is split"},
        *items,
    )


def _shown(shape: Sequence[int], parts: Sequence[int]) -> list[int]:
    """The dims that are drawn, in order: those that are cut and the longest, two, or three where so many are cut."""
    order = sorted(range(len(shape)), key=lambda d: (-(parts[d] > 1), -shape[d], d))
    cut = sum(part > 1 for part in parts)
    return sorted(order[: min(max(cut, 2), 3)])


def _length(extent: int, largest: int) -> float:
    return 1.0 if largest <= 1 else max(0.2, (1 + math.log10(max(extent, 1))) / (1 + math.log10(largest)))


def _cut_at(parts: int) -> range:
    step = max(1, -(-parts // MOST_CUTS))
    return range(step, parts, step)


def _box(name: str, x: float, y: float, wide: float, high: float) -> Markup:
    return el(
        "rect",
        {
            "class": name,
            "x": f"{x:.2f}",
            "y": f"{y:.2f}",
            "width": f"{max(wide, 2.5):.2f}",
            "height": f"{max(high, 2.5):.2f}",
        },
    )


def _cut(x: float, y: float, wide: float, high: float) -> Markup:
    return el(
        "line", {"class": "cut", "x1": f"{x:.2f}", "y1": f"{y:.2f}", "x2": f"{x + wide:.2f}", "y2": f"{y + high:.2f}"}
    )


def _ruler(axes: Sequence[str], mesh: Sequence[str], x: float, y: float, wide: float, high: float) -> list[Markup]:
    """A line along a dim in the colours of the axes that cut it, side by side."""
    found: list[Markup] = []
    for i, axis in enumerate(axes):
        a, b = i / len(axes), (i + 1) / len(axes)
        ends = {"x1": x + a * wide, "y1": y + a * high, "x2": x + b * wide, "y2": y + b * high}
        attributes = {key: f"{value:.2f}" for key, value in ends.items()}
        found.append(el("line", {"class": f"ruler s{colour(axis, mesh)}", **attributes}))
    return found
