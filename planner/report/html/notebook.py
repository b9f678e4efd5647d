"""A plan in a cell of a notebook: its figures, and where the largest arrays lie."""

from __future__ import annotations

from collections.abc import Sequence

from planner.pricing.candidates.specs import from_entries, spec_words
from planner.report.html.markup import el
from planner.report.html.page_data import PageData
from planner.report.html.render import by_verdict
from planner.units import quantity

MOST_ROWS = 12
"""Arrays that are shown, the largest."""


def notebook(data: PageData) -> str:
    """A compact view for a cell of a notebook: the figures, and where the largest arrays lie."""
    decision, mesh = data.decision, tuple(data.decision.mesh_shape)
    rows = [
        el(
            "tr",
            None,
            *(
                el("td", {"style": "text-align:left"}, cell)
                for cell in (el("code", None, one.name), el("code", None, one.type))
            ),
            el("td", {"style": "text-align:left"}, el("code", None, axes_text(one.axes))),
            el("td", None, quantity(one.bytes, "B")),
        )
        for one in data.arguments[:MOST_ROWS]
    ]
    left = len(data.arguments) - MOST_ROWS
    p, c = decision.predicted, decision.certificate
    figures = (
        ("mesh", " × ".join(f"{name} = {decision.mesh_shape[name]}" for name in mesh)),
        (
            "time of a call",
            f"{quantity(p.seconds, 's')}: computing {quantity(p.compute_seconds, 's')}, communicating "
            f"{quantity(p.communication_seconds, 's')}",
        ),
        ("peak memory", f"{quantity(p.peak_bytes, 'B')} of {quantity(decision.request.memory_limit, 'B')} per device"),
        ("certificate", f"{c.status} ({c.meshes} meshes, {c.solve_seconds:.1f} s)"),
        (
            "checks",
            "; ".join(f"{what}: {verdict}" for what, verdict, _ in by_verdict(decision.checked)),
        ),
    )
    top = [
        el("tr", None, el("th", {"style": "text-align:left"}, k), el("td", {"style": "text-align:left"}, v))
        for k, v in figures
        if v
    ]
    heading = el(
        "tr",
        None,
        *(el("th", {"style": "text-align:left"}, words) for words in ("argument", "type", "spec")),
        el("th", None, "per device"),
    )
    more = el("p", None, f"and {left} rows more; plan.report('plan.html') shows all") if left > 0 else None
    return el(
        "div",
        None,
        el("strong", None, f"Plan of {decision.function_name} for {decision.topology}"),
        el("table", None, *top),
        el("table", None, heading, *rows),
        more,
    )


def axes_text(axes: Sequence[Sequence[str]]) -> str:
    """A spec in the short form P('x', None), of the axes of every dim."""
    return spec_words(from_entries(axes))
