"""Sections drawn as bars: figures at the top, time by source line, collectives, meshes of the search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.decision import Decision, Tried
from planner.prediction import Predicted
from planner.report.html.markup import Markup, el, join, percent
from planner.report.html.page_data import Line, PageData
from planner.units import quantity

MOST_LINES = 14
MOST_MOVED = 12
MOST_MESHES = 16
NEAR = 1.3
"""Meshes are drawn whose bound is at most so many times the value of the plan."""
SAME = 1e-6
"""Values are the same that differ by less than this share."""
UNITS = {"seconds": "s", "joules": "J", "bytes": "B"}
PARTS = (("c-compute", "computing"), ("c-move", "communicating"))


def keys(*named: tuple[str, str]) -> Markup:
    """What colours stand for."""
    return el(
        "div", {"class": "keys"}, *(el("span", {"class": "key"}, el("i", {"class": c}), words) for c, words in named)
    )


def strip(*parts: tuple[str, float], whole: float) -> Markup:
    """A bar of parts of a whole."""
    return el(
        "div",
        {"class": "strip"},
        *(el("i", {"class": name, "style": f"width:{percent(size, whole)}"}) for name, size in parts if size > 0),
    )


def tiles(decision: Decision) -> Markup:
    """The figures of a plan: time, memory, certificate, work."""
    p, c, limit = decision.predicted, decision.certificate, decision.request.memory_limit
    bound = (
        f"No plan is below {c.lower_bound:.6g} {c.unit} by this cost model"
        if c.lower_bound > 0 or c.value == 0
        else "The search ended before it had a bound for every mesh"
    )
    aliased = f", of which {quantity(p.alias_bytes, 'B')} reuse donated arguments" if p.alias_bytes else ""
    return el(
        "div",
        {"class": "tiles"},
        _tile(
            "Time of a call",
            quantity(p.seconds, "s"),
            "",
            strip(("c-compute", p.compute_seconds), ("c-move", p.communication_seconds), whole=p.seconds),
            el(
                "p",
                None,
                f"computing {quantity(p.compute_seconds, 's')}, communicating {quantity(p.communication_seconds, 's')}",
            ),
        ),
        _tile(
            "Peak memory of a device",
            quantity(p.peak_bytes, "B"),
            f" of {quantity(limit, 'B')}",
            strip(("c-compute", min(p.peak_bytes, limit)), whole=limit),
            el(
                "p",
                None,
                f"arguments {quantity(p.argument_bytes, 'B')}, results {quantity(p.output_bytes, 'B')}{aliased}",
            ),
        ),
        _tile(
            "How good it is",
            c.proven,
            c.guesses,
            None,
            el("p", None, f"{bound}; {_many(c.meshes, 'mesh', 'meshes')} in {c.solve_seconds:.1f} s."),
        ),
        _tile(
            "Work of a device",
            quantity(p.flops, "FLOP"),
            "",
            None,
            el(
                "p", None, f"{quantity(p.traffic_bytes, 'B')} read and written, {quantity(p.energy_joules, 'J')} a call"
            ),
        ),
        _feeding(p) if p.feed_seconds else None,
    )


def _feeding(p: Predicted) -> Markup:
    return _tile(
        "Bringing inputs from hosts",
        quantity(p.feed_seconds, "s"),
        "",
        None,
        el(
            "p",
            None,
            f"{quantity(p.fed_bytes, 'B')} to a device, {quantity(p.host_bytes, 'B')} loaded by a host; beside the call",
        ),
    )


def _tile(heading: str, big: str, small: str, *rest: Markup | None) -> Markup:
    return el(
        "div",
        {"class": "tile"},
        el("h3", None, heading),
        el("div", {"class": "big"}, big, el("small", None, small) if small else None),
        *rest,
    )


def _many(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


# ---------------------------------------------------------------- where the time goes


def time_section(data: PageData) -> Markup:
    """Seconds by module and source line."""
    lines, total = data.lines, sum(line.seconds for line in data.lines)
    if not lines or total <= 0:
        return join()
    what = (
        "Computing and communicating by the source line of the op, per call."
        if data.has_program
        else "Communicating by source line, per call, as if nothing hid it. What computing takes by line is known where "
        "the program is beside the plan: meshwright report PLAN.json FILE.py:FUNCTION."
    )
    body = [_lines(lines[:MOST_LINES], lines[0].seconds, total)]
    rest = lines[MOST_LINES:]
    if rest:
        left = quantity(sum(line.seconds for line in rest), "s")
        body.append(el("p", {"class": "faint"}, f"{len(rest)} lines more take {left}."))
    if len(data.modules) > 1:
        table = _lines(data.modules[:MOST_LINES], data.modules[0].seconds, total)
        body.append(el("details", None, el("summary", None, "by module"), table))
    return el(
        "section", {"id": "time"}, el("h2", None, "Where the time goes"), el("p", None, what), keys(*PARTS), *body
    )


def _lines(lines: Sequence[Line], longest: float, total: float) -> Markup:
    cells: list[Markup] = []
    for line in lines:
        words = (
            f"{line.source}: computing {quantity(line.compute_seconds, 's')}, communicating "
            f"{quantity(line.communication_seconds, 's')}"
        )
        bar = [
            el("i", {"class": name, "style": f"width:{percent(size, longest)}"})
            for name, size in (("c-compute", line.compute_seconds), ("c-move", line.communication_seconds))
            if size > 0
        ]
        cells += [
            el("div", {"class": "name code", "title": words}, line.source),
            el("div", {"class": "track", "title": words}, *bar),
            el("div", {"class": "num"}, f"{quantity(line.seconds, 's')}, {100 * line.seconds / total:.3g} %"),
        ]
    return el("div", {"class": "bars"}, *cells)


# ---------------------------------------------------------------- collectives


def moved_section(data: PageData) -> Markup:
    """Collectives by kind, axes and link."""
    moved = data.moved
    heading = el("h2", None, "What travels between devices")
    if not moved:
        return el("section", {"id": "collectives"}, heading, el("p", None, "No collectives: every device works alone."))
    total = quantity(sum(one.bytes for one in moved), "B")
    priced = moved[0].seconds is not None
    longest = max((one.seconds if one.seconds is not None else one.bytes) for one in moved)
    lead = f"{total} per device and call. " + (
        "Bars are the seconds of each kind over its axes, as if computing hid none of them."
        if priced
        else "Bars are bytes: the prices of this plan were measured, and its file does not keep them."
    )
    cells: list[Markup] = []
    for one in moved[:MOST_MOVED]:
        size = one.seconds if one.seconds is not None else one.bytes
        said = [quantity(one.seconds, "s")] if one.seconds is not None else []
        cells += [
            el(
                "div",
                {"class": "name"},
                f"{one.kind} over ",
                axes_words(one.axes, tuple(data.decision.mesh_shape)),
                el("div", {"class": "sub"}, f"{one.devices} devices{f', {one.links}' if one.links else ''}"),
            ),
            el("div", {"class": "track"}, el("i", {"class": "c-move", "style": f"width:{percent(size, longest)}"})),
            el(
                "div",
                {"class": "num"},
                ", ".join([*said, quantity(one.bytes, "B"), "1 run" if one.runs == 1 else f"{one.runs:g} runs"]),
            ),
        ]
    rest = moved[MOST_MOVED:]
    more = (
        el("p", {"class": "faint"}, f"{len(rest)} kinds more, {quantity(sum(m.bytes for m in rest), 'B')}.")
        if rest
        else None
    )
    return el(
        "section", {"id": "collectives"}, heading, el("p", None, lead), el("div", {"class": "bars roomy"}, *cells), more
    )


def axes_words(axes: Sequence[str], mesh: Sequence[str]) -> Markup:
    """Names of axes, each in its colour; together they split one dim, or are what a collective runs over."""
    found: list[Markup | str] = []
    for i, axis in enumerate(axes):
        found += [" · "] if i else []
        found.append(el("span", {"class": f"axis a{colour(axis, mesh)}"}, axis))
    return join(*found)


def colour(axis: str, mesh: Sequence[str]) -> int:
    """The number of an axis's colour."""
    return list(mesh).index(axis) % 5 if axis in mesh else 4


