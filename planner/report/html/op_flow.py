"""The op graph as drawn: stages in program order, one row each, with arcs for what travels between them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from planner.report.html.markup import Markup, data_script, el
from planner.report.html.page_data import Flow, Folded, PageData, Stage
from planner.units import quantity

MOST_TOLD = 4
"""Flows that are told of a stage: those that take longest."""
WIDE = 100.0
IDLE = "Point at a line, or tap it, to see what it reads and writes, how it is split, and what is communicated for it."


def graph_section(data: PageData) -> Markup:
    """The op graph, folded by module and by source line."""
    heading = el("h2", None, "The program, in order")
    if not data.folds:
        return el(
            "section",
            {"id": "graph"},
            heading,
            el("p", {"class": "absent"}, "Not in the plan's file: it is drawn of the program, which is not beside it."),
        )
    lead = (
        "Ops in program order, those of one place together. An arc is what one place makes and another reads: orange where "
        "it is communicated on the way, the wider the longer that takes. Bars are the seconds of computing."
    )
    buttons = [
        el("button", {"type": "button", "aria-pressed": "false" if i else "true", "data-shows": f"fold{i}"}, fold.name)
        for i, fold in enumerate(data.folds)
    ]
    drawn = [_drawn(fold, i) for i, fold in enumerate(data.folds)]
    return el(
        "section",
        {"id": "graph"},
        heading,
        el("p", None, lead),
        el("div", {"class": "switch", "role": "group", "aria-label": "folded by"}, *buttons)
        if len(buttons) > 1
        else None,
        *drawn,
    )


def _drawn(fold: Folded, number: int) -> Markup:
    rows: list[Stage | str] = []
    region = ""
    for stage in fold.stages:
        if stage.region != region:
            region = stage.region
            rows.append(_body(stage))
        rows.append(stage)
    place = {row.id: i for i, row in enumerate(rows) if isinstance(row, Stage)}
    longest = max((stage.seconds for stage in fold.stages), default=0.0)
    lines = [_row(row, longest) if isinstance(row, Stage) else _heading(row) for row in rows]
    arcs = _arcs(fold.flows, place, len(rows))
    told = {str(stage.id): _told(stage, fold) for stage in fold.stages}
    return el(
        "div",
        {"id": f"fold{number}", **({"hidden": "hidden"} if number else {})},
        el("div", {"class": "graph", "data-told": f"told{number}"}, *lines, arcs),
        el("div", {"class": "detail", "aria-live": "polite"}, IDLE),
        data_script(f"told{number}", told),
    )


def _body(stage: Stage) -> str:
    """What the heading of a body says: the loop, and how often it runs."""
    name = stage.region.rsplit("/", 1)[-1].rstrip("0123456789 ")
    around = stage.region.count("/")
    return f"{'· ' * max(around - 1, 0)}{name}" + (f" × {stage.trips:g}" if stage.trips != 1 else "")


def _heading(words: str) -> Markup:
    return el("div", {"class": "row body"}, el("div", {"class": "label"}, words))


def _row(stage: Stage, longest: float) -> Markup:
    width = f"width:{100 * stage.seconds / longest if longest else 0:.2f}%"
    return el(
        "div",
        {"class": "row", "data-id": stage.id, "tabindex": "0"},
        el(
            "div",
            {"class": "label"},
            el("span", {"class": "code"}, stage.source),
            el("span", {"class": "kinds"}, ", ".join(stage.kinds[:3])) if stage.kinds else None,
        ),
        el("div", {"class": "amount"}, el("i", {"class": "c-compute", "style": width}) if stage.seconds else None),
    )


def _arcs(flows: Sequence[Flow], place: dict[int, int], rows: int) -> Markup:
    """The arcs on the right, in units of rows; flows that go back stand nearer."""
    slowest = max((flow.seconds for flow in flows), default=0.0)
    items: list[Markup] = []
    for flow in sorted(flows, key=lambda flow: flow.seconds):
        a, b = place[flow.source] + 0.5, place[flow.target] + 0.5
        reach = WIDE * min(1.0, 0.12 + 0.88 * math.sqrt(abs(b - a) / max(rows, 1)))
        moved = bool(flow.collective)
        width = 1 + (5 * math.sqrt(flow.seconds / slowest) if moved and slowest else 0)
        d = (
            f"M0 {a:g} C{reach:.1f} {a:g} {reach:.1f} {b:g} 0 {b:g}"
            if a != b
            else f"M0 {a - 0.2:g} C14 {a - 0.3:g} 14 {a + 0.3:g} 0 {a + 0.2:g}"
        )
        attributes = {"d": d, "data-s": flow.source, "data-t": flow.target, "stroke-width": f"{width:.2f}"}
        items.append(el("path", {**attributes, "class": "moved" if moved else None}))
    return el(
        "svg",
        {"viewBox": f"0 0 {WIDE:g} {rows}", "preserveAspectRatio": "none", "role": "img", "aria-label": "what travels"},
        *items,
    )


def _told(stage: Stage, fold: Folded) -> str:
    """What is said of a stage that is pointed at."""
    trips = f", {stage.trips:g} times" if stage.trips != 1 else ""
    words = [f"{stage.source}: {stage.ops} op{'' if stage.ops == 1 else 's'}{trips}"]
    if stage.seconds:
        words.append(f"computing {quantity(stage.seconds, 's')}, {quantity(stage.flops, 'FLOP')}")
    if stage.strategy and stage.kinds:
        words.append(f"split as {stage.strategy}")
    names = {other.id: other.source for other in fold.stages}
    mine = [flow for flow in fold.flows if stage.id in (flow.source, flow.target) and flow.collective]
    for flow in mine[:MOST_TOLD]:
        way = f"from {names[flow.source]}" if flow.target == stage.id else f"to {names[flow.target]}"
        more = f" and {flow.arrays - 1} more" if flow.arrays > 1 else ""
        words.append(
            f"{flow.collective} of {flow.tensor}{more} {way}: {quantity(flow.moved_bytes, 'B')} in "
            f"{quantity(flow.seconds, 's')} ({flow.spec_from} to {flow.spec_to})"
        )
    return ". ".join(words) + "."
