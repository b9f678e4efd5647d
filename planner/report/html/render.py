"""The page of a plan as HTML, one file that asks nobody for anything."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from planner.decision import Decision
from planner.explain.explain import Alternatives
from planner.pricing.candidates.specs import spec_text
from planner.printing.parts import count
from planner.program.form import form_text
from planner.program.spec_entries import parts_over
from planner.report.html.drawings import draw_arcs, draw_array, draw_memory, draw_meshes, longest_bar
from planner.report.plan_report import PlanReport, plan_report
from planner.report.writing import write_text
from planner.units import quantity

HEAD = 1000
"""Bytes of a page, in which it says what made it, and from what."""
_MADE_FROM = re.compile(rb'<meta name="generator" content="meshwright, from a (program|plan)">')
COLOURS = 5
"""Colours of mesh axes in `page.css`."""


def write_page(decision: Decision, program: Alternatives | None, path: str | Path) -> None:
    """Writes the page of a plan, whole or not at all; `program` is what its program adds.

    Raises: ArgumentError where nothing can be written there.
    """
    write_text(path, page(plan_report(decision, program)), "the page")


def made_from(path: Path) -> str | None:
    """What the page in a file was made from: "program", or "plan" where its file alone; None where it is no such page."""
    try:
        with path.open("rb") as file:
            found = _MADE_FROM.search(file.read(HEAD))
    except OSError:
        return None
    return found[1].decode() if found else None


def page(report: PlanReport) -> str:
    """The whole page."""
    mesh = report.decision.mesh_shape
    return (
        _templates()
        .get_template("page.html")
        .render(
            report=report,
            decision=report.decision,
            predicted=report.decision.predicted,
            certificate=report.decision.certificate,
            mesh=mesh,
            colours={axis: i % COLOURS for i, axis in enumerate(mesh)},
        )
    )


@cache
def _templates() -> Environment:
    """The templates of this package; values that they print are escaped."""
    environment = Environment(
        loader=PackageLoader("planner.report.html"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    filters: dict[str, Any] = environment.filters
    filters |= {"unit": quantity, "percent": _percent, "spec": spec_text, "form": form_text, "things": count}
    functions: dict[str, Any] = environment.globals
    for function in (draw_arcs, draw_array, draw_memory, draw_meshes, longest_bar, parts_over):
        functions[function.__name__] = function
    return environment


def _percent(part: float, whole: float) -> str:
    """A share as a length of CSS."""
    return f"{100 * part / whole if whole > 0 else 0:.3f}%"