# ---------------------------------------------------------------- meshes


def meshes_section(decision: Decision) -> Markup:
    """The meshes of the search, each with its lower bound and, where one was made, its best plan."""
    tried = sorted(decision.tried, key=lambda one: (one.bound is None, one.bound or 0.0))
    if not tried:
        return join()
    mine, value = dict(decision.mesh_shape), decision.certificate.value
    near = [one for one in tried if one.bound is not None and one.bound <= NEAR * value]
    shown = [one for i, one in enumerate(near) if i < MOST_MESHES or dict(one.mesh) == mine]
    values = [of for one in shown for of in (one.bound, one.value) if of is not None]
    low, high = min(values, default=0.0), max(values, default=1.0)
    scale = _Scale(low=low, span=(high - low) or 1.0, plan=value, unit=UNITS[decision.certificate.unit])
    rows = [cell for one in shown for cell in _mesh(one, scale, chosen=dict(one.mesh) == mine)]
    far = [one for one in tried if one.bound is not None and one not in shown]
    without = sum(one.bound is None for one in tried)
    rest: list[str] = []
    if far:
        least = quantity(min(one.bound for one in far if one.bound is not None), scale.unit)
        rest.append(f"{_many(len(far), 'mesh', 'meshes')} more take at least {least}")
    if without:
        rest.append(f"{'on' if not rest else 'and on'} {_many(without, 'mesh', 'meshes')} nothing fits")
    lead = (
        "A tick is the lower bound of every plan on the mesh, a dot its best plan, where one was sought to the end. A mesh "
        "whose bound is no better than a plan known by then was left there."
    )
    return el(
        "section",
        {"id": "meshes"},
        el("h2", None, "The meshes tried"),
        el("p", None, lead),
        el("div", {"class": "meshes"}, *rows),
        el("p", {"class": "faint"}, f"{', '.join(rest)}.") if rest else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """Where values stand on a track beside that of the plan, in the unit of the certificate."""

    low: float
    span: float
    plan: float
    unit: str

    def beside(self, value: float) -> str:
        """A value beside that of the plan."""
        return f"+{quantity(value - self.plan, self.unit)}" if value > self.plan * (1 + SAME) else "as good"

    def at(self, value: float) -> str:
        """The place of a value."""
        return f"left:{3 + self.length(value - self.low):.3f}%"

    def length(self, value: float) -> float:
        """The length of a difference, in hundredths of the track."""
        return 94 * value / self.span


def _mesh(one: Tried, scale: _Scale, *, chosen: bool) -> list[Markup]:
    """The cells of one mesh: its shape, its marks, its figure."""
    marks: list[Markup] = []
    said = "does not fit"
    if one.bound is not None:
        said = f"at least {scale.beside(one.bound)}" if one.bound > scale.plan * (1 + SAME) else "no better"
        if one.value is not None:
            said = quantity(one.value, scale.unit) if chosen else scale.beside(one.value)
            width = f"width:{scale.length(one.value - one.bound):.3f}%"
            marks.append(el("i", {"class": "span", "style": f"{scale.at(one.bound)};{width}"}))
            marks.append(el("i", {"class": "value", "style": scale.at(one.value)}))
        marks.append(el("i", {"class": "bound", "style": scale.at(one.bound)}))
    mine = " is-chosen" if chosen else ""
    return [
        el("div", {"class": f"code{mine}"}, " × ".join(str(size) for size in one.mesh.values())),
        el("div", {"class": f"track{mine}"}, *marks),
        el("div", {"class": f"num{mine}"}, said),
    ]
