"""The page of a plan as HTML: one file that asks nobody for anything."""

from __future__ import annotations

from importlib.resources import files
from string import Template

from planner.decision import Checked, Decision, Guessed, Replicated, Ruled
from planner.program.spec_entries import parts_over
from planner.report.form_text import form_words
from planner.report.html.charts import axes_words, meshes_section, moved_section, tiles, time_section
from planner.report.html.markup import Markup, el, join
from planner.report.html.op_flow import graph_section
from planner.report.html.page_data import PageData
from planner.report.html.svg import arrays_section, memory_section

HERE = "planner.report.html"
MOST_OPS = 12
CLASSES = {"ok": "ok", "differs": "open", "FAILED": "no", "not checked": "open"}
"""The style of a verdict."""


def page(data: PageData) -> str:
    """The whole page."""
    decision = data.decision
    body = join(
        _header(decision),
        tiles(decision),
        el("p", {"class": "absent", "style": "margin-top:1.4rem"}, WITHOUT) if not data.has_program else None,
        time_section(data),
        memory_section(data),
        moved_section(data),
        arrays_section(data),
        graph_section(data),
        meshes_section(decision),
        _checks(decision),
        el(
            "footer",
            None,
            "Made by Meshwright. Figures are predictions per device and call, unless they say that they were found.",
        ),
    )
    shared = files(HERE)
    texts = {
        name: shared.joinpath(f"page.{kind}").read_text("utf-8") for name, kind in (("style", "css"), ("script", "js"))
    }
    title = f"Plan of {decision.function_name} for {decision.topology}"
    template = Template(shared.joinpath("template.html").read_text("utf-8"))
    return template.substitute(title=join(title), body=body, **texts)


WITHOUT = (
    "This page was made from the plan's file alone. What needs the program is left out here, and says so: computing by "
    "source line, memory over the step, and the op graph."
)


def _header(decision: Decision) -> Markup:
    mesh = decision.mesh_shape
    words: list[Markup | str] = []
    for i, (axis, size) in enumerate(mesh.items()):
        words += [" × "] if i else []
        words += [axes_words([axis], tuple(mesh)), f" = {size}"]
    devices, there = parts_over(tuple(mesh), mesh), decision.request.topology.num_devices
    of = f"{devices} of {there} devices" if devices < there else f"{devices} device{'' if devices == 1 else 's'}"
    form = form_words(decision.form)
    said = [f", {of}", f"; {form}" if form != "as written" else "", f"; least {decision.request.objective}"]
    return el(
        "header",
        None,
        el("h1", None, f"Plan of {decision.function_name} for {decision.topology}"),
        el("p", {"class": "lead"}, "Mesh ", *words, *said),
    )


# ---------------------------------------------------------------- checks and notes


def _checks(decision: Decision) -> Markup:
    rows = [
        el("tr", None, el("td", None, what), el("td", {"class": CLASSES[verdict]}, verdict), el("td", None, detail))
        for what, verdict, detail in by_verdict(decision.checked)
    ]
    table = el("table", None, *rows) if rows else el("p", {"class": "absent"}, "Nothing was checked.")
    notes = [el("li", None, note) for note in decision.notes]
    return el(
        "section",
        {"id": "checks"},
        el("h2", None, "What was checked"),
        el("p", None, "Before the plan was handed over; plan.verify(...) checks it again."),
        table,
        *_ops("Placed whole for lack of a rule", decision.replicated),
        *_ops("Work guessed as one operation per result element", decision.guessed),
        *_ops("Placed by Shardy's rule", decision.by_shardy),
        *([el("h2", {"style": "margin-top:2rem"}, "Notes"), el("ul", {"class": "notes"}, *notes)] if notes else []),
    )


def by_verdict(checked: tuple[Checked, ...]) -> list[tuple[str, str, str]]:
    """The checks with one verdict and detail as one: (what, verdict, detail)."""
    found: dict[tuple[str, str], list[str]] = {}
    for one in checked:
        found.setdefault((one.verdict, one.detail), []).append(one.what)
    return [(", ".join(what), verdict, detail) for (verdict, detail), what in found.items()]


def _ops(heading: str, ops: tuple[Replicated | Ruled | Guessed, ...]) -> list[Markup]:
    if not ops:
        return []
    found = dict.fromkeys((op.op, op.source) for op in ops)
    rows = [
        el("tr", None, el("td", {"class": "code"}, op), el("td", {"class": "code"}, at))
        for op, at in list(found)[:MOST_OPS]
    ]
    more = el("p", {"class": "faint"}, f"and {len(found) - MOST_OPS} more") if len(found) > MOST_OPS else None
    return [
        el(
            "details",
            None,
            el("summary", None, f"{heading}: {len(found)}"),
            el("table", None, *rows),
            *([more] if more else []),
        )
    ]
